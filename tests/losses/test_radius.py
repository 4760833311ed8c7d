"""Radius predictors: what they read, in which order, and for which batch sizes."""

import math

import pytest
import torch

from supclap.losses import SimilarityRadius, SummaryRadius, SupClapLoss, positive_first
from support.builders import unit


def awake(predictor):
    """The predictor in float64, with a last layer that reads its input."""
    torch.manual_seed(0)
    torch.nn.init.normal_(predictor.mlp[-1].weight, std=0.1)
    return predictor.double()


def mask(similarities):
    return torch.ones_like(similarities, dtype=torch.bool)


ROW = torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0]], dtype=torch.float64)


def test_positive_first_keeps_the_others_in_batch_order():
    logits = torch.arange(12.0).reshape(3, 4)
    similarities, valid = positive_first(logits, torch.tensor([0, 2, 3]), torch.zeros(3, 4, dtype=torch.bool))
    assert similarities.tolist() == [[0, 1, 2, 3], [6, 4, 5, 7], [11, 8, 9, 10]]
    assert valid.all()


def test_positive_first_orders_each_of_several_matrices():
    logits, own = torch.randn(2, 3, 5), torch.tensor([4, 0, 2])
    both, _ = positive_first(logits, own)
    for one, matrix in zip(both, logits, strict=True):
        assert torch.equal(one, positive_first(matrix, own)[0])


def test_positive_first_marks_other_columns_of_the_same_clip():
    positives = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])
    _, valid = positive_first(torch.zeros(3, 3), torch.arange(3), positives)
    assert valid.tolist() == [[True, True, False], [True, True, True], [True, False, True]]


@pytest.mark.parametrize("predictor", [SimilarityRadius(5, 0.2), SummaryRadius(radius_init=0.2)])
def test_predictors_start_at_the_initial_radius(predictor):
    similarities = torch.randn(3, 5)
    torch.testing.assert_close(predictor(similarities, mask(similarities)), torch.full((3,), 0.2), rtol=0, atol=0)


@pytest.mark.parametrize("predictor", [SimilarityRadius(5), SummaryRadius()])
def test_predictors_send_no_gradient_into_the_similarities(predictor):
    similarities = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    radius = awake(predictor)(similarities, mask(similarities))
    assert radius.requires_grad
    assert torch.autograd.grad(radius.sum(), similarities, allow_unused=True) == (None,)


def test_similarities_are_read_as_they_come_for_the_right_batch_size():
    assert SimilarityRadius(5).features(ROW, mask(ROW)).tolist() == [[5, 1, 4, 2, 3]]


@pytest.mark.parametrize("size", [4, 6])
def test_another_batch_size_is_refused_with_both_sizes_and_the_fixes(size):
    pattern = f"N={size} .* this batch has 5.*drop_last=True.*batch_size=5.*on_batch_mismatch='pad'.*'summary'"
    with pytest.raises(ValueError, match=pattern):
        SimilarityRadius(size)(ROW, mask(ROW))


def test_short_batch_is_padded_with_the_row_minimum_after_the_negatives():
    predictor = SimilarityRadius(7, on_batch_mismatch="pad")
    assert predictor.features(ROW, mask(ROW)).tolist() == [[5, 1, 4, 2, 3, 1, 1]]


def test_long_batch_keeps_the_positive_and_the_hardest_negatives_in_batch_order():
    predictor = SimilarityRadius(3, on_batch_mismatch="pad")
    row = torch.tensor([[0.0, 1.0, 3.0, 2.0, 4.0]])
    assert predictor.features(row, mask(row)).tolist() == [[0, 3, 4]]


def test_same_clip_is_read_as_the_row_minimum():
    valid = torch.tensor([[True, True, False, True, True]])
    assert SimilarityRadius(5).features(ROW, valid).tolist() == [[5, 1, 1, 2, 3]]


def test_same_clip_in_a_long_batch_comes_after_equal_negatives():
    row = torch.tensor([[5.0, 9.0, 1.0, 2.0, 1.0]])
    valid = torch.tensor([[True, False, True, True, True]])
    predictor = SimilarityRadius(4, on_batch_mismatch="pad")
    assert predictor.features(row, valid).tolist() == [[5, 1, 2, 1]]


