"""Support vectors and the constraint on their radius (SupCLAP, arXiv 2509.21033)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from supclap.losses.precision import full_precision


EPS = 1e-6
"""Pairs closer than this have no direction: float32 cannot tell unit vectors apart much below it."""


def support_vectors(
    anchor: Tensor,
    positive: Tensor,
    radius: Tensor | float,
    *,
    distance: Tensor | None = None,
    detach_positive: bool = False,
    detach_direction: bool = False,
    normalize: bool = False,
) -> Tensor:
    """Move each anchor by `radius` towards its positive: `t_sup = t + R u`, `u = (a - t) / ||a - t||`.

    The method is the Jacobian of `u`, so `u` stays in the graph. Of the gradient g of any loss of `t_sup`, the anchor
    receives the part along `u` unchanged and the part across it times `1 - R/||a - t||`; the positive receives
    `R/||a - t||` times the part across. Both are exact for a constant R and `normalize=False`. In a pair closer than
    1e-6, `u` is 0: its Jacobian would swamp all other gradients.

    Args:
        anchor: (B, D).
        positive: (B, D).
        radius: (B,), one element, or a number; in the units of the embeddings.
        distance: (B,), `||a - t||` in the graph, to share it between directions; computed when omitted.
        detach_positive: Send nothing to the positive through `u`; the anchor's gradient stays the same.
        detach_direction: Hold `u` constant. A control without the method: nothing is contracted, and L_svr only weighs the
            negatives anew.
        normalize: Return `t_sup` at unit length (the cosine reading of the paper's s(t_sup, a)).

    Returns:
        (B, D) in float32, or float64 for float64 input.
    """
    anchor, positive = full_precision(anchor), full_precision(positive)
    if detach_positive:
        positive, distance = positive.detach(), None
    if distance is None:
        distance = torch.linalg.vector_norm(positive - anchor, dim=-1)
    if detach_direction:
        distance = distance.detach()
    radius = torch.as_tensor(radius, dtype=anchor.dtype, device=anchor.device).flatten()
    share = share_of_distance(radius, distance)[:, None]
    if detach_direction:
        support = anchor + share * (positive - anchor).detach()
    else:
        support = torch.lerp(anchor, positive, share)
    return F.normalize(support, dim=-1) if normalize else support


def share_of_distance(radius: Tensor, distance: Tensor) -> Tensor:
    """R/||a - t||, and 0 without direction: `t + R u` is the point at this share of the way from t to a."""
    return torch.where(distance > EPS, radius / distance.clamp_min(EPS), 0)


def radius_constraint(radius: Tensor, distance: Tensor) -> Tensor:
    """Mean of `relu(R - d) + relu(-R)` for radii and pair distances (B,) (paper equation 9).

    The distance is held constant: its gradient would push pairs apart to make room for R.
    """
    return (F.relu(radius - distance.detach()) + F.relu(-radius)).mean()
