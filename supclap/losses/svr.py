"""Support vector regularisation: the support vectors and the constraint on their radius (SupCLAP, arXiv 2509.21033)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from supclap.losses.precision import full_precision


EPS = 1e-6
"""Pairs closer than this have no direction: float32 unit vectors are not told apart below it."""


def support_vectors(
    anchor: Tensor, positive: Tensor, radius: Tensor | float, *, detach_positive: bool = False, normalize: bool = False
) -> Tensor:
    """Move each anchor by `radius` towards its positive: `t_sup = t + R u`, `u = (a - t) / max(||a - t||, 1e-6)`.

    The method is the Jacobian of `u`, which is why `u` stays in the graph: for any loss of `t_sup` with gradient g, the
    anchor receives the part of g along `u` unchanged and the part across it times `1 - R / ||a - t||`; the positive
    receives `R / ||a - t||` times the part across. Both are exact for a constant R and `normalize=False`. For a pair
    closer than 1e-6 `u` is held constant, since its Jacobian `R / ||a - t||` would swamp every other gradient.

    Args:
        anchor: (B, D).
        positive: (B, D).
        radius: (B,), one element, or a number; in the units of the embeddings.
        detach_positive: Send nothing to the positive through `u`; the anchor's gradient is the same.
        normalize: Bring `t_sup` back to unit length (the cosine reading of s(t_sup, a)); the law above then fails.

    Returns:
        (B, D) in float32, or float64 for float64 input.
    """
    anchor, positive = full_precision(anchor), full_precision(positive)
    difference = (positive.detach() if detach_positive else positive) - anchor
    distance = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    direction = difference / distance.clamp_min(EPS)
    direction = torch.where(distance > EPS, direction, direction.detach())
    radius = torch.as_tensor(radius, dtype=anchor.dtype, device=anchor.device).reshape(-1, 1)
    support = anchor + radius * direction
    return F.normalize(support, dim=-1) if normalize else support


def radius_constraint(radius: Tensor, distance: Tensor) -> Tensor:
    """Hinge that keeps a predicted radius between 0 and the distance of its pair (paper equation 9).

    Args:
        radius: (B,).
        distance: (B,), `||a - t||`. Held constant: its gradient would push the pair apart to make room for R.

    Returns:
        Scalar, the mean over the batch of `relu(R - d) + relu(-R)`.
    """
    return (F.relu(radius - distance.detach()) + F.relu(-radius)).mean()
