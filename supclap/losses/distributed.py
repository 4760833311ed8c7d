"""Columns of the contrast: the pairs of all ranks, gathered with gradient."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


@dataclass
class Columns:
    """What the B local rows are contrasted with.

    Attributes:
        audio: (N, D) audio embeddings of all ranks, in rank order.
        text: (N, D) text embeddings of all ranks.
        own: (B,) int64, the column of each row's own positive.
        positives: (B, N) bool, the columns of the same clip as the row (own column included).
        sizes: Rows on each rank; None when the local rows are the whole batch.
        weight: Factor that turns a mean over local rows into this rank's share of the mean over all rows, scaled so that
            the average over ranks (which is what DDP takes) is that mean. 1 when all ranks hold the same number of rows.
    """

    audio: Tensor
    text: Tensor
    own: Tensor
    positives: Tensor
    sizes: list[int] | None
    weight: float


class _GatherRows(torch.autograd.Function):
    """All-gather whose backward sums the gradients that all ranks hold for the local rows; DDP then averages."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        # Collectives want equal shapes: fill up to the longest rank, cut after.
        padded = x.new_zeros((max(sizes), *x.shape[1:]))
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.split(ctx.sizes)[dist.get_rank()], None


def gather_rows(x: Tensor, sizes: list[int] | None) -> Tensor:
    """Concatenate the rows of all ranks, differentiably; `sizes` is the number of rows on each, None for no gathering."""
    return x if sizes is None else _GatherRows.apply(x, sizes)


def rows_per_rank(x: Tensor) -> list[int]:
    """Return the number of rows of `x` on every rank (one small collective and a host synchronisation)."""
    counts = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([len(x)], device=x.device))
    return torch.cat(counts).tolist()


def gather_columns(audio: Tensor, text: Tensor, ids: Tensor | None = None, gather: bool = True) -> Columns:
    """Gather the columns for local rows `audio` and `text` (B, D) with clip `ids` (B,).

    B may differ between ranks. Without an initialised process group of more than one rank, or with `gather=False`, the
    local rows are the columns.
    """
    distributed = gather and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    sizes = rows_per_rank(audio) if distributed else None
    offset = sum(sizes[: dist.get_rank()]) if sizes else 0
    total = sum(sizes) if sizes else len(audio)
    own = torch.arange(offset, offset + len(audio), device=audio.device)
    positives = own[:, None] == torch.arange(total, device=audio.device)
    if ids is not None:
        positives = positives | (ids[:, None] == gather_rows(ids, sizes))
    return Columns(
        audio=gather_rows(audio, sizes),
        text=gather_rows(text, sizes),
        own=own,
        positives=positives,
        sizes=sizes,
        weight=len(audio) * len(sizes) / total if sizes else 1.0,
    )
