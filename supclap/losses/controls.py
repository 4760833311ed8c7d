"""Gradients changed on purpose: controls that test what the method claims. Values stay as they are."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


class _ScaleAcross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, direction: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(direction)
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (direction,) = ctx.saved_tensors
        along = (gradient * direction).sum(-1, keepdim=True) * direction
        return along + ctx.factor * (gradient - along), None, None


def scale_perpendicular_gradient(x: Tensor, direction: Tensor, factor: float) -> Tensor:
    """Return `x` (B, D); of a gradient, it gets the part along `direction` (B, D), of unit length, whole and the rest
    times `factor`.
    """
    return _ScaleAcross.apply(x, direction.detach(), factor)


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return `x`, whose gradient is multiplied by `factor`."""
    return factor * x + (1 - factor) * x.detach()
