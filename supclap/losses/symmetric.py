"""L_orig, L_svr of both directions and L_cons in one pass over the rows: the default objective, and the one that costs most.

The logits of anchors serve L_orig and the radius predictor. Those of support vectors follow on a CPU, where products are
dear: with the share s = R/||a - t||, `t_sup a_j = (1 - s) t a_j + s a a_j`, whose matrices are symmetric or shared by
both directions. Otherwise rows are taken in chunks as in `chunked`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from supclap.losses.chunked import Masks, Score, fitting_rows, ready_gradients
from supclap.losses.precision import without_autocast
from supclap.losses.radius import ParameterGradients
from supclap.losses.support_vectors import share_of_distance


SQUARE_ELEMENTS = 2**24
"""Logits of a batch that is taken at once on a CPU: 64 MB in float32, five times."""
LEAST_DISTANCE = 0.01
"""For nearer pairs, float32 logits of the anchor and of its positive differ too little for the gradients of the radius."""


@dataclass
class SymmetricContrast:
    """`L_orig + alpha L_svr + beta L_cons`, both directions moved.

    Attributes:
        score: Of the logits of rows, as in `chunked`.
        one_matrix: L_orig is of the texts' rows alone (SigLIP).
        difference: (B, D), a - t, and
        distance: (B,), its length; both without graph.
        predict: Radii (2, n), texts first, from logits (2, n, N) and the slice of the rows they are of; and what makes a
            gradient of those radii one of each parameter.
        masks: For a slice of the rows, `positives` and `exclude` of L_orig.
        support_masks: The same of L_svr.
        alpha: Weight of L_svr.
        beta: Weight of L_cons.
        constrained: Whether L_cons is computed.
        clamp_radius: Move by no more than the distance of the pair.
        chunk_size: Rows at a time, at most; None for as many as suit the device.
    """

    score: Score
    one_matrix: bool
    difference: Tensor
    distance: Tensor
    predict: Callable[[Tensor, slice], tuple[Tensor, ParameterGradients]]
    masks: Masks
    support_masks: Masks
    alpha: float
    beta: float
    constrained: bool
    clamp_radius: bool
    chunk_size: int | None

    def __call__(
        self,
        text: Tensor,
        audio: Tensor,
        audio_keys: Tensor,
        text_keys: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        radius: nn.Module,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Contrast the rows `text` and `audio` (B, D) with the columns `audio_keys` and `text_keys` (N, D).

        Args:
            text, audio, audio_keys, text_keys: In float32 or float64.
            scale: 1/tau, 0-d.
            bias: 0-d, or None.
            radius: Holds the parameters behind `predict`.

        Returns:
            The total, differentiable once in all arguments; L_orig, L_svr and L_cons; radii as predicted and as used (2, B).
        """
        with without_autocast(text):
            return _Pass.apply(self, text, audio, audio_keys, text_keys, scale, bias, *radius.parameters())


