"""Pull, push and drift: what a step does to embeddings, taken apart along and across the way to the positive.

The paper leaves open between which vectors its figure of the drift takes the cosine. These are our definitions; no number
here claims to be the paper's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from supclap.losses.contrastive import similarity_logits
from supclap.losses.support_vectors import EPS, share_of_distance


def pull_direction(anchor: Tensor, positive: Tensor) -> Tensor:
    """Unit vectors (B, D) from anchors (B, D) to their positives (B, D), 0 for a pair closer than 1e-6."""
    difference = positive - anchor
    distance = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    return torch.where(distance > EPS, difference / distance.clamp_min(EPS), 0)


def split(force: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of forces (..., D) along and across `direction` (..., D), of unit length; their sum is `force`."""
    along = (force * direction).sum(-1, keepdim=True) * direction
    return along, force - along


def pull_cosine(move: Tensor, anchor: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """How far moves of embeddings go where the pull goes: the mean cosine between `move` (B, D) and a - t.

    `move` is a negative gradient, or the change of the embedding in a step. Drift is 1 minus this cosine.

    Args:
        move: (B, D).
        anchor: (B, D), unit length, where the move starts.
        positive: (B, D).

    Returns:
        Two scalars: the cosine in the space of the embeddings, and the one in the tangent space of the sphere, after the
        part along the anchor was taken out of both vectors. The second is what normalized embeddings can follow.
    """
    direction = pull_direction(anchor, positive)
    ambient = F.cosine_similarity(move, direction, dim=-1)
    tangent = F.cosine_similarity(split(move, anchor)[1], split(direction, anchor)[1], dim=-1)
    return ambient.mean(), tangent.mean()


def push(
    anchor: Tensor,
    positive: Tensor,
    negatives: Tensor,
    logit_scale: Tensor | float,
    logit_bias: Tensor | float | None = None,
    same_clip: Tensor | None = None,
) -> Tensor:
    """Force that negatives put on each anchor: `-(1/tau) sum_j P_j k_j`, the negative gradient of its own row of the loss.

    Args:
        anchor: (B, D).
        positive: (B, D).
        negatives: (M, D), negatives of the anchors.
        logit_scale: 1/tau.
        logit_bias: Bias of SigLIP, whose `P_j = sigmoid(z_j + b)`; None for InfoNCE, whose `P_j` is the softmax over the
            positive and the negatives.
        same_clip: (B, M) bool, columns that are no negatives of an anchor, since they are of its clip; none when omitted.

    Returns:
        (B, D).
    """
    logits = similarity_logits(anchor, negatives, logit_scale)
    if same_clip is not None:
        logits = logits.masked_fill(same_clip, -torch.inf)
    if logit_bias is not None:
        weights = torch.sigmoid(logits + logit_bias)
    else:
        own = logit_scale * (anchor * positive).sum(-1, keepdim=True)
        weights = torch.cat([own, logits], dim=1).softmax(-1)[:, 1:]
    return -logit_scale * weights @ negatives


def push_statistics(
    anchor: Tensor,
    positive: Tensor,
    batches: list[Tensor],
    logit_scale: Tensor | float,
    logit_bias: Tensor | float | None = None,
    same_clip: list[Tensor | None] | None = None,
) -> dict[str, Tensor]:
    """The push of L_orig on held anchors, from each of several batches of negatives.

    Args:
        anchor: (B, D).
        positive: (B, D).
        batches: The memory: negatives of past batches, each (n, D).
        logit_scale: 1/tau.
        logit_bias: As in `push`.
        same_clip: As in `push`, one for each batch.

    Returns:
        Scalars, means over anchors: `push_ratio`, norm of the part across the pull over that of the part along it,
        averaged over batches too; `push_global`, norm of the mean over batches of the part across: where all negatives
        push; `push_local`, root mean square of what the batches deviate from it: what the draw of the batch adds.
    """
    direction = pull_direction(anchor, positive)
    same_clip = [None] * len(batches) if same_clip is None else same_clip
    pushes = torch.stack(
        [
            push(anchor, positive, negatives, logit_scale, logit_bias, same)
            for negatives, same in zip(batches, same_clip, strict=True)
        ]
    )
    along, across = split(pushes, direction)
    ratio = across.norm(dim=-1) / along.norm(dim=-1).clamp_min(torch.finfo(across.dtype).tiny)
    mean = across.mean(0)
    return {
        "push_ratio": ratio.mean(),
        "push_global": mean.norm(dim=-1).mean(),
        "push_local": (across - mean).square().sum(-1).mean(0).sqrt().mean(),
    }


def radius_statistics(radii: Tensor, distance: Tensor) -> dict[str, Tensor]:
    """Deciles 1, 5 and 9 of the radii (directions, B) and of the factors `1 - R/||a - t||` on the push across the pull."""
    shrink = 1 - share_of_distance(radii, distance)
    return {
        f"{name}_p{percent}": torch.quantile(values.float().flatten(), percent / 100)
        for name, values in (("radius", radii), ("shrink", shrink))
        for percent in (10, 50, 90)
    }
