"""The objective in one pass over the rows against the sum of its terms by plain autograd, in float64."""

import pytest
import torch
import torch.nn.functional as F

from supclap.losses import (
    SupClapLoss,
    chunked,
    info_nce,
    positive_first,
    radius_constraint,
    siglip,
    similarity_logits,
    support_vectors,
    symmetric,
)
from support.builders import unit


B, D = 7, 5
IDS = torch.tensor([0, 1, 0, 2, 3, 1, 0])
OPTIONS = {
    "static": {"svr": "static"},
    "static, one each": {"svr": "static", "share_radius": False},
    "dynamic": {"batch_size": B},
    "dynamic, one each": {"batch_size": B, "share_radius": False},
    "clamped": {"batch_size": B, "clamp_radius": True},
    "summary": {"radius_predictor": "summary"},
}


def case(objective, name, **options):
    """A criterion whose radii lie on both sides of the distances, and its inputs as leaves."""
    torch.manual_seed(0)
    options = {"alpha": 0.7, "beta": 0.3, "radius_init": 0.9} | OPTIONS[name] | options
    loss = SupClapLoss(objective, **options).double()
    for parameter_name, parameter in loss.named_parameters():
        if parameter_name.endswith("mlp.4.weight"):
            torch.nn.init.normal_(parameter, std=0.5)
    audio = unit(B, D, seed=1)
    inputs = {"audio": audio, "text": F.normalize(audio + 0.8 * unit(B, D, seed=2), dim=-1)}
    inputs["scale"] = torch.tensor(8.0, dtype=torch.float64)
    if objective == "siglip":
        inputs["bias"] = torch.tensor(-3.0, dtype=torch.float64)
    for tensor in inputs.values():
        tensor.requires_grad_()
    return loss, inputs


