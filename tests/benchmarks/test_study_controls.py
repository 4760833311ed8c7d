"""The controls of the study: their gradients against torch's own, taken apart by hand."""

import sys

import pytest
import torch
import torch.nn.functional as F

from supclap.errors import SettingsError
from supclap.losses import SupClapLoss, support_vectors
from support.builders import unit
from support.paths import ROOT


sys.path.insert(0, str(ROOT / "benchmarks"))
from study_controls import ControlledLoss


B, D, SCALE = 6, 5, 4.0


@pytest.fixture
def pairs():
    return unit(B, D, seed=1).requires_grad_(), unit(B, D, seed=2).requires_grad_()


def on_logits(objective, audio, text):
    """The gradient of torch's own loss with respect to the matrix of logits."""
    logits = (SCALE * text @ audio.T).detach().requires_grad_()
    if objective == "siglip":
        loss = F.softplus(logits * (1 - 2 * torch.eye(B, dtype=torch.float64))).sum() / B
    else:
        loss = F.cross_entropy(logits, torch.arange(B)) + F.cross_entropy(logits.T, torch.arange(B))
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize(("factor", "pull_weight"), [(0.0, 1.0), (0.25, 1.0), (1.0, 2.0), (0.5, 2.0)])
def test_push_keeps_its_parallel_part_and_has_its_perpendicular_part_scaled(pairs, objective, factor, pull_weight):
    audio, text = pairs
    criterion = ControlledLoss(objective=objective, svr=None, perpendicular_push=factor, pull_weight=pull_weight)
    loss = criterion(audio, text, SCALE).loss
    got = torch.autograd.grad(loss, (text, audio))
    value, gradient = on_logits(objective, audio, text)
    torch.testing.assert_close(loss.detach(), value, rtol=1e-12, atol=0)
    own = gradient.diagonal()[:, None]
    off = gradient - torch.diag(gradient.diagonal())
    direction = F.normalize((audio - text).detach(), dim=-1)
    for side, (anchor, other, matrix) in enumerate(((text, audio, off), (audio, text, off.T))):
        pull = SCALE * own * other.detach()
        push = SCALE * matrix @ other.detach()
        along = (push * direction).sum(1, keepdim=True) * direction
        expected = pull_weight * pull + along + factor * (push - along)
        torch.testing.assert_close(got[side], expected, rtol=1e-10, atol=1e-12)
        assert anchor.grad is None


def test_factors_of_one_are_the_plain_loss(pairs):
    plain = torch.autograd.grad(SupClapLoss(svr=None)(*pairs, SCALE).loss, pairs)
    almost = ControlledLoss(svr=None, perpendicular_push=1 - 1e-12)
    torch.testing.assert_close(torch.autograd.grad(almost(*pairs, SCALE).loss, pairs), plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_the_same_clip_is_no_negative_under_a_control_either(pairs, objective):
    ids = torch.tensor([0, 1, 0, 2, 3, 1])
    expected = SupClapLoss(objective, svr=None)(*pairs, SCALE, ids=ids).loss
    got = ControlledLoss(objective=objective, svr=None, pull_weight=2.0)(*pairs, SCALE, ids=ids).loss
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_a_constant_direction_gives_the_text_the_whole_gradient_and_the_audio_none_of_it(pairs):
    options = {"svr": "static", "svr_direction": "uni", "radius_init": 0.25}
    loss = ControlledLoss(detach_direction=True, **options).double()(*pairs, SCALE).loss
    on_audio, on_text = torch.autograd.grad(loss - SupClapLoss(svr=None)(*pairs, SCALE).loss, pairs)
    audio, text = (x.detach() for x in pairs)
    support = support_vectors(text, audio, 0.25).requires_grad_()
    audio.requires_grad_()
    expected = torch.autograd.grad(F.cross_entropy(SCALE * support @ audio.T, torch.arange(B)), (audio, support))
    torch.testing.assert_close((on_audio, on_text), expected, rtol=0, atol=1e-7)  # the radius is a float32 number


@pytest.mark.parametrize("options", [{"pull_weight": 2.0, "svr": "static"}, {"detach_direction": True, "svr": None}])
def test_a_control_of_another_loss_is_refused(options):
    with pytest.raises(SettingsError, match="controls of the plain loss"):
        ControlledLoss(**options)
