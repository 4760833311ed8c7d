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


_CHOICES = {
    "objective": ("infonce", "siglip"),
    "svr": ("dynamic", "static", None),
    "svr_direction": ("bi", "uni"),
    "bi_mode": ("symmetric", "text_support"),
    "radius_predictor": ("similarities", "summary"),
    "on_batch_mismatch": ("error", "pad"),
}


@dataclass
class ContrastiveLossOutput:
    """Loss of a batch. On several ranks the average over ranks of each value is the value of the global batch.

    Attributes:
        loss: Scalar, `L_orig + alpha L_svr + beta L_cons`.
        parts: Detached scalars before weighting by alpha and beta: `loss_contrastive`, `loss_svr`, `loss_constraint`
            (0 where the configuration has no such term).
        diagnostics: Detached scalars. Always `pair_distance` (mean ||a - t||), `logit_scale`, `temperature`; with SVR
            also `radius` (mean R), `radius_out_of_range` (share of R outside [0, ||a - t||]) and `contraction` (mean
            factor `1 - R/||a - t||` on the perpendicular push), each averaged over the directions in use.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    diagnostics: dict[str, Tensor]


class SupClapLoss(nn.Module):
    """Contrastive loss with support vector regularisation: `L = L_orig + alpha L_svr + beta L_cons`.

    L_orig is InfoNCE summed over both directions (paper equation 5) or the sigmoid loss, whose one matrix covers both.
    L_svr (6) is the same loss with the anchors moved towards their positives, its denominator includes the positive.
    L_cons (9) exists for the dynamic radius only. `svr=None` leaves the plain loss.

    The parameters are those of the radius, needed in training only; `state_dict` holds nothing else. Rows are the local
    batch, columns the batches of all ranks, so that DDP's averaged gradient is that of one process with the full batch.

    Args:
        objective: "infonce" or "siglip".
        svr: "dynamic" predicts a radius per anchor, "static" learns one number, None turns SVR off.
        svr_direction: "uni" moves the texts and contrasts them with all audios. "bi" does both directions:
        bi_mode: "symmetric" also moves the audios (`a - R u`) and contrasts them with all texts. "text_support" contrasts
            the audios with the moved texts; only for InfoNCE, since under SigLIP it is "uni".
        radius_predictor: For the dynamic radius: "similarities" is the paper's, for a fixed `batch_size`; "summary"
            takes any batch size.
        batch_size: N of the "similarities" predictor, the number of pairs contrasted (local batch x ranks if gathering).
        alpha: Weight of L_svr.
        beta: Weight of L_cons.
        radius_init: Radius at the start, in the units of the unit-length embeddings.
        share_radius: One radius (module) for both directions of "symmetric", rather than one each.
        sort_negatives, on_batch_mismatch: See `SimilarityRadius`.
        clamp_radius: Use `min(R, ||a - t||)` for the support vectors, which keeps the contraction from turning negative.
        normalize_support, detach_positive: See `support_vectors`.
        gather: Contrast with the pairs of all ranks of `torch.distributed`, when initialised.

    Raises:
        ValueError: An option has an unknown value, or options contradict each other.
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
        given = locals()
        for name, allowed in _CHOICES.items():
            if given[name] not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {given[name]!r}.")
        self.objective = objective
        self.svr = svr
        self.symmetric = svr_direction == "bi" and bi_mode == "symmetric"
        self.text_support = svr_direction == "bi" and bi_mode == "text_support"
        self.alpha = alpha
        self.beta = beta
        self.clamp_radius = clamp_radius
        self.normalize_support = normalize_support
        self.detach_positive = detach_positive
        self.gather = gather
        self._unit_length_seen = False
        if svr and objective == "siglip" and self.text_support:
            raise ValueError(
                "bi_mode='text_support' under SigLIP is the same as svr_direction='uni', because one matrix covers both "
                "directions: choose svr_direction='uni' or bi_mode='symmetric'."
            )

        def radius() -> nn.Module:
            if svr == "static":
                return StaticRadius(radius_init)
            if radius_predictor == "summary":
                return SummaryRadius(radius_init=radius_init)
            if batch_size is None:
                raise ValueError(
                    "radius_predictor='similarities' needs batch_size, the number of pairs contrasted (local batch x ranks): "
                    "pass it, or choose radius_predictor='summary', which takes any batch."
                )
            return SimilarityRadius(
                batch_size, radius_init=radius_init, sort_negatives=sort_negatives, on_batch_mismatch=on_batch_mismatch
            )

        separate = self.symmetric and not share_radius
        self.radius = nn.ModuleList(radius() for _ in range(0 if svr is None else 2 if separate else 1))

    @property
    def training_only_parameters(self) -> dict[str, nn.Parameter]:
        """The radius parameters by name: to be optimised, saved for resuming, and left out of inference weights."""
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
            audio_embeds: (B, D), unit length; row i belongs to row i of the texts.
            text_embeds: (B, D), unit length.
            logit_scale: 1/tau, already exponentiated.
            logit_bias: Bias of the sigmoid loss; the radius predictor does not see it.
            ids: (B,) integers. Pairs with the same id are of the same clip and never negatives: L_orig takes a uniform
                target over them (InfoNCE) or label +1 (SigLIP); L_svr leaves them out of the denominator (InfoNCE) or
                gives label +1 (SigLIP); the radius predictor leaves them out.

        Raises:
            ValueError: Shapes do not match, embeddings are not of unit length (checked in the first call only, as it
                waits for the device), a bias under InfoNCE, or a batch size the radius predictor was not built for.
        """
        self._check(audio_embeds, text_embeds, logit_bias, ids)
        audio, text = full_precision(audio_embeds), full_precision(text_embeds)
        scale = as_scalar(logit_scale, audio, "logit_scale")
        columns = gather_columns(audio, text, None if ids is None else ids.to(audio.device), self.gather)
        whole = columns.sizes is None

        text_logits = similarity_logits(text, columns.audio, scale)
        audio_logits = None
        if self.objective == "infonce" or self.symmetric:
            audio_logits = text_logits.T if whole else similarity_logits(audio, columns.text, scale)
        if self.objective == "siglip":
            contrastive = siglip(text_logits, columns.positives, logit_bias)
        else:
            contrastive = info_nce(text_logits, columns.positives) + info_nce(audio_logits, columns.positives)

        distance = torch.linalg.vector_norm((audio - text).detach(), dim=-1)
        diagnostics = {"pair_distance": distance.mean()}
        svr = constraint = contrastive.new_zeros(())
        if self.svr is not None:
            sides = [(text, audio, columns.audio, text_logits)]
            if self.symmetric:
                sides.append((audio, text, columns.text, audio_logits))
            radii = []
            for radius_module, (anchor, positive, keys, logits) in zip(cycle(self.radius), sides, strict=False):
                radius, used = self._radius(radius_module, logits, columns, distance)
                support = support_vectors(
                    anchor, positive, used, detach_positive=self.detach_positive, normalize=self.normalize_support
                )
                support_logits = similarity_logits(support, keys, scale)
                svr = svr + self._svr(support_logits, columns, logit_bias)
                if self.text_support:
                    if not whole:
                        support_logits = similarity_logits(audio, gather_rows(support, columns.sizes), scale).T
                    svr = svr + self._svr(support_logits.T, columns, logit_bias)
                if self.svr == "dynamic":
                    constraint = constraint + radius_constraint(radius, distance)
                radii.append((radius.detach(), used.detach()))
            diagnostics |= _radius_diagnostics(radii, distance)

        parts = {"loss_contrastive": contrastive, "loss_svr": svr, "loss_constraint": constraint}
        weight = columns.weight
        return ContrastiveLossOutput(
            loss=weight * (contrastive + self.alpha * svr + self.beta * constraint),
            parts={name: weight * value.detach() for name, value in parts.items()},
            diagnostics={name: weight * value for name, value in diagnostics.items()}
            | {"logit_scale": scale.detach(), "temperature": 1 / scale.detach()},
        )

    def _radius(self, module: nn.Module, logits: Tensor, columns: Columns, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the radius (B,) as learned, and as used for the support vectors."""
        if self.svr == "static":
            radius = module(logits)
        else:
            radius = module(*positive_first(logits, columns.own, columns.positives))
        return radius, radius.minimum(distance) if self.clamp_radius else radius

    def _svr(self, logits: Tensor, columns: Columns, logit_bias: Tensor | float | None) -> Tensor:
        """Loss of the (B, N) logits of the support vectors."""
        if self.objective == "siglip":
            return siglip(logits, columns.positives, logit_bias)
        own = torch.zeros_like(columns.positives).scatter_(1, columns.own[:, None], True)
        return info_nce(logits, own, exclude=columns.positives & ~own)

    def _check(self, audio: Tensor, text: Tensor, logit_bias: Tensor | float | None, ids: Tensor | None) -> None:
        if audio.ndim != 2 or audio.shape != text.shape or not len(audio):
            raise ValueError(
                "audio_embeds and text_embeds must both be (B, D) with B >= 1 and row i of each the same pair, got "
                f"{tuple(audio.shape)} and {tuple(text.shape)}."
            )
        if ids is not None and (ids.shape != audio.shape[:1] or ids.is_floating_point()):
            raise ValueError(
                f"ids must be {len(audio)} integers, one per pair, got {ids.dtype} of shape {tuple(ids.shape)}."
            )
        if logit_bias is not None and self.objective == "infonce":
            raise ValueError("logit_bias has no effect under InfoNCE: pass None, or use objective='siglip'.")
        if not self._unit_length_seen:
            for name, embeds in (("audio_embeds", audio), ("text_embeds", text)):
                error = (torch.linalg.vector_norm(embeds.detach().float(), dim=-1) - 1).abs().max().item()
                # Half precision rounds a unit vector's length by up to about 0.004.
                if not error < 0.01:
                    raise ValueError(
                        f"{name} must have unit length, a row is off by {error:.3g}: apply torch.nn.functional.normalize."
                    )
            self._unit_length_seen = True


def _radius_diagnostics(radii: list[tuple[Tensor, Tensor]], distance: Tensor) -> dict[str, Tensor]:
    """Average over directions and rows; `radii` holds (learned, used) of each direction, `distance` is (B,)."""
    learned, used = (torch.stack(both) for both in zip(*radii, strict=True))
    # Below EPS the direction is held constant, so nothing is contracted.
    contraction = torch.where(distance > EPS, 1 - used / distance.clamp_min(EPS), 1.0)
    return {
        "radius": learned.mean(),
        "radius_out_of_range": ((learned < 0) | (learned > distance)).to(distance.dtype).mean(),
        "contraction": contraction.mean(),
    }
