"""Support vectors: the laws of the paper in float64, and the objective that contains them."""

import math

import pytest
import torch
import torch.nn.functional as F

from supclap.losses import (
    PaperReadings,
    SimilarityRadius,
    StaticRadius,
    SupClapLoss,
    info_nce,
    radius_constraint,
    similarity_logits,
    support_vectors,
)
from support.builders import unit


SCALE = 1 / 0.07
B, D = 8, 6


@pytest.fixture
def pairs():
    """Audio and text leaves, texts near their audios: distances between 0.6 and 1.1."""
    audio = unit(B, D, seed=1)
    text = F.normalize(audio + 0.8 * unit(B, D, seed=2), dim=-1)
    return audio.requires_grad_(), text.requires_grad_()


def criterion(svr, **options):
    """A criterion with a radius that differs between pairs when dynamic; constraint_weight 0 leaves L_svr alone."""
    loss = SupClapLoss(svr=svr, batch_size=B, constraint_weight=0.0, **options).double()
    for radius in loss.radius:
        if isinstance(radius, SimilarityRadius):
            torch.manual_seed(0)
            torch.nn.init.normal_(radius.mlp[-1].weight, std=0.05)
    return loss


def svr_gradients(loss, audio, text, **inputs):
    """Gradients of L_svr alone for (audio, text), and the radii used."""
    output = loss(audio, text, SCALE, **inputs)
    total = torch.autograd.grad(output.loss, (audio, text))
    plain = SupClapLoss(loss.objective, svr=None)(audio, text, SCALE, **inputs).loss
    plain = torch.autograd.grad(plain, (audio, text))
    return [a - b for a, b in zip(total, plain, strict=True)], output.radii


def geometry(audio, text):
    """Direction u (B, D) and distance d (B, 1) of the pairs, without gradient."""
    difference = (audio - text).detach()
    distance = difference.norm(dim=-1, keepdim=True)
    return difference / distance, distance


def split(vectors, direction):
    """Parts of `vectors` along and across `direction`."""
    along = (vectors * direction).sum(-1, keepdim=True) * direction
    return along, vectors - along


def gradient_at_support(audio, text, radius, objective="infonce"):
    """dL_svr/dt_sup and the part of dL_svr/da that does not go through u, from torch's own losses."""
    direction, _ = geometry(audio, text)
    support = (text + radius * direction).detach().requires_grad_()
    audio = audio.detach().requires_grad_()
    logits = SCALE * support @ audio.T
    if objective == "siglip":
        loss = F.softplus(logits * (1 - 2 * torch.eye(B, dtype=torch.float64))).sum() / B
    else:
        loss = F.cross_entropy(logits, torch.arange(B))
    return torch.autograd.grad(loss, (support, audio))


# ---- The law of the gradient ----


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize("svr", ["static", "dynamic"])
def test_text_gets_the_parallel_part_whole_and_1_minus_r_over_d_of_the_rest(pairs, svr, objective):
    loss = criterion(svr, objective=objective, svr_direction="uni", radius_init=0.25)
    (_, gradient), (radius,) = svr_gradients(loss, *pairs)
    radius = radius[:, None]
    assert (radius.std() > 0.01) == (svr == "dynamic")
    direction, distance = geometry(*pairs)
    along, across = split(gradient_at_support(*pairs, radius, objective)[0], direction)
    got_along, got_across = split(gradient, direction)
    assert across.norm() > 0.01
    torch.testing.assert_close(got_along, along, rtol=0, atol=1e-10)
    torch.testing.assert_close(got_across, (1 - radius / distance) * across, rtol=0, atol=1e-10)


def test_control_with_detached_direction_has_no_contraction(pairs):
    audio, text = pairs
    direction, _ = geometry(audio, text)
    support = text + 0.25 * direction
    (gradient,) = torch.autograd.grad(info_nce(similarity_logits(support, audio, SCALE)), text)
    expected, _ = gradient_at_support(audio, text, 0.25)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("svr", ["static", "dynamic"])