def test_batch_of_one_is_padded_with_its_positive():
    row = torch.tensor([[2.0]])
    assert SimilarityRadius(3, on_batch_mismatch="pad").features(row, mask(row)).tolist() == [[2, 2, 2]]


def test_summary_reads_positive_hardest_negatives_and_statistics():
    features = SummaryRadius(top_k=2).features(ROW, mask(ROW))[0].tolist()
    denominator = math.log(sum(math.exp(v) for v in (1, 4, 2, 3)))
    assert features == pytest.approx([5, 4, 3, 2.5, math.sqrt(1.25), 1, denominator], rel=1e-14)


def test_summary_fills_up_missing_negatives_with_the_smallest():
    features = SummaryRadius(top_k=6).features(ROW, mask(ROW))[0].tolist()
    assert features[:7] == [5, 4, 3, 2, 1, 1, 1]


def test_summary_leaves_out_the_same_clip():
    predictor = SummaryRadius(top_k=3)
    valid = torch.tensor([[True, True, False, True, True]])
    without = ROW[:, [0, 1, 3, 4]]
    torch.testing.assert_close(predictor.features(ROW, valid), predictor.features(without, mask(without)))


def test_summary_describes_a_batch_of_one_by_its_positive():
    row = torch.tensor([[2.0]])
    assert SummaryRadius(top_k=2).features(row, mask(row)).tolist() == [[2, 2, 2, 2, 0, 2, 2]]


def test_summary_is_independent_of_the_batch_order():
    predictor = awake(SummaryRadius(top_k=3))
    permuted = ROW[:, [0, 3, 1, 4, 2]]
    torch.testing.assert_close(predictor(ROW, mask(ROW)), predictor(permuted, mask(ROW)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [1, 2, 3, 9, 40])
def test_criterion_with_summary_takes_every_batch_size(size):
    loss = SupClapLoss(radius_predictor="summary").double()
    awake(loss.radius[0])
    loss(unit(4, 6, seed=1), unit(4, 6, seed=2), 10.0)  # a batch of one pair is refused as the first one only
    output = loss(unit(size, 6, seed=1).requires_grad_(), unit(size, 6, seed=2), 10.0)
    output.loss.backward()
    assert output.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in loss.parameters())


def test_criterion_refuses_a_last_partial_batch_without_a_policy():
    loss = SupClapLoss(batch_size=8)
    loss(unit(8, 6, seed=1), unit(8, 6, seed=2), 10.0)
    with pytest.raises(ValueError, match="N=8 .* this batch has 5"):
        loss(unit(5, 6, seed=1), unit(5, 6, seed=2), 10.0)


@pytest.mark.parametrize("size", [2, 5, 12])
def test_criterion_with_padding_differs_from_the_exact_predictor_in_the_radius_only(size):
    loss = SupClapLoss(batch_size=8, on_batch_mismatch="pad", radius_init=0.25)
    output = loss(unit(size, 6, seed=1), unit(size, 6, seed=2), 10.0)
    exact = SupClapLoss(batch_size=size, radius_init=0.25)(unit(size, 6, seed=1), unit(size, 6, seed=2), 10.0)
    assert output.loss == exact.loss


def test_a_last_batch_of_one_pair_is_let_through_by_padding():
    loss = SupClapLoss(batch_size=8, on_batch_mismatch="pad")
    loss(unit(8, 6, seed=1), unit(8, 6, seed=2), 10.0)
    assert loss(unit(1, 6, seed=1), unit(1, 6, seed=2), 10.0).loss == 0


def test_radius_does_not_see_the_bias_of_siglip():
    loss = SupClapLoss("siglip", batch_size=6).double()
    awake(loss.radius[0])
    pairs = unit(6, 5, seed=1), unit(6, 5, seed=2)
    with_bias, without = (loss(*pairs, 10.0, logit_bias=bias).diagnostics["radius"] for bias in (-10.0, None))
    assert with_bias == without


def test_bfloat16_predictor_takes_float32_embeddings():
    loss = SupClapLoss(batch_size=4).bfloat16()
    output = loss(unit(4, 5, seed=1).float(), unit(4, 5, seed=2).float(), 10.0)
    assert output.loss.dtype == torch.float32
    assert output.diagnostics["radius"].item() == torch.tensor(0.1).bfloat16().item()
