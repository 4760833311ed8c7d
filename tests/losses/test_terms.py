"""The objective against the sum of its terms from the public functions, and its second derivative, in float64."""

import pytest
import torch
import torch.nn.functional as F

from supclap.losses import (
    SupClapLoss,
    info_nce,
    positive_first,
    radius_constraint,
    siglip,
    similarity_logits,
    support_vectors,
)
from support.builders import unit


B, D = 7, 5
IDS = torch.tensor([0, 1, 0, 2, 3, 1, 0])
OPTIONS = {
    "static": {"svr": "static"},
    "dynamic": {"batch_size": B},
    "clamped": {"batch_size": B, "clamp_radius": True},
    "summary": {"radius_predictor": "summary"},
}


def case(objective, name, **options):
    """A criterion whose radii lie on both sides of the distances, and its inputs as leaves."""
    torch.manual_seed(0)
    options = {"svr_weight": 0.7, "constraint_weight": 0.3, "radius_init": 0.9} | OPTIONS[name] | options
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
    module = loss.radius[0]
    for anchor, positive, own in sides:
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
    return contrastive + loss.svr_weight * svr + loss.constraint_weight * constraint, contrastive, svr, constraint


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("ids", [None, IDS], ids=["", "ids"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_values_and_gradients_are_those_of_the_sum_of_the_terms(objective, name, ids, chunk_size):
    loss, inputs = case(objective, name, loss_chunk_size=chunk_size)
    output = loss(inputs["audio"], inputs["text"], inputs["scale"], inputs.get("bias"), ids)
    expected, *parts = by_terms(loss, **inputs, ids=ids)
    torch.testing.assert_close([output.loss, *output.parts.values()], [expected, *parts], rtol=1e-12, atol=1e-12)
    leaves = [*inputs.values(), *loss.parameters()]
    got = torch.autograd.grad(3 * output.loss, leaves)
    torch.testing.assert_close(got, torch.autograd.grad(3 * expected, leaves), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("distance", [0.02, 1e-3, 1e-4])
def test_gradients_of_pairs_that_nearly_coincide_hold_in_float32(objective, chunk_size, distance):
    loss, inputs = case(objective, "static", radius_init=0.1, loss_chunk_size=chunk_size)
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
    loss, inputs = case("infonce", "dynamic", svr_weight=0.0, constraint_weight=0.0, loss_chunk_size=chunk_size)
    logits = similarity_logits(inputs["text"], inputs["audio"], inputs["scale"])
    leaves = list(inputs.values())
    expected = torch.autograd.grad(info_nce(logits) + info_nce(logits.T), leaves)
    got = torch.autograd.grad(loss(inputs["audio"], inputs["text"], inputs["scale"]).loss, leaves)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("frozen", ["audio", "text", "scale", "radius", "radius.0.mlp.2"])
def test_the_others_get_their_gradients_when_one_is_frozen(frozen, chunk_size):
    loss, inputs = case("infonce", "dynamic", loss_chunk_size=chunk_size)
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


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_the_value_is_the_same_without_gradients(chunk_size):
    loss, inputs = case("siglip", "clamped", loss_chunk_size=chunk_size)
    arguments = (inputs["audio"], inputs["text"], inputs["scale"], inputs["bias"])
    expected = loss(*arguments)
    with torch.no_grad():
        output = loss(*arguments)
    torch.testing.assert_close([output.loss, output.radii], [expected.loss.detach(), expected.radii], rtol=0, atol=0)


@pytest.mark.parametrize("svr_direction", ["uni", "bi"])
@pytest.mark.parametrize("svr", ["static", "dynamic"])
@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_second_derivatives_of_the_whole_loss(objective, svr, svr_direction):
    # The dynamic radius starts constant (last layer of weight 0), which is what its detached input means to gradgradcheck.
    loss = SupClapLoss(objective, svr, svr_direction, batch_size=3, radius_init=0.4, constraint_weight=0.3).double()
    audio, text = unit(3, 4, seed=1).requires_grad_(), unit(3, 4, seed=2).requires_grad_()
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True) if objective == "siglip" else None

    def total(audio, text, scale, bias):
        return loss(audio, text, scale, bias, ids=torch.tensor([0, 1, 0])).loss

    assert torch.autograd.gradgradcheck(total, (audio, text, scale, bias))