def test_audio_receives_r_over_d_of_the_perpendicular_part(pairs, svr):
    loss = criterion(svr, svr_direction="uni", radius_init=0.25)
    (gradient, _), (radius,) = svr_gradients(loss, *pairs)
    direction, distance = geometry(*pairs)
    at_support, direct = gradient_at_support(*pairs, radius[:, None])
    _, across = split(at_support, direction)
    torch.testing.assert_close(gradient - direct, radius[:, None] / distance * across, rtol=0, atol=1e-10)


def test_detach_positive_removes_only_what_the_audio_receives_through_the_direction(pairs):
    options = {"svr_direction": "uni", "radius_init": 0.25}
    (audio, text), (radius,) = svr_gradients(
        criterion("static", readings=PaperReadings(detach_positive=True), **options), *pairs
    )
    (_, expected_text), _ = svr_gradients(criterion("static", **options), *pairs)
    _, direct = gradient_at_support(*pairs, radius[:, None])
    torch.testing.assert_close(text, expected_text, rtol=0, atol=1e-12)
    torch.testing.assert_close(audio, direct, rtol=0, atol=1e-10)


def test_symmetric_is_the_sum_of_uni_on_texts_and_uni_on_audios(pairs):
    audio, text = pairs
    options = {"svr_direction": "uni", "radius_init": 0.25}
    (on_audio, on_text), _ = svr_gradients(criterion("static", radius_init=0.25), audio, text)
    (audio_1, text_1), _ = svr_gradients(criterion("static", **options), audio, text)
    (text_2, audio_2), _ = svr_gradients(criterion("static", **options), text, audio)
    torch.testing.assert_close(on_audio, audio_1 + audio_2, rtol=0, atol=1e-12)
    torch.testing.assert_close(on_text, text_1 + text_2, rtol=0, atol=1e-12)


def test_text_support_uses_one_matrix_by_rows_and_by_columns(pairs):
    audio, text = pairs
    output = criterion("static", readings=PaperReadings(bi_mode="text_support"), radius_init=0.25)(audio, text, SCALE)
    direction, _ = geometry(audio, text)
    logits = SCALE * (text + 0.25 * direction) @ audio.T
    expected = F.cross_entropy(logits, torch.arange(B)) + F.cross_entropy(logits.T, torch.arange(B))
    torch.testing.assert_close(output.parts["loss_svr"], expected.detach(), rtol=1e-12, atol=0)


def test_zero_radius_gives_the_text_to_audio_loss_and_its_gradient(pairs):
    audio, text = pairs
    loss = criterion("static", svr_direction="uni", radius_init=0.0)
    gradients, _ = svr_gradients(loss, audio, text)
    text_to_audio = F.cross_entropy(SCALE * text @ audio.T, torch.arange(B))
    expected = torch.autograd.grad(text_to_audio, (audio, text), retain_graph=True)
    torch.testing.assert_close(loss(audio, text, SCALE).parts["loss_svr"], text_to_audio.detach(), rtol=1e-14, atol=0)
    torch.testing.assert_close(gradients, list(expected), rtol=0, atol=1e-12)


def test_a_radius_equal_to_the_distance_leaves_no_perpendicular_gradient(pairs):
    audio, text = pairs
    direction, distance = geometry(audio, text)
    support = support_vectors(text, audio, distance)
    (gradient,) = torch.autograd.grad(info_nce(similarity_logits(support, audio, SCALE)), text)
    along, across = split(gradient, direction)
    torch.testing.assert_close(support, audio, rtol=0, atol=1e-14)
    assert along.norm() > 1e-4
    assert across.norm() < 1e-12


REFERENCE = {
    False: (0.475189378601681, (0.6143497908917137, -1.2011671888188216), -1.2837643677126391),
    True: (0.4116847455716412, (0.9408783185521099, -1.3803861306100886), -1.6413818329298466),
}


