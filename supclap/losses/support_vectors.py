"""Support vectors and the constraint on their radius (SupCLAP, arXiv 2509.21033)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from supclap.losses.checks import check_choice
from supclap.losses.precision import full_precision


EPS = 1e-6
"""Pairs closer than this have no direction: float32 cannot tell unit vectors apart much below it."""


BiMode = Literal["symmetric", "text_support"]


@dataclass(frozen=True)
class PaperReadings:
    """How this library reads the paper where its text is open. No recipe changes these; they are for comparisons.

    Each default is what the paper's proof needs, or what most readers take it to say. Other gaps of the text are not
    options: one radius serves both directions, since the paper draws one curve of it; the predictor reads negatives in
    the order of the batch, as its formula lists them (`radius_predictor="summary"` does not depend on the order); a radius
    that must stay below the distance of its pair has `clamp_radius`.

    Args:
        bi_mode: What the audio-to-text half of L_svr is; the paper only says that there is one. "symmetric" moves audios
            towards their texts and contrasts them with all texts. "text_support" contrasts unmoved audios with all moved
            texts: one matrix, by rows and by columns (InfoNCE only, and not in chunks).
        normalize_support: Whether support vectors have unit length. The paper writes s as a cosine, which needs it; but its
            law of the gradient, the factor 1 - R/||a - t||, is exact only without.
        detach_positive: Whether the direction u sends no gradient to the positive. The paper is silent on the positive; the
            law for the anchor is the same either way.

    Raises:
        SettingsError: `bi_mode` has an unknown value.

    Example:
        >>> from supclap.losses import SupClapLoss
        >>> cosine = SupClapLoss(svr="static", readings=PaperReadings(normalize_support=True))
    """

    bi_mode: BiMode = "symmetric"
    normalize_support: bool = False
    detach_positive: bool = False

    def __post_init__(self):
        check_choice("bi_mode", self.bi_mode, BiMode)


def support_vectors(
    anchor: Tensor,
    positive: Tensor,
    radius: Tensor | float,
    *,
    distance: Tensor | None = None,
    detach_positive: bool = False,
    normalize: bool = False,
) -> Tensor:
    """Move each anchor by `radius` towards its positive: `t_sup = t + R u`, `u = (a - t) / ||a - t||`.

    The method is the Jacobian of `u`, so `u` stays in the graph. Of the gradient g of any loss of `t_sup`, the anchor
    receives the part along `u` unchanged and the part across it times `1 - R/||a - t||`; the positive receives
    `R/||a - t||` times the part across. Both are exact for a constant R and `normalize=False`. In a pair closer than
    1e-6, `u` is 0: its Jacobian would swamp all other gradients.

    Args:
        anchor: (..., B, D).
        positive: (..., B, D).
        radius: (..., B), one element, or a number; in the units of the embeddings.
        distance: `||a - t||` in the graph, where it is known already; computed when omitted.
        detach_positive: Send nothing to the positive through `u`; the anchor's gradient stays the same.
        normalize: Return `t_sup` at unit length (the cosine reading of the paper's s(t_sup, a)).

    Returns:
        (..., B, D) in float32, or float64 for float64 input.

    Example:
        >>> text, audio = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> support_vectors(text, audio, radius=0.25)
        tensor([[0.7500, 0.0000]])
    """
    anchor, positive = full_precision(anchor), full_precision(positive)
    if detach_positive:
        positive, distance = positive.detach(), None
    if distance is None:
        distance = torch.linalg.vector_norm(positive - anchor, dim=-1)
    radius = torch.as_tensor(radius, dtype=anchor.dtype, device=anchor.device)
    radius = radius.reshape(anchor.shape[:-1] if radius.numel() == anchor[..., 0].numel() else ())
    support = torch.lerp(anchor, positive, share_of_distance(radius, distance)[..., None])
    return F.normalize(support, dim=-1) if normalize else support


def share_of_distance(radius: Tensor, distance: Tensor) -> Tensor:
    """R/||a - t||, and 0 without direction: `t + R u` is the point at this share of the way from t to a."""
    return torch.where(distance > EPS, radius / distance.clamp_min(EPS), 0)


def radius_constraint(radius: Tensor, distance: Tensor) -> Tensor:
    """Mean over pairs of `relu(R - d) + relu(-R)`, summed over directions (paper equation 9).

    The distance is held constant: its gradient would push pairs apart to make room for R.

    Args:
        radius: (B,), or (directions, B).
        distance: (B,), `d` of the pairs.

    Returns:
        Scalar.

    Example:
        >>> radius_constraint(radius=torch.tensor([0.5, 1.5, -0.5]), distance=torch.ones(3))
        tensor(0.3333)
    """
    return (F.relu(radius - distance.detach()) + F.relu(-radius)).sum() / len(distance)
