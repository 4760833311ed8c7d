"""Controls of the study: SupCLAP's loss with gradients changed on purpose, to test what the method claims.

The values of the loss stay as they are. A row of `configs/study/rows` sets a control under its key `controls`, and
`svr_study.py` builds this objective from it.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from supclap.errors import SettingsError
from supclap.losses import ContrastiveLossOutput, SupClapLoss, info_nce, siglip, similarity_logits
from supclap.losses.diagnostics import pull_direction
from supclap.losses.support_vectors import share_of_distance


class ControlledLoss(SupClapLoss):
    """`SupClapLoss` for one process, with the controls of the study.

    Args:
        pull_weight: Factor on the gradient of the positive logits of L_orig; for `svr=None`.
        perpendicular_push: Factor on the part across a - t of what the other logits of L_orig send to each embedding; for
            `svr=None`.
        detach_direction: Hold the direction u of support vectors constant. Then nothing is contracted, and L_svr only
            weighs the negatives anew.
        arguments: Those of `SupClapLoss`.

    Raises:
        SettingsError: A control of the plain loss comes with SVR, or the one of SVR without it.
    """

    def __init__(
        self, *, pull_weight: float = 1.0, perpendicular_push: float = 1.0, detach_direction: bool = False, **arguments
    ):
        super().__init__(**arguments, gather=False)
        self.pull_weight, self.perpendicular_push = pull_weight, perpendicular_push
        self.detach_direction = detach_direction
        self.of_plain_loss = pull_weight != 1 or perpendicular_push != 1
        if (self.of_plain_loss and self.svr is not None) or (detach_direction and self.svr is None):
            raise SettingsError(
                "pull_weight and perpendicular_push are controls of the plain loss (svr null), detach_direction is one of "
                "support vectors."
            )

    def forward(self, audio_embeds, text_embeds, logit_scale, logit_bias=None, ids=None) -> ContrastiveLossOutput:
        output = super().forward(audio_embeds, text_embeds, logit_scale, logit_bias, ids)
        if not self.of_plain_loss:
            return output
        # The pull goes to the embeddings themselves, through the logits of the pairs; the push to what lets only a share
        # of its perpendicular part through.
        audio, text = audio_embeds, text_embeds
        pulling = scale_gradient(logit_scale * (text * audio).sum(-1), self.pull_weight)
        direction = pull_direction(text, audio)
        audio, text = (scale_perpendicular_gradient(x, direction, self.perpendicular_push) for x in (audio, text))
        own = torch.arange(len(audio), device=audio.device)[:, None]
        logits = similarity_logits(text, audio, logit_scale).scatter(1, own, pulling[:, None])
        positives = None if ids is None else ids[:, None] == ids
        if self.objective == "siglip":
            return replace(output, loss=siglip(logits, positives, logit_bias))
        return replace(output, loss=info_nce(logits, positives) + info_nce(logits.T, positives))

    def _support_vectors(self, anchor: Tensor, positive: Tensor, radius: Tensor, distance: Tensor) -> Tensor:
        if not self.detach_direction:
            return super()._support_vectors(anchor, positive, radius, distance)
        share = share_of_distance(radius, distance.detach())[..., None]
        return anchor + share * (positive - anchor).detach()


class _ScaleAcross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, direction: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(direction)
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (direction,) = ctx.saved_tensors
        along = (gradient * direction).sum(-1, keepdim=True) * direction
        return along + ctx.factor * (gradient - along), None, None


def scale_perpendicular_gradient(x: Tensor, direction: Tensor, factor: float) -> Tensor:
    """Return `x` (B, D). Of a gradient, it gets the part along `direction` (B, D), of unit length, unchanged, and the rest
    times `factor`.
    """
    return _ScaleAcross.apply(x, direction.detach(), factor)


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return `x`, whose gradient is multiplied by `factor`."""
    return factor * x + (1 - factor) * x.detach()