def by_terms(loss, audio, text, scale, bias=None, ids=None):
    """L_orig, L_svr and L_cons from the public functions of the package."""
    same_clip = torch.eye(B, dtype=torch.bool) if ids is None else ids[:, None] == ids
    others = same_clip & ~torch.eye(B, dtype=torch.bool)
    logits = similarity_logits(text, audio, scale)
    if loss.objective == "siglip":
        contrastive = siglip(logits, same_clip, bias)
    else:
        contrastive = info_nce(logits, same_clip) + info_nce(logits.T, same_clip)
    svr = constraint = torch.zeros((), dtype=torch.float64)
    distance = (audio - text).norm(dim=-1)
    sides = ((text, audio, logits), (audio, text, logits.T))
    for module, (anchor, positive, own) in zip((loss.radius[0], loss.radius[-1]), sides, strict=True):
        if loss.svr == "static":
            radius = module(anchor)
        else:
            radius = module(*positive_first(own, torch.arange(B), same_clip))
            constraint = constraint + radius_constraint(radius, distance)
        if loss.clamp_radius:
            radius = radius.minimum(distance.detach())
        moved = similarity_logits(support_vectors(anchor, positive, radius), positive, scale)
        if loss.objective == "siglip":
            svr = svr + siglip(moved, same_clip, bias)
        else:
            svr = svr + info_nce(moved, exclude=others)
    return contrastive + loss.alpha * svr + loss.beta * constraint, contrastive, svr, constraint


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("ids", [None, IDS], ids=["", "ids"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_values_and_gradients_are_those_of_the_sum_of_the_terms(objective, name, ids, chunk_size):
    loss, inputs = case(objective, name, chunk_size=chunk_size)
    output = loss(inputs["audio"], inputs["text"], inputs["scale"], inputs.get("bias"), ids)
    expected, *parts = by_terms(loss, **inputs, ids=ids)
    torch.testing.assert_close([output.loss, *output.parts.values()], [expected, *parts], rtol=1e-12, atol=1e-12)
    leaves = [*inputs.values(), *loss.parameters()]
    got = torch.autograd.grad(3 * output.loss, leaves)
    torch.testing.assert_close(got, torch.autograd.grad(3 * expected, leaves), rtol=1e-10, atol=1e-12)


def test_rows_beyond_the_cache_are_taken_in_chunks_unasked(monkeypatch):
    loss, inputs = case("infonce", "dynamic")
    expected = torch.autograd.grad(by_terms(loss, **inputs)[0], list(inputs.values()))
    monkeypatch.setattr(symmetric, "SQUARE_ELEMENTS", 48)  # 7 * 7 - 1
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", 12)  # 4 * 12 < 7 * 7
    monkeypatch.setattr(chunked, "LEAST_ROWS", 3)
    taken = []
    monkeypatch.setattr(
        loss.radius[0],
        "with_gradients",
        lambda *x, call=loss.radius[0].with_gradients: taken.append(len(x[0])) or call(*x),
    )
    got = torch.autograd.grad(loss(inputs["audio"], inputs["text"], inputs["scale"]).loss, list(inputs.values()))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    assert taken == [6, 6, 2]  # both directions of 3, 3 and 1 rows


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("distance", [0.02, 1e-3, 1e-4])
def test_gradients_of_pairs_that_nearly_coincide_hold_in_float32(objective, chunk_size, distance):
    loss, inputs = case(objective, "static", radius_init=0.1, chunk_size=chunk_size)
    near = inputs["audio"].detach() + distance * unit(B, D, seed=3)
    inputs["text"] = F.normalize(near, dim=-1).float().double().requires_grad_()
    inputs["audio"] = inputs["audio"].detach().float().double().requires_grad_()
    leaves = list(inputs.values())
    expected = torch.autograd.grad(by_terms(loss, **inputs)[0], leaves)
    single = {name: value.detach().float().requires_grad_() for name, value in inputs.items()}
    output = loss.float()(single["audio"], single["text"], single["scale"], single.get("bias"))
    got = torch.autograd.grad(output.loss, list(single.values()))
    for value, reference in zip(got, expected, strict=True):
        assert (value - reference).norm() < 1e-3 * reference.norm()


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_a_weight_of_0_leaves_the_loss_of_the_anchors(chunk_size):
    loss, inputs = case("infonce", "dynamic", alpha=0.0, beta=0.0, chunk_size=chunk_size)
    logits = similarity_logits(inputs["text"], inputs["audio"], inputs["scale"])
    leaves = list(inputs.values())
    expected = torch.autograd.grad(info_nce(logits) + info_nce(logits.T), leaves)
    got = torch.autograd.grad(loss(inputs["audio"], inputs["text"], inputs["scale"]).loss, leaves)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("frozen", ["audio", "text", "scale", "radius", "radius.0.mlp.2"])
def test_the_others_get_their_gradients_when_one_is_frozen(frozen):
    loss, inputs = case("infonce", "dynamic")
    leaves = {**inputs, **dict(loss.named_parameters())}
    expected = dict(zip(leaves, torch.autograd.grad(by_terms(loss, **inputs)[0], list(leaves.values())), strict=True))
    for name, leaf in leaves.items():
        leaf.requires_grad_(not name.startswith(frozen))
    loss(inputs["audio"], inputs["text"], inputs["scale"]).loss.backward()
    for name, leaf in leaves.items():
        if name.startswith(frozen):
            assert leaf.grad is None
        else:
            torch.testing.assert_close(leaf.grad, expected[name], rtol=1e-10, atol=1e-12)


def test_the_value_is_the_same_without_gradients():
    loss, inputs = case("siglip", "clamped")
    arguments = (inputs["audio"], inputs["text"], inputs["scale"], inputs["bias"])
    expected = loss(*arguments)
    with torch.no_grad():
        output = loss(*arguments)
    torch.testing.assert_close([output.loss, output.radii], [expected.loss.detach(), expected.radii], rtol=0, atol=0)


def test_a_second_derivative_is_refused_and_not_wrong():
    loss, inputs = case("infonce", "static")
    total = loss(inputs["audio"], inputs["text"], inputs["scale"]).loss
    with pytest.raises(RuntimeError, match="no second derivative.*similarity_logits and of support_vectors"):
        torch.autograd.grad(total, inputs["audio"], create_graph=True)
