"""The training objective of SupCLAP for the embeddings of any dual encoder."""

from dataclasses import dataclass
from itertools import cycle
from typing import Literal

import torch
from torch import Tensor, nn

from supclap.losses.contrastive import info_nce, siglip, similarity_logits
from supclap.losses.distributed import Columns, gather_columns, gather_rows
from supclap.losses.precision import as_scalar, full_precision
from supclap.losses.radius import SimilarityRadius, StaticRadius, SummaryRadius, positive_first
from supclap.losses.svr import EPS, radius_constraint, support_vectors


@dataclass
class ContrastiveLossOutput:
    """Loss of a batch; on several ranks, the average of each value over ranks is the value of the global batch.

    Attributes:
        loss: Scalar, `L_orig + alpha L_svr + beta L_cons`.
        parts: Detached scalars, unweighted: `loss_contrastive`, `loss_svr`, `loss_constraint`; 0 for a term not in use.
        diagnostics: Detached scalars: `pair_distance` (mean ||a - t||), `logit_scale`, `temperature`; with SVR also
            `radius` (mean R), `radius_out_of_range` (share of R outside [0, ||a - t||]) and `contraction` (mean factor
            1 - R/||a - t|| on the perpendicular push), over all directions in use.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    diagnostics: dict[str, Tensor]


class SupClapLoss(nn.Module):
    """Contrastive loss with support vector regularisation: `L = L_orig + alpha L_svr + beta L_cons`.

    L_orig is InfoNCE summed over both directions (paper equation 5), or SigLIP, whose one matrix covers both. L_svr (6)
    is the same loss with anchors moved towards their positives; its denominator includes the positive. L_cons (9) is for
    the dynamic radius only. `svr=None` leaves the plain loss. Rows are the pairs of this rank, columns those of all
    ranks, such that DDP's averaged gradient equals that of one process with the full batch.

    The only parameters, and all that is in `state_dict`, are those of the radius.

    Args:
        objective: "infonce" or "siglip".
        svr: "dynamic" predicts a radius per anchor, "static" learns one number, None turns SVR off.
        svr_direction: "uni" contrasts moved texts with all audios, "bi" covers the other direction too.
        bi_mode: How: "symmetric" contrasts moved audios with all texts; "text_support" contrasts audios with all moved
            texts (InfoNCE only).
        radius_predictor: "similarities", the paper's, for one `batch_size`, or "summary", for any.
        batch_size: N of `SimilarityRadius`.
        alpha: Weight of L_svr.
        beta: Weight of L_cons.
        radius_init: Radius at the start.
        share_radius: One radius for both directions of "symmetric", instead of one each.
        sort_negatives, on_batch_mismatch: See `SimilarityRadius`.
        clamp_radius: Build support vectors with `min(R, ||a - t||)`, so that the perpendicular push is never reversed.
        normalize_support, detach_positive: See `support_vectors`.
        gather: Contrast with all ranks of an initialised `torch.distributed`.

    Raises:
        ValueError: An option has an unknown value, or options do not go together.
    """

    def __init__(
        self,
        objective: Literal["infonce", "siglip"] = "infonce",
        svr: Literal["dynamic", "static"] | None = "dynamic",
        svr_direction: Literal["bi", "uni"] = "bi",
        bi_mode: Literal["symmetric", "text_support"] = "symmetric",
        radius_predictor: Literal["similarities", "summary"] = "similarities",
        batch_size: int | None = None,
        alpha: float = 1.0,
        beta: float = 0.01,
        radius_init: float = 0.1,
        share_radius: bool = True,
        sort_negatives: bool = False,
        on_batch_mismatch: Literal["error", "pad"] = "error",
        clamp_radius: bool = False,
        normalize_support: bool = False,
        detach_positive: bool = False,
        gather: bool = True,
    ):
        super().__init__()
        for name, value, allowed in (
            ("objective", objective, ("infonce", "siglip")),
            ("svr", svr, ("dynamic", "static", None)),
            ("svr_direction", svr_direction, ("bi", "uni")),
            ("bi_mode", bi_mode, ("symmetric", "text_support")),
            ("radius_predictor", radius_predictor, ("similarities", "summary")),
            ("on_batch_mismatch", on_batch_mismatch, ("error", "pad")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {value!r}.")
        self.objective, self.svr, self.alpha, self.beta, self.gather = objective, svr, alpha, beta, gather
        self.symmetric = svr_direction == "bi" and bi_mode == "symmetric"
        self.text_support = svr_direction == "bi" and bi_mode == "text_support"
        self.clamp_radius = clamp_radius
        self.support_options = {"detach_positive": detach_positive, "normalize": normalize_support}
        self._checked_unit_length = False
        if svr and objective == "siglip" and self.text_support:
            raise ValueError(
                "Under SigLIP one matrix covers both directions, so bi_mode='text_support' would be "
                "svr_direction='uni': choose that, or bi_mode='symmetric'."
            )
        if svr == "dynamic" and radius_predictor == "similarities" and batch_size is None:
            raise ValueError(
                "radius_predictor='similarities' needs batch_size, the number of pairs contrasted (local batch x ranks): "
                "pass it, or choose radius_predictor='summary', which takes any number."
            )

        def build_radius() -> nn.Module:
            if svr == "static":
                return StaticRadius(radius_init)
            if radius_predictor == "summary":
                return SummaryRadius(radius_init=radius_init)
            return SimilarityRadius(
                batch_size, radius_init, sort_negatives=sort_negatives, on_batch_mismatch=on_batch_mismatch
            )

        radii = 0 if svr is None else 2 if self.symmetric and not share_radius else 1
        self.radius = nn.ModuleList(build_radius() for _ in range(radii))

    @property
    def training_only_parameters(self) -> dict[str, nn.Parameter]:
        """The radius parameters by name: optimised and kept for resuming, but not part of inference weights."""
        return dict(self.named_parameters())

    def forward(
        self,
        audio_embeds: Tensor,
        text_embeds: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        ids: Tensor | None = None,
    ) -> ContrastiveLossOutput:
        """Compute the objective for B matching pairs.

        Args:
            audio_embeds: (B, D), unit length.
            text_embeds: (B, D), unit length, row i of the same pair as row i of the audios.
            logit_scale: 1/tau, already exponentiated.
            logit_bias: Bias of the sigmoid loss; radius predictors do not see it.
            ids: (B,) integers, on all ranks or none. Equal ids mean the same clip and are never negatives: L_orig has a
                uniform target over them (InfoNCE) or label +1 (SigLIP), L_svr leaves the others of the clip out of the
                denominator (InfoNCE) or has label +1 (SigLIP), radius predictors leave them out.

        Raises:
            ValueError: Wrong shapes, embeddings not of unit length (checked in the first call only, since it waits for
                the device), a bias under InfoNCE, or a batch that does not fit the radius predictor.
        """
        self._check(audio_embeds, text_embeds, logit_bias, ids)
        audio, text = full_precision(audio_embeds), full_precision(text_embeds)
        scale = as_scalar(logit_scale, audio, "logit_scale")
        columns = gather_columns(audio, text, None if ids is None else ids.to(audio.device), self.gather)

        def audio_rows(text_rows: Tensor, texts: Tensor) -> Tensor:
            # The transpose is the other direction only where this rank holds all rows.
            return text_rows.T if columns.sizes is None else similarity_logits(audio, texts, scale)

        text_logits, audio_logits = similarity_logits(text, columns.audio, scale), None
        if self.objective == "infonce" or (self.svr == "dynamic" and self.symmetric):
            audio_logits = audio_rows(text_logits, columns.text)
        if self.objective == "siglip":
            contrastive = siglip(text_logits, columns.positives, logit_bias)
        else:
            contrastive = info_nce(text_logits, columns.positives) + info_nce(audio_logits, columns.positives)

        distance = torch.linalg.vector_norm((audio - text).detach(), dim=-1)
        svr = constraint = contrastive.new_zeros(())
        radii = []
        sides = [(text, audio, columns.audio, text_logits), (audio, text, columns.text, audio_logits)]
        # `zip` ends at once without a radius module; a shared one serves both sides.
        sides = zip(cycle(self.radius), sides if self.symmetric else sides[:1], strict=False)
        for predict, (anchor, positive, keys, logits) in sides:
            if self.svr == "static":
                radius = predict(anchor)
            else:
                radius = predict(*positive_first(logits, columns.own, columns.positives))
                constraint = constraint + radius_constraint(radius, distance)
            used = radius.minimum(distance) if self.clamp_radius else radius
            support = support_vectors(anchor, positive, used, **self.support_options)
            support_logits = similarity_logits(support, keys, scale)
            svr = svr + self._svr(support_logits, columns, logit_bias)
            if self.text_support:
                support_logits = audio_rows(support_logits, gather_rows(support, columns.sizes))
                svr = svr + self._svr(support_logits, columns, logit_bias)
            radii.append((radius.detach(), used.detach()))

        parts = {"loss_contrastive": contrastive, "loss_svr": svr, "loss_constraint": constraint}
        diagnostics = {"pair_distance": distance.mean(), **_radius_diagnostics(radii, distance)}
        diagnostics = {name: columns.weight * value for name, value in diagnostics.items()}
        return ContrastiveLossOutput(
            loss=columns.weight * (contrastive + self.alpha * svr + self.beta * constraint),
            parts={name: columns.weight * value.detach() for name, value in parts.items()},
            diagnostics={**diagnostics, "logit_scale": scale.detach(), "temperature": 1 / scale.detach()},
        )

    def _svr(self, logits: Tensor, columns: Columns, logit_bias: Tensor | float | None) -> Tensor:
        if self.objective == "siglip":
            return siglip(logits, columns.positives, logit_bias)
        own = torch.zeros_like(columns.positives).scatter_(1, columns.own[:, None], True)
        return info_nce(logits, own, exclude=columns.positives & ~own)

    def _check(self, audio: Tensor, text: Tensor, logit_bias: Tensor | float | None, ids: Tensor | None) -> None:
        if audio.ndim != 2 or audio.shape != text.shape or not len(audio):
            raise ValueError(
                "audio_embeds and text_embeds must both be (B, D), B >= 1, with a pair in each row; got "
                f"{tuple(audio.shape)} and {tuple(text.shape)}."
            )
        if ids is not None and (ids.shape != audio.shape[:1] or ids.is_floating_point()):
            raise ValueError(f"ids must be {len(audio)} integers, got {ids.dtype} of shape {tuple(ids.shape)}.")
        if logit_bias is not None and self.objective == "infonce":
            raise ValueError("logit_bias has no effect under InfoNCE: pass None, or use objective='siglip'.")
        for name, embeds in (("audio_embeds", audio), ("text_embeds", text)) if not self._checked_unit_length else ():
            error = (torch.linalg.vector_norm(full_precision(embeds.detach()), dim=-1) - 1).abs().max().item()
            if not error < 0.01:  # bfloat16 moves the length of a unit vector by up to 0.004; NaN must fail
                raise ValueError(
                    f"{name} must have unit length but a row is off by {error:.3g}: use torch.nn.functional.normalize."
                )
        self._checked_unit_length = True


def _radius_diagnostics(radii: list[tuple[Tensor, Tensor]], distance: Tensor) -> dict[str, Tensor]:
    if not radii:
        return {}
    radius, used = (torch.stack(values) for values in zip(*radii, strict=True))
    # Where support_vectors holds the direction constant, nothing is contracted.
    contraction = torch.where(distance > EPS, 1 - used / distance.clamp_min(EPS), 1.0)
    return {
        "radius": radius.mean(),
        "radius_out_of_range": ((radius < 0) | (radius > distance)).to(radius.dtype).mean(),
        "contraction": contraction.mean(),
    }
