"""The losses of `contrastive` with memory linear in the batch: no (B, N) matrix, nor any of its gradients, ever exists.

Rows are taken in chunks. A chunk of rows has all its columns, so its loss and the gradient of its logits are known at
once; both factors of the product get their gradients while the chunk is at hand. Nothing is computed again in backward.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from supclap.losses.contrastive import as_mask
from supclap.losses.precision import as_scalar, full_precision, without_autocast


Masks = Callable[[slice], tuple[Tensor, Tensor | None]]
Score = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Of logits (..., n, N), with `positives` and `exclude` (n, N): the loss summed over rows, and in place of the logits its
gradient with respect to them."""


CHUNK_ELEMENTS = 2**20
"""Logits at a time that a CPU keeps in its cache: 4 MB in float32."""
LEAST_ROWS = 128
"""With fewer rows at a time, a product waits for its columns."""


def fitting_rows(rows: int, columns: int, device: torch.device) -> int:
    """How many of `rows` to take at a time: on a CPU no more than suit its cache, unless those are nearly all."""
    if device.type != "cpu" or rows * columns <= 4 * CHUNK_ELEMENTS:
        return rows
    return min(rows, max(LEAST_ROWS, CHUNK_ELEMENTS // columns))


def chunked_info_nce(
    queries: Tensor, keys: Tensor, logit_scale: Tensor | float, masks: Masks, chunk_size: int
) -> Tensor:
    """`info_nce(similarity_logits(queries, keys, logit_scale), positives, exclude)`.

    Args:
        queries: (B, D).
        keys: (N, D).
        logit_scale: 1/tau.
        masks: For a slice of the rows, their `positives` and `exclude` as in `info_nce`.
        chunk_size: Rows at a time, at most.

    Returns:
        Scalar, differentiable once in queries, keys and scale.
    """
    return _apply(score_info_nce, queries, keys, logit_scale, None, masks, chunk_size)


def chunked_siglip(
    queries: Tensor,
    keys: Tensor,
    logit_scale: Tensor | float,
    masks: Masks,
    chunk_size: int,
    logit_bias: Tensor | float | None = None,
) -> Tensor:
    """`siglip(similarity_logits(queries, keys, logit_scale), positives, logit_bias)`; arguments as above."""
    return _apply(score_siglip, queries, keys, logit_scale, logit_bias, masks, chunk_size)


def score_info_nce(logits: Tensor, positives: Tensor, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
    """`Score` of InfoNCE; positives may also be (n,) int64, the column of the only one."""
    if exclude is not None:
        logits.masked_fill_(exclude, -torch.inf)
    if positives.ndim == 1:
        own = positives[:, None].expand(*logits.shape[:-1], 1)
        # -log p of the positive, by way of the largest p, which never underflows: no matrix beside that of the logits
        behind = logits.amax(-1, keepdim=True).sub_(logits.gather(-1, own))
        gradient = torch.softmax(logits, -1, out=logits if logits.device.type == "cpu" else None)
        loss = behind.sub_(gradient.amax(-1, keepdim=True).log_()).sum()
        return loss, gradient.scatter_add_(-1, own, gradient.new_full((), -1).expand_as(own))
    log_probability = logits.log_softmax(-1)
    count = positives.sum(-1, keepdim=True)
    loss = -(log_probability.masked_fill(~positives, 0).sum(-1, keepdim=True) / count).sum()
    return loss, torch.exp(log_probability, out=logits).sub_(positives.to(logits.dtype) / count)


def score_siglip(logits: Tensor, positives: Tensor, _: None) -> tuple[Tensor, Tensor]:
    """`Score` of the sigmoid loss."""
    positives = as_mask(positives, logits)
    wrong = torch.where(positives, -logits, logits)
    gradient = torch.sigmoid(wrong, out=logits)
    return F.softplus(wrong, threshold=60).sum(), torch.where(positives, -gradient, gradient, out=gradient)


def _apply(score, queries, keys, logit_scale, logit_bias, masks, chunk_size) -> Tensor:
    queries, keys = full_precision(queries), full_precision(keys)
    scale = as_scalar(logit_scale, queries, "logit_scale")
    bias = None if logit_bias is None else as_scalar(logit_bias, queries, "logit_bias")
    with without_autocast(queries):
        return _Contrast.apply(queries, keys, scale, bias, score, masks, chunk_size)


class _Contrast(torch.autograd.Function):
    """Mean loss of the rows; the gradients are made in forward, and only scaled in backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, queries, keys, scale, bias, score, masks, chunk_size) -> Tensor:
        loss, on_scale, on_bias = (queries.new_zeros(()) for _ in range(3))
        wanted = any(ctx.needs_input_grad)
        on_queries, on_keys = (torch.empty_like(queries), torch.zeros_like(keys)) if wanted else (None, None)
        chunk_size = fitting_rows(min(chunk_size, len(queries)), len(keys), keys.device)
        for start in range(0, len(queries), chunk_size):
            rows = slice(start, start + chunk_size)
            scaled = scale * queries[rows]
            logits = scaled @ keys.T
            if bias is not None:
                logits += bias
            chunk_loss, gradient = score(logits, *masks(rows))
            loss += chunk_loss
            if wanted:
                torch.mm(gradient, keys, out=on_queries[rows])
                on_keys.addmm_(gradient.T, scaled)
                on_scale += (queries[rows] * on_queries[rows]).sum()
                on_bias += gradient.sum() if bias is not None else 0
        if wanted:
            rows = len(queries)
            ctx.save_for_backward(
                on_queries.mul_(scale / rows),
                on_keys.div_(rows),
                on_scale / rows,
                None if bias is None else on_bias / rows,
            )
        return loss / len(queries)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *ready_gradients(ctx, gradient), None, None, None


def ready_gradients(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The saved gradients of a loss, times what arrives for it."""
    if torch.is_grad_enabled():  # create_graph: what was made in forward would pass for a constant
        raise RuntimeError(
            "This loss makes its gradients in its forward pass and has no second derivative. For one, sum info_nce or siglip "
            "of similarity_logits and of support_vectors (supclap.losses), which are plain operations."
        )
    if gradient.device.type == "cpu" and gradient == 1:  # another device would be waited for
        return ctx.saved_tensors
    return tuple(None if part is None else gradient * part for part in ctx.saved_tensors)
