"""A loss over many rows, a few rows at a time: memory is linear in the batch, as no (B, N) matrix ever exists."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.func import functional_call


Terms = tuple[Tensor, Tensor, Tensor]
"""Of some rows: the mean loss, a scalar; other means; and values of each row, in the last dimension."""


def mean_over_chunks(
    function: Callable[..., Terms], rows: int, size: int, module: nn.Module | None, *inputs: Tensor | None
) -> Terms:
    """Take the mean of what `function` says about `size` rows at a time, with the matrices of one chunk in memory.

    Activation checkpointing would compute each chunk twice, the second time in backward. Here autograd computes the
    gradients of a chunk while its matrices are at hand, in the forward pass; backward only scales them. The price is that
    the result cannot be differentiated a second time, which ends in an error.

    Args:
        function: Called as `function(slice, module, *inputs)`. It must not use other tensors that need a gradient.
        rows: Number of rows.
        size: Rows of a chunk.
        module: What `function` calls, or None; its parameters receive gradients too.
        inputs: Tensors, which receive gradients where they need them, or None.

    Returns:
        The loss, differentiable once; the other means and the values of all rows are detached.
    """
    parameters = {} if module is None else dict(module.named_parameters())

    def of_chunk(chunk: slice, *leaves: Tensor | None) -> Terms:
        values, weights = leaves[: len(inputs)], dict(zip(parameters, leaves[len(inputs) :], strict=True))
        # With the parameters themselves, the gradients would go to their `.grad` already in the forward pass.
        loss, means, per_row = function(chunk, lambda *args: functional_call(module, weights, args), *values)
        share = per_row.shape[-1] / rows
        return share * loss, share * means.detach(), per_row.detach()

    starts = range(0, rows, size)
    chunks = [slice(start, start + size) for start in starts]
    return _SumOfChunks.apply(of_chunk, chunks, torch.is_grad_enabled(), *inputs, *parameters.values())


class _SumOfChunks(torch.autograd.Function):
    """The sum of a function's first two results over chunks, and its third results one after the other."""

    @staticmethod
    def forward(ctx: FunctionCtx, function, chunks: list[slice], learning: bool, *inputs: Tensor | None) -> Terms:
        needed = [learning and needs for needs in ctx.needs_input_grad[3:]]
        leaves = [
            None if value is None else value.detach().requires_grad_(needs)
            for value, needs in zip(inputs, needed, strict=True)
        ]
        results = []
        for chunk in chunks:
            with torch.set_grad_enabled(any(needed)):
                loss, *others = function(chunk, *leaves)
            if loss.requires_grad:
                loss.backward()  # adds to the gradients of the leaves, and frees the matrices of the chunk
            results.append((loss.detach(), *others))
        ctx.save_for_backward(*(None if leaf is None else leaf.grad for leaf in leaves))
        losses, means, per_row = zip(*results, strict=True)
        outputs = sum(losses), sum(means), torch.cat(per_row, dim=-1)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor, *_) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: the gradients made in forward would pass for constants
            raise RuntimeError(
                "A loss in chunks has no second derivative: leave out loss_chunk_size, which takes all rows at once."
            )
        return None, None, None, *(None if part is None else gradient * part for part in ctx.saved_tensors)