class _Pass(torch.autograd.Function):
    """The gradients are made in forward, and only scaled in backward."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, terms: SymmetricContrast, text, audio, audio_keys, text_keys, scale, bias, *parameters
    ):
        rows = len(text)
        size = min(terms.chunk_size or rows, rows)
        totals = _Totals(terms, bias, parameters, wanted=any(ctx.needs_input_grad))
        square = audio_keys is audio and size == rows and rows**2 <= SQUARE_ELEMENTS
        # another device would be waited for
        if square and text.device.type == "cpu" and terms.distance.min() >= LEAST_DISTANCE:
            gradients = _square(totals, text, audio, scale)
        else:
            size = fitting_rows(size, len(audio_keys), text.device)
            gradients = _in_chunks(totals, text, audio, audio_keys, text_keys, scale, size)
        if totals.wanted:
            ctx.save_for_backward(*gradients, *totals.of_bias_and_parameters())
        contrastive, svr = totals.contrastive / rows, totals.svr / rows
        total = contrastive + terms.alpha * svr
        constraint = totals.constraint / rows if terms.constrained else svr.new_zeros(())
        total = torch.add(total, constraint, alpha=terms.beta)
        outputs = contrastive, svr, constraint, torch.cat(totals.radius, 1), torch.cat(totals.used, 1)
        ctx.mark_non_differentiable(*outputs)
        return total, *outputs

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor, *_) -> tuple[Tensor | None, ...]:
        return None, *ready_gradients(ctx, gradient)


def _square(totals, text, audio, scale) -> tuple[Tensor, Tensor, None, None, Tensor]:
    """All rows at once, which are all columns, on a CPU: seven products for twelve.

    The logits of one direction are those of the other transposed, those between keys are symmetric.
    """
    own, of_positive = (text.new_empty((2, len(text), len(text))) for _ in range(2))
    scaled_audio, scaled_text = scale * audio, scale * text
    torch.mm(scaled_text, audio.T, out=own[0])
    own[1] = own[0].T
    torch.mm(scaled_audio, audio.T, out=of_positive[0])
    torch.mm(scaled_text, text.T, out=of_positive[1])
    share, add_through = totals.shares(slice(None), own)
    weight = share[:, :, None]
    moved = torch.lerp(own, of_positive, weight)
    of_positive -= own
    _, on_moved = totals.score(slice(None), own, moved)
    if not totals.wanted:
        return None, None, None, None, None
    add_through(of_positive.mul_(on_moved).sum(-1).mul_(totals.terms.alpha))
    if totals.terms.one_matrix:
        own[1] = 0
    own.addcmul_(on_moved, totals.terms.alpha * (1 - weight))
    torch.mul(on_moved, totals.terms.alpha * weight, out=of_positive)
    # torch transposes while copying one matrix, but reads across its rows in a sum, and in a copy of several
    transposed = own[1].T.contiguous()
    own[0] += transposed
    for matrix in of_positive:
        matrix += transposed.copy_(matrix.T)
    # ||a - t||^2 = a a - 2 t a + t t: what goes through the distance is put on these logits of the pair itself
    by_distance = totals.by_distance()
    on_diagonal = by_distance * (len(text) / scale)
    own[0].diagonal().sub_(on_diagonal)
    of_positive.diagonal(dim1=1, dim2=2).add_(on_diagonal)
    mean = {"alpha": 1 / len(text)}  # a factor of a product costs nothing
    on_audio = torch.addmm(audio, of_positive[0], scaled_audio, beta=0, **mean).addmm_(own[0].T, scaled_text, **mean)
    on_text = torch.addmm(text, of_positive[1], scaled_text, beta=0, **mean).addmm_(own[0], scaled_audio, **mean)
    # each logit is counted by both of its factors, and the distance does not depend on the scale
    twice = torch.dot(text.flatten(), on_text.flatten()) + torch.dot(audio.flatten(), on_audio.flatten())
    twice -= torch.dot(by_distance, totals.terms.distance.square())
    return on_text, on_audio, None, None, twice / (2 * scale)


def _in_chunks(totals, text, audio, audio_keys, text_keys, scale, size) -> tuple[Tensor | None, ...]:
    alpha, difference = totals.terms.alpha, totals.terms.difference
    keys = torch.stack([audio_keys, text_keys])
    anchors, positives = torch.stack([text, audio]), torch.stack([audio, text])
    towards = torch.stack([difference, -difference])  # exact where logits would differ by their rounding
    on_anchors, on_positives, on_keys = torch.zeros_like(anchors), torch.empty_like(anchors), torch.zeros_like(keys)
    on_scale = 0
    for start in range(0, len(text), size):
        chunk = slice(start, start + size)
        anchor = anchors[:, chunk]
        own = torch.bmm(scale * anchor, keys.mT)
        share, add_through = totals.shares(chunk, own)
        weight = share[:, :, None]
        support = torch.lerp(anchor, positives[:, chunk], weight)
        on_own, on_moved = totals.score(chunk, own, torch.bmm(scale * support, keys.mT))
        if not totals.wanted:
            continue
        sides = slice(len(on_own))  # the texts' alone where one matrix is for both
        for vectors, gradient in ((anchor[sides], on_own), (support, on_moved.mul_(alpha))):
            on_keys[: len(gradient)].baddbmm_(gradient.mT, scale * vectors)
        on_anchors[sides, chunk] = of_own = torch.bmm(on_own, keys[sides])
        of_support = torch.bmm(on_moved, keys)
        add_through(scale * (towards[:, chunk] * of_support).sum(-1))
        on_scale += (anchor[sides] * of_own).sum() + (support * of_support).sum()
        on_anchors[:, chunk].addcmul_(of_support, 1 - weight)
        torch.mul(of_support, weight, out=on_positives[:, chunk])
    if not totals.wanted:
        return None, None, None, None, None
    gradients = (on_anchors + on_positives.flip(0)) * (scale / len(text))
    on_text, on_audio = gradients.addcmul_(totals.by_distance()[:, None], towards, value=-1)
    return on_text, on_audio, *on_keys.div_(len(text)), on_scale / len(text)


class _Totals:
    """Sums over the rows, and what the rows say about everything but the embeddings in the logits."""

    def __init__(self, terms: SymmetricContrast, bias, parameters, wanted: bool):
        self.terms, self.bias, self.parameters, self.wanted = terms, bias, len(parameters), wanted
        self.learned = wanted and any(parameter.requires_grad for parameter in parameters)
        self.closeness = share_of_distance(1, terms.distance)
        self.contrastive = self.svr = self.constraint = self.on_bias = 0
        self.radius, self.used, self.on_distance = [], [], []
        self.on_parameters: list[Tensor] = []

    def shares(self, chunk: slice, own: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        """Shares R/||a - t|| (2, n) from the logits (2, n, N) of anchors, and what takes a gradient of alpha L_svr, summed
        over the rows, by them; also adds L_cons.
        """
        terms, distance, closeness = self.terms, self.terms.distance[chunk], self.closeness[chunk]
        rows = len(terms.distance)
        radius, of_parameters = terms.predict(own, chunk)
        used = radius.minimum(distance) if terms.clamp_radius else radius
        self.radius.append(radius)
        self.used.append(used)
        if terms.constrained:
            outside = radius - radius.clamp_min(0).minimum(distance)  # see `radius_constraint`
            self.constraint += outside.abs().sum()
        share = used * closeness

        def add_through(on_share: Tensor) -> None:
            on_direction = on_share.div_(rows) * closeness
            self.on_distance.append(-share * on_direction)
            if not self.learned:
                return
            on_radius = torch.where(radius > distance, 0, on_direction) if terms.clamp_radius else on_direction
            if terms.constrained:
                on_radius = on_radius.add(outside.sign_(), alpha=terms.beta / rows)
            gradients = of_parameters(on_radius)
            if self.on_parameters:
                gradients = [total.add_(part) for total, part in zip(self.on_parameters, gradients, strict=True)]
            self.on_parameters = gradients

        return share, add_through

    def score(self, chunk: slice, own: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Add the losses of logits (2, n, N) of anchors and of support vectors; returns their gradients, on a CPU in place.

        Where one matrix is for both directions, the gradient of the first is (1, n, N).
        """
        terms = self.terms
        if self.bias is not None:
            own += self.bias
            moved += self.bias
        loss, on_moved = terms.score(moved, *terms.support_masks(chunk))
        self.svr += loss
        loss, on_own = terms.score(own[:1] if terms.one_matrix else own, *terms.masks(chunk))
        self.contrastive += loss
        if self.bias is not None and self.wanted:
            self.on_bias += on_own.sum() + terms.alpha * on_moved.sum()
        return on_own, on_moved

    def by_distance(self) -> Tensor:
        """(B,): times a - t, what an audio gains and its text loses through ||a - t|| in the shares R/||a - t||."""
        return torch.cat(self.on_distance, 1).sum(0).mul_(self.closeness)

    def of_bias_and_parameters(self) -> tuple[Tensor | None, ...]:
        of_parameters = self.on_parameters or [None] * self.parameters
        return None if self.bias is None else self.on_bias / len(self.terms.distance), *of_parameters
