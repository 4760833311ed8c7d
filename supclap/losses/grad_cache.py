"""Embeddings of a batch that does not fit in memory with its activations (GradCache, https://arxiv.org/abs/2101.06983)."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def embed_in_micro_batches(embed: Callable[..., Tensor], inputs: Mapping[str, Tensor], size: int) -> Tensor:
    """`embed(**inputs)` with the activations of `size` rows in memory at a time, so that a batch of any size has all its
    negatives on one small machine.

    Micro-batches are embedded without keeping activations. Once the loss has sent its gradient to the embeddings, backward
    embeds each micro-batch again, with the state of the random numbers and of autocast that it had, and goes on into the
    weights. This is gradient caching, written as activation checkpointing over micro-batches, so that DDP sees one
    backward. It costs one more forward pass. A batch norm in training mode would see micro-batches, each twice: keep it
    in eval mode.

    Args:
        embed: From keyword tensors of n rows to embeddings (n, D).
        inputs: Tensors with the same number of rows.
        size: Rows of a micro-batch.

    Returns:
        (B, D).

    Raises:
        ValueError: `size` is not positive, or the tensors differ in rows.
    """
    rows = {name: len(value) for name, value in inputs.items()}
    if size < 1 or len(set(rows.values())) != 1:
        raise ValueError(f"Micro-batches need a size of at least 1 and tensors of equal rows; got {size} and {rows}.")
    micro_batches = zip(*(value.split(size) for value in inputs.values()), strict=True)
    return torch.cat(
        [checkpoint(embed, use_reentrant=False, **dict(zip(inputs, parts, strict=True))) for parts in micro_batches]
    )