@pytest.mark.parametrize("normalize", [False, True])
def test_regression_vector(normalize):
    text = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    audio = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    negative = torch.tensor([[0.6, -0.8]], dtype=torch.float64)
    radius = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    support = support_vectors(text, audio, radius, normalize=normalize)
    logits = similarity_logits(support, torch.cat([audio, negative]), 1 / 0.5)
    loss = info_nce(logits, torch.tensor([[True, False]]))
    on_text, on_audio, on_radius = torch.autograd.grad(loss, (text, audio, radius))
    expected_loss, expected_text, expected_radius = REFERENCE[normalize]
    assert loss.item() == pytest.approx(expected_loss, abs=1e-12)
    assert on_text[0].tolist() == pytest.approx(expected_text, abs=1e-12)
    assert on_radius.item() == pytest.approx(expected_radius, abs=1e-12)
    if not normalize:
        assert on_audio[0].tolist() == pytest.approx((-0.6494850442366696, -0.427921455904213), abs=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_pair_has_finite_value_and_gradient(dtype, normalize):
    audio = unit(4, D, seed=1).to(dtype)
    text = audio.clone()
    text[1:] = unit(3, D, seed=2).to(dtype)
    audio.requires_grad_()
    text.requires_grad_()
    loss = SupClapLoss(batch_size=4, readings=PaperReadings(normalize_support=normalize))
    if dtype == torch.float64:
        loss.double()
    output = loss(audio, text, SCALE)
    output.loss.backward()
    values = [output.loss, audio.grad, text.grad, *(p.grad for p in loss.parameters())]
    values += [*output.parts.values(), *output.diagnostics.values()]
    assert all(value.isfinite().all() for value in values)


def test_identical_pair_gets_no_gradient_through_the_direction():
    # 1e6 times the push would be finite too, and would still ruin the step.
    text = unit(1, D).requires_grad_()
    audio = text.detach().clone().requires_grad_()
    weight = unit(1, D, seed=3)
    (weight * support_vectors(text, audio, 0.3)).sum().backward()
    torch.testing.assert_close(text.grad, weight, rtol=0, atol=0)
    torch.testing.assert_close(audio.grad, torch.zeros_like(weight), rtol=0, atol=0)


# ---- The constraint ----


def test_constraint_hinge_has_the_values_and_gradients_of_its_formula():
    radius = torch.tensor([-0.5, 0.3, 1.5, 0.8], dtype=torch.float64, requires_grad=True)
    distance = torch.tensor([1.0, 1.0, 1.0, 0.7], dtype=torch.float64, requires_grad=True)
    loss = radius_constraint(radius, distance)
    loss.backward()
    assert loss.item() == pytest.approx((0.5 + 0 + 0.5 + 0.1) / 4, rel=1e-14)
    assert radius.grad.tolist() == [-0.25, 0.0, 0.25, 0.25]
    assert distance.grad is None


def test_constraint_is_exactly_zero_with_zero_gradient_inside_the_interval():
    radius = torch.tensor([1e-9, 0.5, 0.999], dtype=torch.float64, requires_grad=True)
    loss = radius_constraint(radius, torch.ones(3, dtype=torch.float64))
    loss.backward()
    assert loss.item() == 0.0
    assert radius.grad.tolist() == [0.0, 0.0, 0.0]


def test_constraint_sums_both_directions_of_bi(pairs):
    def constraint(direction):
        loss = SupClapLoss(batch_size=B, svr_direction=direction, radius_init=3.0).double()
        return loss(*pairs, SCALE).parts["loss_constraint"]

    expected = 3.0 - geometry(*pairs)[1].mean()
    torch.testing.assert_close(constraint("uni"), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(constraint("bi"), 2 * expected, rtol=1e-12, atol=0)


def test_static_radius_has_no_constraint(pairs):
    loss = SupClapLoss(svr="static", radius_init=3.0)
    assert loss(*pairs, SCALE).parts["loss_constraint"] == 0


# ---- The criterion ----


def test_total_weighs_its_parts(pairs):
    loss = SupClapLoss(batch_size=B, svr_weight=0.7, constraint_weight=0.2, radius_init=1.0).double()
    output = loss(*pairs, SCALE)
    parts = output.parts
    assert min(parts.values()) > 0
    expected = parts["loss_contrastive"] + 0.7 * parts["loss_svr"] + 0.2 * parts["loss_constraint"]
    torch.testing.assert_close(output.loss.detach(), expected, rtol=1e-14, atol=0)


def test_same_clip_is_not_in_the_denominator_of_the_support_vectors(pairs):
    audio, text = pairs
    ids = torch.tensor([0, 1, 0, 2, 3, 1, 4, 5])
    loss = criterion("static", svr_direction="uni", radius_init=0.25)
    direction, _ = geometry(audio, text)
    logits = (SCALE * (text + 0.25 * direction) @ audio.T).detach()
    rows = []
    for i in range(B):
        kept = [j for j in range(B) if j == i or ids[j] != ids[i]]
        rows.append(torch.logsumexp(logits[i, kept], 0) - logits[i, i])
    got = loss(audio, text, SCALE, ids=ids).parts["loss_svr"]
    torch.testing.assert_close(got, torch.stack(rows).mean(), rtol=1e-12, atol=0)


def test_ids_of_one_clip_everywhere_leave_nothing_for_the_support_vectors(pairs):
    output = criterion("dynamic")(*pairs, SCALE, ids=torch.zeros(B, dtype=torch.long))
    assert output.parts["loss_svr"] == 0
    assert output.loss.isfinite()


def test_siglip_support_vectors_take_the_same_clip_as_positive(pairs):
    audio, text = pairs
    ids = torch.tensor([0, 1, 0, 2, 3, 1, 4, 5])
    loss = criterion("static", objective="siglip", svr_direction="uni", radius_init=0.25)
    direction, _ = geometry(audio, text)
    logits = (SCALE * (text + 0.25 * direction) @ audio.T).detach() - 2.0
    labels = torch.where(ids[:, None] == ids, 1.0, -1.0)
    got = loss(audio, text, SCALE, -2.0, ids).parts["loss_svr"]
    torch.testing.assert_close(got, F.softplus(-labels * logits).sum() / B, rtol=1e-12, atol=0)


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize(
    "options",
    [
        {"svr": "static"},
        {"svr": "static", "readings": PaperReadings(normalize_support=True)},
        {"svr": "dynamic"},
        {"svr": "dynamic", "svr_direction": "uni", "radius_predictor": "summary"},
        {"svr": "dynamic", "radius_init": -0.25, "constraint_weight": 0.5},
        {"svr": None},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_gradcheck_of_the_total(objective, options):
    # The dynamic radius starts constant (last layer of weight 0), which is what its detached input means to gradcheck.
    loss = SupClapLoss(objective, batch_size=3, **options).double()
    audio, text = unit(3, 4, seed=1).requires_grad_(), unit(3, 4, seed=2).requires_grad_()
    scale = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    bias = torch.tensor([-0.5], dtype=torch.float64, requires_grad=True) if objective == "siglip" else None
    ids = torch.tensor([0, 1, 0])
    # Static radii and last biases; the other weights of the predictor are for torch to differentiate.
    numbers = {name: p for name, p in loss.named_parameters() if p.numel() == 1}

    def total(audio, text, scale, bias, *values):
        replaced = dict(zip(numbers, values, strict=True))
        return torch.func.functional_call(loss, replaced, (audio, text, scale, bias, ids)).loss

    assert torch.autograd.gradcheck(total, (audio, text, scale, bias, *numbers.values()))


def test_radius_of_the_dynamic_predictor_learns_through_the_support_vectors(pairs):
    # dL_svr/dR = u . g for each pair, and the last bias adds up all radii.
    loss = criterion("dynamic", svr_direction="uni", radius_init=0.25)
    torch.nn.init.zeros_(loss.radius[0].mlp[-1].weight)
    loss(*pairs, SCALE).loss.backward()
    direction, _ = geometry(*pairs)
    at_support, _ = gradient_at_support(*pairs, 0.25)
    expected = (direction * at_support).sum()
    torch.testing.assert_close(loss.radius[0].mlp[-1].bias.grad.squeeze(), expected, rtol=0, atol=1e-10)


def test_embeddings_get_no_gradient_through_the_input_of_the_predictor(pairs):
    loss = criterion("dynamic", radius_init=0.25)
    _, radii = svr_gradients(loss, *pairs)
    moving = torch.autograd.grad(loss(*pairs, SCALE).loss, pairs)
    audio, text = pairs
    total = SupClapLoss(svr=None)(audio, text, SCALE).loss
    for radius, (anchor, positive) in zip(radii, ((text, audio), (audio, text)), strict=True):
        total = total + info_nce(similarity_logits(support_vectors(anchor, positive, radius), positive, SCALE))
    torch.testing.assert_close(moving, torch.autograd.grad(total, pairs), rtol=0, atol=1e-12)


def test_clamped_radius_never_passes_the_distance(pairs):
    audio, text = pairs
    output = criterion("static", clamp_radius=True, svr_direction="uni", radius_init=5.0)(audio, text, SCALE)
    expected = F.cross_entropy(SCALE * audio @ audio.T, torch.arange(B))
    torch.testing.assert_close(output.parts["loss_svr"], expected.detach(), rtol=1e-10, atol=0)
    assert output.diagnostics["contraction"].abs() < 1e-12


def test_diagnostics_of_a_hand_example():
    # Distances sqrt(2) and 2; R = 1.5 leaves [0, d] for the first pair only.
    text = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    audio = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    diagnostics = SupClapLoss(svr="static", radius_init=1.5)(audio, text, torch.tensor([4.0])).diagnostics
    expected = {
        "pair_distance": (math.sqrt(2) + 2) / 2,
        "radius": 1.5,
        "radius_out_of_range": 0.5,
        "contraction": 1 - (1.5 / math.sqrt(2) + 1.5 / 2) / 2,
        "logit_scale": 4.0,
        "temperature": 0.25,
    }
    assert {name: value.item() for name, value in diagnostics.items()} == pytest.approx(expected, rel=1e-6)


def test_without_svr_there_is_no_radius_to_report(pairs):
    assert set(SupClapLoss(svr=None)(*pairs, SCALE).diagnostics) == {"pair_distance", "logit_scale", "temperature"}


def test_everything_but_the_loss_is_detached_scalars(pairs):
    output = criterion("dynamic")(*pairs, torch.tensor(SCALE, requires_grad=True))
    for value in (*output.parts.values(), *output.diagnostics.values()):
        assert value.shape == ()
        assert not value.requires_grad


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"svr": None}, set()),
        ({"svr": "static"}, {"radius.0.value"}),
        ({"svr": "dynamic"}, {f"radius.0.mlp.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_state_dict_holds_the_training_only_radius_and_nothing_else(options, names):
    loss = SupClapLoss(batch_size=B, **options)
    assert set(loss.state_dict()) == set(dict(loss.named_parameters())) == names


def test_every_radius_parameter_gets_a_gradient(pairs):
    # DDP stops with an error on parameters that a loss does not use.
    for options in ({}, {"svr_direction": "uni"}, {"readings": PaperReadings(bi_mode="text_support")}):
        loss = criterion("dynamic", **options)
        loss(*pairs, SCALE).loss.backward()
        assert all(p.grad.abs().sum() > 0 for p in loss.parameters()), options


def test_static_radius_is_a_parameter_of_shape_one():
    assert StaticRadius(0.2).value.shape == (1,)


def test_plain_training_loop_with_the_functions_alone(pairs):
    # The ten lines that another project would write, against the criterion.
    audio, text = pairs
    radius = torch.tensor([0.125], dtype=torch.float64)
    logits = similarity_logits(text, audio, SCALE)
    loss = info_nce(logits) + info_nce(logits.T)
    loss = loss + info_nce(similarity_logits(support_vectors(text, audio, radius), audio, SCALE))
    loss = loss + info_nce(similarity_logits(support_vectors(audio, text, radius), text, SCALE))
    torch.testing.assert_close(
        loss, SupClapLoss(svr="static", radius_init=0.125)(audio, text, SCALE).loss, rtol=1e-12, atol=0
    )
