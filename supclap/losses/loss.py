"""The training objective of SupCLAP for the embeddings of any dual encoder.

The equations are those of SupCLAP (arXiv 2509.21033): (5) L_orig, (6) L_svr, (9) L_cons. `SupClapLoss._terms` is the
definition.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from supclap.errors import DataError, SettingsError
from supclap.losses.checks import check_choice, check_numbers, check_pairs, check_values
from supclap.losses.chunked import Terms, mean_over_chunks
from supclap.losses.contrastive import info_nce, siglip, similarity_logits
from supclap.losses.distributed import Columns, gather_columns, gather_rows
from supclap.losses.precision import as_scalar, full_precision, without_autocast
from supclap.losses.radius import SimilarityRadius, StaticRadius, SummaryRadius, positive_first
from supclap.losses.support_vectors import PaperReadings, radius_constraint, share_of_distance, support_vectors


Objective = Literal["infonce", "siglip"]
Svr = Literal["dynamic", "static"]
Direction = Literal["bi", "uni"]
Predictor = Literal["similarities", "summary"]
Mismatch = Literal["error", "pad"]


@dataclass
class ContrastiveLossOutput:
    """Loss of a batch; on several ranks, the average of each value over ranks is the value of the global batch.

    Attributes:
        loss: Scalar, `L_orig + svr_weight L_svr + constraint_weight L_cons`.
        parts: Detached scalars, unweighted: `loss_contrastive`, `loss_svr`, `loss_constraint`; 0 for a term not in use.
        logit_scale: Scalar, detached.
        distance: (B,) detached, ||a - t|| of the pairs of this rank.
        radii: (directions, B) detached, the radii that their support vectors were built with, texts first; None
            without SVR.
        predicted_radii: The same before `clamp_radius`.
        weight: Factor for a mean over the pairs of this rank: `Columns.weight`.

    Example:
        >>> output = SupClapLoss(svr="static")(torch.eye(2), torch.eye(2), logit_scale=10.0)
        >>> sorted(output.parts)
        ['loss_constraint', 'loss_contrastive', 'loss_svr']
        >>> output.diagnostics["temperature"]
        tensor(0.1000)
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
    """Contrastive loss with support vector regularization (SVR), for the embeddings of any dual encoder.

    Each text is contrasted with all audios and each audio with all texts (L_orig). A second loss (L_svr) contrasts a
    support vector in the text's place, which lies a radius R further on the way to its audio, and the same the other way
    round. Of the push by negatives, L_svr passes the part along that way on whole and the part across it times
    1 - R/||a - t||. The radius is one learned number ("static") or predicted for each anchor ("dynamic"); a constraint
    (L_cons) keeps the predicted one between 0 and the distance of its pair.

        L = L_orig + svr_weight L_svr + constraint_weight L_cons
        L_orig = InfoNCE(t, a) + InfoNCE(a, t), or the sigmoid loss (SigLIP)             (5)
        L_svr  = the same loss with t_sup = t + R u, u = (a - t)/||a - t||, as anchors   (6)
        L_cons = mean of relu(R - ||a - t||) + relu(-R), dynamic radius only             (9)

    Requirements: embeddings of unit length, row i of the audios being the pair of row i of the texts; `batch_size` for the
    dynamic radius, whose paper version reads a fixed number of similarities; the parameters of this module in the
    optimizer. They are those of the radius and all that is in `state_dict`; inference needs none of them.

    On several ranks, rows are the pairs of this rank and columns those of all ranks, such that DDP's averaged gradient
    equals that of one process with the full batch. Under autocast and for half precision it computes in float32.

    Args:
        objective: "infonce" or "siglip".
        svr: "dynamic" predicts a radius per anchor, "static" learns one number, None leaves the plain loss.
        svr_direction: "uni" contrasts moved texts with all audios, "bi" covers the other direction too.
        radius_predictor: "similarities", the paper's, for one `batch_size`, or "summary", for any.
        batch_size: N of `SimilarityRadius`.
        svr_weight: Weight of L_svr, the paper's alpha.
        constraint_weight: Weight of L_cons, the paper's beta.
        radius_init: Radius at the start.
        on_batch_mismatch: See `SimilarityRadius`.
        clamp_radius: Build support vectors with `min(R, ||a - t||)`, so that the perpendicular push is never reversed.
        loss_chunk_size: Take so many rows at a time, with memory linear in the batch in place of its square; the same
            values and gradients, which can be differentiated once. None takes all rows at once.
        gather: Contrast with all ranks of an initialized `torch.distributed`.
        readings: What to read into the paper where it is open; the defaults of `PaperReadings` when omitted.

    Raises:
        SettingsError: An option has an unknown value, or options do not go together.

    Example:
        >>> from torch.nn.functional import normalize
        >>> criterion = SupClapLoss(batch_size=8)
        >>> audio, text = (normalize(torch.randn(8, 512), dim=-1).requires_grad_() for _ in range(2))
        >>> output = criterion(audio, text, logit_scale=1 / 0.07)
        >>> output.loss.backward()
        >>> output.diagnostics["radius"]
        tensor(0.1000)

    Related: `info_nce` and `siglip` are the plain losses on a matrix of logits, and `support_vectors` the rest of the
    method as a function, for a loop of your own; `transformers.ClapModel` takes its text-to-audio half twice;
    `embed_in_micro_batches` (`supclap.losses.grad_cache`) makes batches fit whose activations would not.
    """

    def __init__(
        self,
        objective: Objective = "infonce",
        svr: Svr | None = "dynamic",
        svr_direction: Direction = "bi",
        radius_predictor: Predictor = "similarities",
        batch_size: int | None = None,
        svr_weight: float = 1.0,
        constraint_weight: float = 0.01,
        radius_init: float = 0.1,
        on_batch_mismatch: Mismatch = "error",
        clamp_radius: bool = False,
        loss_chunk_size: int | None = None,
        gather: bool = True,
        readings: PaperReadings | None = None,
    ):
        super().__init__()
        check_choice("objective", objective, Objective)
        check_choice("svr", svr, Svr, None)
        check_choice("svr_direction", svr_direction, Direction)
        check_choice("radius_predictor", radius_predictor, Predictor)
        check_choice("on_batch_mismatch", on_batch_mismatch, Mismatch)
        check_numbers(svr_weight, constraint_weight, radius_init, batch_size, loss_chunk_size)
        if svr == "dynamic" and radius_predictor == "similarities" and batch_size is None:
            raise SettingsError(
                "radius_predictor='similarities' needs batch_size, the number of pairs contrasted (local batch x ranks): "
                "pass it, or choose radius_predictor='summary', which takes any number."
            )
        self.readings = PaperReadings() if readings is None else readings
        if self.readings.bi_mode == "text_support" and (objective == "siglip" or loss_chunk_size is not None):
            raise SettingsError(
                "bi_mode='text_support' is for InfoNCE with all rows at once: leave out loss_chunk_size; under SigLIP, "
                "whose one matrix covers both directions, choose svr_direction='uni', which is the same, or 'symmetric'."
            )
        self.objective, self.svr, self.svr_direction = objective, svr, svr_direction
        self.svr_weight, self.constraint_weight = svr_weight, constraint_weight
        self.clamp_radius, self.loss_chunk_size, self.gather = clamp_radius, loss_chunk_size, gather
        self.checked_values = self._checked_number = False
        if svr == "static":
            radius = StaticRadius(radius_init)
        elif radius_predictor == "summary":
            radius = SummaryRadius(radius_init=radius_init)
        else:
            radius = SimilarityRadius(batch_size, radius_init, on_batch_mismatch=on_batch_mismatch) if svr else None
        # A list of at most one, since saved checkpoints name its parameters "radius.0.…".
        self.radius = nn.ModuleList([radius] if svr else [])

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
            DataError: Wrong shapes or dtypes; in the first call also embeddings that are not finite or not of unit length,
                which has to wait for the device, and in training a batch of one pair.
            SettingsError: A bias under InfoNCE, or a batch that does not fit the radius predictor.
        """
        if logit_bias is not None and self.objective == "infonce":
            raise SettingsError("logit_bias has no effect under InfoNCE: pass None, or use objective='siglip'.")
        check_pairs(audio_embeds, text_embeds, ids)
        if not self.checked_values:
            check_values(audio_embeds, text_embeds)
            self.checked_values = True
        audio, text = full_precision(audio_embeds), full_precision(text_embeds)
        scale = as_scalar(logit_scale, audio, "logit_scale")
        bias = None if logit_bias is None else as_scalar(logit_bias, audio, "logit_bias")
        columns = gather_columns(audio, text, None if ids is None else ids.to(audio.device), self.gather)
        if self.training and not self._checked_number:
            if len(columns.audio) == 1:
                raise DataError(
                    "One pair has no negatives to be contrasted with: use a larger batch. (A last batch of one, after "
                    "larger ones, is let through.)"
                )
            self._checked_number = True

        inputs = (text, audio, columns.text, columns.audio, scale, bias)
        predictor = self.radius[0] if self.radius else None
        with without_autocast(audio):
            if self.loss_chunk_size is None:
                loss, parts, radii = self._terms(columns, slice(None), predictor, *inputs)
            else:
                terms = partial(self._terms, columns)
                loss, parts, radii = mean_over_chunks(terms, len(text), self.loss_chunk_size, predictor, *inputs)
        if columns.weight != 1:
            loss, parts = columns.weight * loss, columns.weight * parts
        parts = dict(zip(("loss_contrastive", "loss_svr", "loss_constraint"), parts.unbind(), strict=True))
        distance = torch.linalg.vector_norm((audio - text).detach(), dim=-1)
        predicted, used = (None, None) if self.svr is None else radii
        return ContrastiveLossOutput(loss, parts, scale.detach(), distance, used, predicted, columns.weight)

    def _terms(
        self,
        columns: Columns,
        rows: slice,
        predictor: Callable[..., Tensor] | None,
        text: Tensor,
        audio: Tensor,
        texts: Tensor,
        audios: Tensor,
        scale: Tensor,
        bias: Tensor | None,
    ) -> Terms:
        """The definition, for some of the rows, whose number is n.

        Args:
            columns: Which columns are positives of a row.
            rows: Which rows of `text` and `audio`.
            predictor: The radius of an anchor; None without SVR.
            text, audio: (B, D), the pairs of this rank.
            texts, audios: (N, D), those of all ranks.
            scale: 1/tau, 0-d.
            bias: 0-d, or None.

        Returns:
            Means over these rows: the loss, and detached (3,) L_orig, L_svr and L_cons; and radii (2, directions, n), as
            predicted and as used, detached.
        """
        text, audio = text[rows], audio[rows]
        own, same_clip = columns.own[rows], columns.same_clip(rows)
        positives = own if same_clip is None else same_clip
        others = None if same_clip is None else same_clip.scatter(1, own[:, None], False)
        infonce = self.objective == "infonce"

        # Logits s(t_i, a_j) = t_i a_j / tau, and s(a_i, t_j): the same matrix where the rows are all columns.
        text_to_audio = similarity_logits(text, audios, scale)
        square = text_to_audio.shape[0] == text_to_audio.shape[1]
        audio_to_text = text_to_audio.T if square else similarity_logits(audio, texts, scale)

        # (5) L_orig: the sum of both directions of InfoNCE. The sigmoid loss of one matrix covers both.
        if infonce:
            l_orig = info_nce(text_to_audio, positives) + info_nce(audio_to_text, positives)
        else:
            l_orig = siglip(text_to_audio, positives, bias)
        l_svr = l_cons = torch.zeros_like(l_orig)
        radii = used = text.new_empty(0, len(text))

        if self.svr is not None:
            # What is moved, towards what, and what it is contrasted with: texts, and in the symmetric form audios too.
            text_support = self.readings.bi_mode == "text_support"
            directions = 1 if self.svr_direction == "uni" or text_support else 2
            anchors, towards = torch.stack([text, audio][:directions]), torch.stack([audio, text][:directions])
            keys = [audios, texts][:directions]
            distance = torch.linalg.vector_norm(audio - text, dim=-1)

            # The radius R of each anchor, and (9) L_cons: a predicted one stays between 0 and the distance of its pair.
            radii = self._radii(predictor, [text_to_audio, audio_to_text][:directions], own, same_clip)
            if self.svr == "dynamic":
                l_cons = radius_constraint(radii, distance)
            used = radii.minimum(distance.detach()) if self.clamp_radius else radii

            # (6) L_svr: the same loss with support vectors t_sup = t + R u in place of the anchors.
            supports = self._support_vectors(anchors, towards, used, distance).unbind()
            for support, candidates in zip(supports, keys, strict=True):
                logits = similarity_logits(support, candidates, scale)
                if infonce:
                    l_svr = l_svr + info_nce(logits, own, exclude=others)
                else:
                    l_svr = l_svr + siglip(logits, positives, bias)
            if self.svr_direction == "bi" and text_support:
                moved_texts = gather_rows(supports[0], columns.sizes)
                l_svr = l_svr + info_nce(similarity_logits(audio, moved_texts, scale), own, exclude=others)

        loss = l_orig + self.svr_weight * l_svr + self.constraint_weight * l_cons
        parts = torch.stack([l_orig, l_svr, l_cons]).detach()
        return loss, parts, torch.stack([radii, used]).detach()

    def _radii(
        self, predictor: Callable[..., Tensor], logits: list[Tensor], own: Tensor, same_clip: Tensor | None
    ) -> Tensor:
        """Radii (directions, n) from the logits (n, N) of each direction: one number, or f(S) of each row S."""
        if self.svr == "static":
            return predictor(logits[0]).expand(len(logits), -1)
        similarities, valid = positive_first(torch.stack(logits).detach(), own, same_clip)
        valid = None if valid is None else valid.repeat(len(logits), 1)
        return predictor(similarities.flatten(0, 1), valid).view(len(logits), -1)

    def _support_vectors(self, anchor: Tensor, positive: Tensor, radius: Tensor, distance: Tensor) -> Tensor:
        """Support vectors (directions, n, D) of anchors and positives (directions, n, D) that are `distance` (n,) apart."""
        options = {"detach_positive": self.readings.detach_positive, "normalize": self.readings.normalize_support}
        return support_vectors(anchor, positive, radius, distance=distance, **options)
