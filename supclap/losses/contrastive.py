"""InfoNCE and the sigmoid loss on a matrix of logits: rows are anchors, columns are candidates."""

import torch
import torch.nn.functional as F
from torch import Tensor

from supclap.errors import SettingsError
from supclap.losses.precision import as_scalar, full_precision, without_autocast


def similarity_logits(queries: Tensor, keys: Tensor, logit_scale: Tensor | float) -> Tensor:
    """Dot products of queries (B, D) and keys (N, D) times `logit_scale` = 1/tau, as (B, N) in full precision.

    Example:
        >>> similarity_logits(torch.eye(2), torch.eye(2), logit_scale=10.0)
        tensor([[10.,  0.],
                [ 0., 10.]])
    """
    queries, keys = full_precision(queries), full_precision(keys)
    # The scale goes on the (B, D) side, so that autograd does not keep an unscaled (B, N) product for it.
    with without_autocast(queries):
        return (as_scalar(logit_scale, queries, "logit_scale") * queries) @ keys.T


def info_nce(logits: Tensor, positives: Tensor | None = None, exclude: Tensor | None = None) -> Tensor:
    """InfoNCE in one direction; the loss of a dual encoder is `info_nce(logits) + info_nce(logits.T)`.

    Several positives in a row share a uniform target: `mean_i [logsumexp_j z_ij - mean_{p in P_i} z_ip]`.

    Args:
        logits: (B, N), one row per anchor.
        positives: (B, N) bool, at least one per row, or (B,) int64, the column of the only one; the diagonal when omitted.
        exclude: (B, N) bool, columns that are neither positive nor in the denominator.

    Returns:
        Scalar, the mean over rows.

    Example:
        >>> info_nce(torch.zeros(4, 4))  # four candidates that look alike: log 4
        tensor(1.3863)
    """
    positives = _diagonal(logits) if positives is None else positives
    if exclude is not None:
        logits = logits.masked_fill(exclude, -torch.inf)
    logits = full_precision(logits)
    if positives.ndim == 1:
        return F.cross_entropy(logits, positives)
    log_probability = logits.log_softmax(-1)
    return -(log_probability.masked_fill(~positives, 0).sum(-1) / positives.sum(-1)).mean()


def siglip(logits: Tensor, positives: Tensor | None = None, logit_bias: Tensor | float | None = None) -> Tensor:
    """Pairwise sigmoid loss (https://arxiv.org/abs/2303.15343): `-(1/B) sum_ij log sigmoid(y_ij (z_ij + b))`, for both directions.

    Args:
        logits: (B, N), one row per anchor, without bias.
        positives: (B, N) bool, the pairs with label y = +1, all others have -1, or (B,) int64, the column of the only
            one; the diagonal when omitted.
        logit_bias: `b`, zero when omitted.

    Returns:
        Scalar, summed over columns and averaged over rows.

    Example:
        >>> siglip(torch.zeros(4, 4))  # four even decisions in each row: 4 log 2
        tensor(2.7726)
    """
    positives = _diagonal(logits) if positives is None else positives
    logits = full_precision(logits)
    if logit_bias is not None:
        logits = logits + as_scalar(logit_bias, logits, "logit_bias")
    if positives.ndim == 1:
        positives = positives[:, None] == torch.arange(logits.shape[1], device=logits.device)
    return -F.logsigmoid(torch.where(positives, logits, -logits)).sum(-1).mean()


def _diagonal(logits: Tensor) -> Tensor:
    if logits.shape[0] != logits.shape[1]:
        raise SettingsError(f"logits of shape {tuple(logits.shape)} have no diagonal: pass `positives` of that shape.")
    return torch.arange(len(logits), device=logits.device)
