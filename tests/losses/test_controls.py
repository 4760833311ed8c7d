"""The controls: the push of L_orig without its perpendicular part, and a larger pull, against gradients taken apart by hand."""

import pytest
import torch
import torch.nn.functional as F

from supclap.losses import SupClapLoss
from support.builders import unit


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
    criterion = SupClapLoss(objective, svr=None, perpendicular_push=factor, pull_weight=pull_weight)
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
    same = SupClapLoss(svr=None, perpendicular_push=1.0, pull_weight=1.0)
    assert not same.controlled
    almost = SupClapLoss(svr=None, perpendicular_push=1 - 1e-12)
    torch.testing.assert_close(torch.autograd.grad(almost(*pairs, SCALE).loss, pairs), plain, rtol=1e-9, atol=1e-11)
