"""The training objective of SupCLAP for the embeddings of any dual encoder."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from supclap.losses.chunked import chunked_info_nce, chunked_siglip, score_info_nce, score_siglip
from supclap.losses.contrastive import info_nce, siglip, similarity_logits
from supclap.losses.controls import scale_gradient, scale_perpendicular_gradient
from supclap.losses.distributed import Columns, gather_columns, gather_rows
from supclap.losses.precision import as_scalar, full_precision
from supclap.losses.radius import (
    ParameterGradients,
    SimilarityRadius,
    StaticRadius,
    SummaryRadius,
    positive_first,
)
from supclap.losses.support_vectors import EPS, radius_constraint, share_of_distance, support_vectors
from supclap.losses.symmetric import SymmetricContrast


@dataclass
class ContrastiveLossOutput:
    """Loss of a batch; on several ranks, the average of each value over ranks is the value of the global batch.

    Attributes:
        loss: Scalar, `L_orig + alpha L_svr + beta L_cons`.
        parts: Detached scalars, unweighted: `loss_contrastive`, `loss_svr`, `loss_constraint`; 0 for a term not in use.
        logit_scale: Scalar, detached.
        distance: (B,) detached, ||a - t|| of the pairs of this rank.
        radii: (directions, B) detached, the radii that their support vectors were built with, texts first; None
            without SVR.
        predicted_radii: The same before `clamp_radius`.
        weight: Factor for a mean over the pairs of this rank: `Columns.weight`.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    logit_scale: Tensor
    distance: Tensor
    radii: Tensor | None = None
    predicted_radii: Tensor | None = None
    weight: float = 1.0

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Detached scalars, computed when read.

        `pair_distance` (mean ||a - t||), `logit_scale`, `temperature`; with SVR also `radius` (mean R),
        `radius_out_of_range` (share of R outside [0, ||a - t||]) and `contraction` (mean factor 1 - R/||a - t|| on the
        perpendicular push), over all directions in use.
        """
        values = {"pair_distance": self.distance.mean()}
        if self.radii is not None:
            radius = self.predicted_radii
            values["radius"] = radius.mean()
            values["radius_out_of_range"] = ((radius < 0) | (radius > self.distance)).to(radius.dtype).mean()
            values["contraction"] = (1 - share_of_distance(self.radii, self.distance)).mean()
        if self.weight != 1:
            values = {name: self.weight * value for name, value in values.items()}
        return {**values, "logit_scale": self.logit_scale, "temperature": 1 / self.logit_scale}


class SupClapLoss(nn.Module):
    """Contrastive loss with support vector regularisation: `L = L_orig + alpha L_svr + beta L_cons`.

    L_orig is InfoNCE summed over both directions (paper equation 5), or SigLIP, whose one matrix covers both. L_svr (6)
    is the same loss with anchors moved towards their positives; its denominator includes the positive. L_cons (9) is for
    the dynamic radius only. `svr=None` leaves the plain loss. Rows are the pairs of this rank, columns those of all
    ranks, such that DDP's averaged gradient equals that of one process with the full batch.

    The only parameters, and all that is in `state_dict`, are those of the radius. With svr_direction="bi", or with a
    `chunk_size`, gradients are made in the forward pass and cannot be differentiated again.

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
        radius_range: See `StaticRadius`.
        share_radius: One radius for both directions of "symmetric", instead of one each.
        sort_negatives, on_batch_mismatch: See `SimilarityRadius`.
        clamp_radius: Build support vectors with `min(R, ||a - t||)`, so that the perpendicular push is never reversed.
        normalize_support, detach_positive, detach_direction: See `support_vectors`.
        pull_weight: Factor on the gradient of the positive logits of L_orig, and
        perpendicular_push: Factor on the part across a - t of what L_orig's other logits send to each embedding. Two
            controls, for `svr=None`; values stay as they are.
        chunk_size: Take so many rows at a time, with memory linear in the batch in place of its square; the same values
            and gradients, which can be differentiated once. None takes all rows at once; on a CPU, beyond 4,096 pairs, as
            many as fit its cache where the objective goes over them in one pass (`losses.symmetric`).
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
        radius_range: tuple[float, float] | None = None,
        share_radius: bool = True,
        sort_negatives: bool = False,
        on_batch_mismatch: Literal["error", "pad"] = "error",
        clamp_radius: bool = False,
        normalize_support: bool = False,
        detach_positive: bool = False,
        detach_direction: bool = False,
        pull_weight: float = 1.0,
        perpendicular_push: float = 1.0,
        chunk_size: int | None = None,
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
        self.support_options = {
            "detach_positive": detach_positive,
            "detach_direction": detach_direction,
            "normalize": normalize_support,
        }
        self.in_one_pass = svr is not None and self.symmetric and not any(self.support_options.values())
        self.pull_weight, self.perpendicular_push, self.chunk_size = pull_weight, perpendicular_push, chunk_size
        self.controlled = pull_weight != 1 or perpendicular_push != 1
        self.checked_values = self._checked_number = False
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0 <= value < math.inf:
                raise ValueError(
                    f"{name} weighs a loss and must be a finite number, at least 0, got {value}; 0 turns the term off."
                )
        if not math.isfinite(radius_init):
            raise ValueError(f"radius_init must be a finite number, got {radius_init}.")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 pair, got {batch_size}.")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1 row, got {chunk_size}; None takes all rows at once.")
        if self.controlled and (svr or chunk_size):
            raise ValueError(
                "pull_weight and perpendicular_push are controls of the plain loss: set svr=None and chunk_size=None, or "
                "leave them at 1."
            )
        if radius_range is not None and svr != "static":
            raise ValueError("radius_range is for svr='static'; a dynamic radius is held by beta and clamp_radius.")
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
                return StaticRadius(radius_init, radius_range)
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
            TypeError: Embeddings or ids are no tensors.
            ValueError: Wrong shapes or dtypes, embeddings that are not finite or not of unit length, a batch of one pair
                (these three in the first call only, since they wait for the device), a bias under InfoNCE, or a batch
                that does not fit the radius predictor.
        """
        self._check(audio_embeds, text_embeds, logit_bias, ids)
        audio, text = full_precision(audio_embeds), full_precision(text_embeds)
        scale = as_scalar(logit_scale, audio, "logit_scale")
        difference = audio - text
        live_distance = torch.linalg.vector_norm(difference, dim=-1)
        distance = live_distance.detach()
        positive_logits = None
        if self.controlled:
            positive_logits = scale_gradient(scale * (text * audio).sum(-1), self.pull_weight)
            direction = difference / distance.clamp_min(EPS)[:, None]
            audio, text = (
                scale_perpendicular_gradient(embeds, direction, self.perpendicular_push) for embeds in (audio, text)
            )
        columns = gather_columns(audio, text, None if ids is None else ids.to(audio.device), self.gather)
        self._check_number(len(columns.audio))

        if self.in_one_pass:
            loss, contrastive, svr, constraint, radii = self._in_one_pass(
                audio, text, scale, logit_bias, difference.detach(), distance, columns
            )
        else:
            loss, contrastive, svr, constraint, radii = self._term_by_term(
                audio, text, scale, logit_bias, live_distance, columns, positive_logits
            )
        parts = {"loss_contrastive": contrastive, "loss_svr": svr, "loss_constraint": constraint}
        parts = {name: value.detach() for name, value in parts.items()}
        if columns.weight != 1:
            loss = columns.weight * loss
            parts = {name: columns.weight * value for name, value in parts.items()}
        predicted, used = (None, None) if radii is None else radii
        return ContrastiveLossOutput(loss, parts, scale.detach(), distance, used, predicted, columns.weight)

    def _in_one_pass(self, audio, text, scale, logit_bias, difference, distance, columns):
        """`_term_by_term` for svr_direction="bi", bi_mode="symmetric" and support vectors without options."""

        def predict(logits: Tensor, rows: slice) -> tuple[Tensor, ParameterGradients]:
            sides, valid = logits, None
            if self.svr == "dynamic":
                all_rows = columns.sizes is None and logits.shape[-2] == logits.shape[-1]
                own = None if all_rows else columns.own[rows]  # the diagonal
                sides, valid = positive_first(logits, own, columns.same_clip(rows))
            if len(self.radius) == 2:
                each = [module.with_gradients(side, valid) for module, side in zip(self.radius, sides, strict=True)]
                return torch.stack([radius for radius, _ in each]), lambda on_radius: [
                    part
                    for (_, gradients), of_side in zip(each, on_radius, strict=True)
                    for part in gradients(of_side)
                ]
            valid = None if valid is None else valid.repeat(2, 1)
            radius, gradients = self.radius[0].with_gradients(sides.flatten(0, 1), valid)
            return radius.view(2, -1), lambda on_radius: gradients(on_radius.flatten())

        siglip = self.objective == "siglip"
        contrast = SymmetricContrast(
            score=score_siglip if siglip else score_info_nce,
            one_matrix=siglip,
            difference=difference,
            distance=distance,
            predict=predict,
            masks=partial(_masks, columns),
            support_masks=partial(_masks, columns, leave_out=not siglip),
            alpha=self.alpha,
            beta=self.beta,
            constrained=self.svr == "dynamic",
            clamp_radius=self.clamp_radius,
            chunk_size=self.chunk_size,
        )
        bias = None if logit_bias is None else as_scalar(logit_bias, text, "logit_bias")
        *terms, radius, used = contrast(text, audio, columns.audio, columns.text, scale, bias, self.radius)
        return *terms, (radius, used)

    def _term_by_term(self, audio, text, scale, logit_bias, live_distance, columns, positive_logits):
        """The total, L_orig, L_svr and L_cons; and radii as predicted and as used (2, directions, B), None without SVR."""
        distance = live_distance.detach()

        def matrix(queries: Tensor, keys: Tensor, transposed: Tensor | None = None) -> Tensor | None:
            """Logits of rows against columns, from those of the other direction where this rank holds all rows."""
            if self.chunk_size is not None:
                return None
            if transposed is not None and columns.sizes is None:
                return transposed.T
            logits = similarity_logits(queries, keys, scale)
            if positive_logits is not None:
                logits = logits.scatter(1, columns.own[:, None], positive_logits[:, None])
            return logits

        def contrast(queries: Tensor, keys: Tensor, logits: Tensor | None, masks: Callable) -> Tensor:
            if self.objective == "siglip":
                if logits is None:
                    return chunked_siglip(queries, keys, scale, masks, self.chunk_size, logit_bias)
                return siglip(logits, masks()[0], logit_bias)
            if logits is None:
                return chunked_info_nce(queries, keys, scale, masks, self.chunk_size)
            return info_nce(logits, *masks())

        plain = partial(_masks, columns)
        support_masks = partial(_masks, columns, leave_out=self.objective == "infonce")
        text_logits, audio_logits = matrix(text, columns.audio), None
        contrastive = contrast(text, columns.audio, text_logits, plain)
        if self.objective == "infonce" or (self.svr == "dynamic" and self.symmetric):
            audio_logits = matrix(audio, columns.text, text_logits)
        if self.objective == "infonce":
            contrastive = contrastive + contrast(audio, columns.text, audio_logits, plain)

        svr = constraint = contrastive.new_zeros(())
        radii = []
        sides = [(text, audio, columns.audio, text_logits), (audio, text, columns.text, audio_logits)]
        # `zip` ends at once without a radius module; a shared one serves both sides.
        sides = zip(cycle(self.radius), sides if self.symmetric else sides[:1], strict=False)
        for predictor, (anchor, positive, keys, logits) in sides:
            if self.svr == "static":
                radius = predictor(anchor)
            else:
                radius = self._predict(predictor, anchor, keys, logits, scale, columns)
                constraint = constraint + radius_constraint(radius, distance)
            used = radius.minimum(distance) if self.clamp_radius else radius
            support = support_vectors(anchor, positive, used, distance=live_distance, **self.support_options)
            support_logits = matrix(support, keys)
            svr = svr + contrast(support, keys, support_logits, support_masks)
            if self.text_support:
                moved = gather_rows(support, columns.sizes)
                svr = svr + contrast(audio, moved, matrix(audio, moved, support_logits), support_masks)
            radii.append(torch.stack([radius.detach(), used.detach()]))

        loss = contrastive + self.alpha * svr + self.beta * constraint
        return loss, contrastive, svr, constraint, torch.stack(radii, 1) if radii else None

    def _predict(
        self,
        predictor: nn.Module,
        anchor: Tensor,
        keys: Tensor,
        logits: Tensor | None,
        scale: Tensor,
        columns: Columns,
    ) -> Tensor:
        """Radii (B,) from all logits, or without them chunk by chunk, whose features are made again in backward."""

        def predict(rows: slice) -> Tensor:
            similarities = similarity_logits(anchor[rows].detach(), keys.detach(), scale.detach())
            return predictor(*positive_first(similarities, columns.own[rows], columns.same_clip(rows)))

        if logits is not None:
            own = None if columns.sizes is None else columns.own  # the diagonal
            return predictor(*positive_first(logits, own, columns.same_clip()))
        chunks = (slice(start, start + self.chunk_size) for start in range(0, len(anchor), self.chunk_size))
        return torch.cat([checkpoint(predict, rows, use_reentrant=False, preserve_rng_state=False) for rows in chunks])

    def _check(self, audio: Tensor, text: Tensor, logit_bias: Tensor | float | None, ids: Tensor | None) -> None:
        for name, value in (("audio_embeds", audio), ("text_embeds", text), ("ids", ids)):
            if not isinstance(value, Tensor) and not (name == "ids" and value is None):
                raise TypeError(f"{name} must be a tensor, got {type(value).__name__}: use torch.as_tensor.")
        if audio.ndim == text.ndim == 2 and len(audio) != len(text):
            raise ValueError(
                f"{len(audio)} clips (audio_embeds) came with {len(text)} texts (text_embeds), but row i of one belongs "
                "to row i of the other: draw one caption for each clip, or repeat clips and pass equal `ids` for them."
            )
        if audio.ndim != 2 or audio.shape != text.shape or not len(audio):
            raise ValueError(
                "audio_embeds and text_embeds must both be (B, D), B >= 1, with a pair in each row; got "
                f"{tuple(audio.shape)} and {tuple(text.shape)}."
            )
        if audio.dtype != text.dtype or not audio.is_floating_point():
            raise ValueError(
                f"audio_embeds are {audio.dtype} and text_embeds {text.dtype}: both must have one floating-point dtype; "
                "convert them, e.g. with `.float()`."
            )
        if ids is not None and (ids.shape != audio.shape[:1] or ids.is_floating_point()):
            raise ValueError(f"ids must be {len(audio)} integers, one a pair; got {tuple(ids.shape)} {ids.dtype}.")
        if logit_bias is not None and self.objective == "infonce":
            raise ValueError("logit_bias has no effect under InfoNCE: pass None, or use objective='siglip'.")
        for name, embeds in (("audio_embeds", audio), ("text_embeds", text)) if not self.checked_values else ():
            error = (torch.linalg.vector_norm(full_precision(embeds.detach()), dim=-1) - 1).abs().max().item()
            if not math.isfinite(error):
                raise ValueError(
                    f"{name} hold NaN or infinite values: look for them in the inputs and weights of that encoder, "
                    "or train in bfloat16 or float32 if it ran in float16."
                )
            if not error < 0.01:  # bfloat16 moves the length of a unit vector by up to 0.004
                raise ValueError(
                    f"{name} must have unit length but a row is off by {error:.3g}: use torch.nn.functional.normalize."
                )
        self.checked_values = True

    def _check_number(self, pairs: int) -> None:
        if pairs == 1 and not self._checked_number:
            raise ValueError(
                "One pair has no negatives to be contrasted with: use a larger batch. (A last batch of one, after "
                "larger ones, is let through.)"
            )
        self._checked_number = True


def _masks(columns: Columns, rows: slice = slice(None), leave_out: bool = False) -> tuple[Tensor, Tensor | None]:
    """Positives of rows and, with `leave_out`, the other columns of their clips instead of counting them as positive."""
    own, same_clip = columns.own[rows], columns.same_clip(rows)
    if same_clip is None:
        return own, None
    return (own, same_clip.scatter(1, own[:, None], False)) if leave_out else (same_clip, None)
