"""Columns of the contrast: the pairs of all ranks, gathered with gradient."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


@dataclass
class Columns:
    """What the B rows of this rank are contrasted with.

    Attributes:
        audio: (N, D) audio embeddings of all ranks, in rank order.
        text: (N, D) text embeddings of all ranks.
        own: (B,) int64, the column of each row's own positive.
        row_ids: (B,) clip of each row; None when every row is a clip of its own.
        column_ids: (N,) clip of each column; None when `row_ids` is.
        sizes: Number of rows of each rank; None when the rows are the whole batch.
        weight: Factor for a mean over the rows of this rank. The average of the weighted means over ranks, which is what
            DDP takes, is the mean over all rows. It is 1 unless ranks differ in size.
    """

    audio: Tensor
    text: Tensor
    own: Tensor
    row_ids: Tensor | None
    column_ids: Tensor | None
    sizes: list[int] | None
    weight: float

    def same_clip(self, rows: slice = slice(None)) -> Tensor | None:
        """For a slice of the rows, (n, N) bool: the columns of the same clip, own column included; None without ids."""
        if self.row_ids is None:
            return None
        return self.row_ids[rows, None] == self.column_ids


class _GatherRows(torch.autograd.Function):
    """All-gather whose backward sums what all ranks' losses say about the local rows; DDP then averages over ranks."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        # The collective needs equal shapes, so that each rank fills its rows up to the largest one; the rest is cut off.
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
    """Concatenate the rows of all ranks with gradient; return `x` itself where `sizes`, those of `Columns`, is None."""
    return x if sizes is None else _GatherRows.apply(x, sizes)


def gather_columns(audio: Tensor, text: Tensor, ids: Tensor | None = None, gather: bool = True) -> Columns:
    """Gather the columns for this rank's `audio` and `text` (B, D), and clip `ids` (B,), where B may differ by rank.

    Without `gather`, or a process group of more than one rank, the rows are the columns.
    """
    rank, sizes = 0, None
    if gather and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        rank = dist.get_rank()
        counts = [torch.zeros(1, dtype=torch.int64, device=audio.device) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.tensor([len(audio)], device=audio.device))
        sizes = torch.cat(counts).tolist()
    per_rank = sizes or [len(audio)]
    own = sum(per_rank[:rank]) + torch.arange(len(audio), device=audio.device)
    column_ids = None if ids is None else gather_rows(ids, sizes)
    weight = len(audio) * len(per_rank) / sum(per_rank)
    return Columns(gather_rows(audio, sizes), gather_rows(text, sizes), own, ids, column_ids, sizes, weight)
