"""Radius of the support vectors: one learnable number, or an MLP on the similarities of each anchor."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supclap.errors import SettingsError
from supclap.losses.precision import full_precision, without_autocast


ParameterGradients = Callable[[Tensor], list[Tensor]]
"""From the gradient of radii (B,) to those of the parameters of their module, in the order of its `parameters()`."""


def positive_first(
    logits: Tensor, own: Tensor | None, positives: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Order each row of similarities as the predictors read it: own positive, then the others in batch order.

    Args:
        logits: (..., B, N) scaled similarities, without bias.
        own: (B,) int64, the column of each row's own positive; None for the diagonal.
        positives: (B, N) bool, the columns of the same clip, own positive included; the own one alone when omitted.

    Returns:
        (..., B, N) similarities without gradient, and (B, N) bool: True for the own positive and the negatives, False for
        columns of the same clip, which are neither; None in place of the latter when `positives` is omitted.
    """
    n = logits.shape[-1]
    if own is not None:
        own = own[:, None]
        behind = torch.arange(n - 1, device=logits.device) >= own

    def reorder(rows: Tensor) -> Tensor:
        ordered = torch.empty_like(rows, memory_format=torch.contiguous_format)
        if own is None:
            ordered[..., 0] = rows.diagonal(dim1=-2, dim2=-1)
            # behind each element of the diagonal come the n that lie before the next one
            others = rows.flatten(-2)[..., 1:].unflatten(-1, (n - 1, n + 1))[..., :-1]
            ordered[..., 1:] = others.flatten(-2).unflatten(-1, (n, n - 1))
        else:
            ordered[..., :1] = rows.gather(-1, own.expand(*rows.shape[:-1], 1))
            torch.where(behind, rows[..., 1:], rows[..., :-1], out=ordered[..., 1:])
        return ordered

    if positives is None:
        return reorder(logits.detach()), None
    valid = reorder(~positives)
    valid[:, 0] = True
    return reorder(logits.detach()), valid


class StaticRadius(nn.Module):
    """One radius for all pairs: a parameter of shape (1,), as FSDP refuses 0-d ones.

    Args:
        radius_init: Radius at the start.
        radius_range: Smallest and largest value. The parameter itself is kept in the range: a clamp behind it would
            have no gradient outside, and the radius could not come back.

    Raises:
        ValueError: The range is empty, or the radius starts outside of it.
    """

    def __init__(self, radius_init: float = 0.1, radius_range: tuple[float, float] | None = None):
        super().__init__()
        if radius_range is not None and not radius_range[0] <= radius_init <= radius_range[1]:
            raise ValueError(f"radius_init {radius_init} must lie in radius_range {tuple(radius_range)}.")
        self.value = nn.Parameter(torch.tensor([float(radius_init)]))
        self.range = radius_range

    @torch.no_grad()
    def limit(self) -> None:
        """Keep the parameter in its range."""
        if self.range is not None:
            self.value.clamp_(*self.range)

    def forward(self, anchor: Tensor) -> Tensor:
        """Return the radius as (B,), one for each row of `anchor` (B, D)."""
        self.limit()
        return self.value.to(full_precision(anchor).dtype).expand(len(anchor))

    def with_gradients(self, anchor: Tensor, valid: Tensor | None = None) -> tuple[Tensor, ParameterGradients]:
        """See `PredictedRadius.with_gradients`."""
        return self(anchor).detach(), lambda on_radius: [on_radius.sum(0, keepdim=True).to(self.value.dtype)]


class PredictedRadius(nn.Module, ABC):
    """Three-layer MLP from features of an anchor's similarities to its radius; subclasses define the features.

    The output is linear, so that both sides of `radius_constraint` can act. The last layer starts with weight 0 and bias
    `radius_init`: training starts as with `StaticRadius(radius_init)`.
    """

    def __init__(self, features: int, radius_init: float, hidden_size: int):
        super().__init__()
        layers = (nn.Linear(features, hidden_size), nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, 1))
        nn.init.zeros_(layers[2].weight)
        nn.init.constant_(layers[2].bias, radius_init)
        self.mlp = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])

    @abstractmethod
    def features(self, similarities: Tensor, valid: Tensor | None = None) -> Tensor:
        """Map the output of `positive_first` to the input of the MLP, (B, features)."""

    def forward(self, similarities: Tensor, valid: Tensor | None = None) -> Tensor:
        """Predict radii (B,) from the output of `positive_first`.

        The similarities are detached: a gradient through them would break the law of `support_vectors`.
        """
        similarities = full_precision(similarities.detach())
        features = self.features(similarities, valid)
        with without_autocast(features):
            return self.mlp(features.to(self.mlp[0].weight.dtype)).squeeze(-1).to(similarities.dtype)

    @torch.no_grad()
    def with_gradients(self, similarities: Tensor, valid: Tensor | None = None) -> tuple[Tensor, ParameterGradients]:
        """`forward` without a graph, and its backward, written out to spare what autograd adds to each operation."""
        first, second, last = self.mlp[0], self.mlp[2], self.mlp[4]
        with without_autocast(similarities):
            features = self.features(similarities, valid).to(first.weight.dtype)
            hidden = F.linear(features, first.weight, first.bias).relu_()
            deeper = F.linear(hidden, second.weight, second.bias).relu_()
            radius = F.linear(deeper, last.weight, last.bias).squeeze(-1)

        def of_parameters(on_radius: Tensor) -> list[Tensor]:
            on_radius = on_radius.to(radius.dtype)[:, None]
            on_deeper = (on_radius * last.weight).mul_(deeper.sign())  # 0 or 1: torch is slow with a bool
            on_hidden = torch.mm(on_deeper, second.weight).mul_(hidden.sign())
            layers = ((on_hidden, features), (on_deeper, hidden), (on_radius, deeper))
            return [part for on_output, inputs in layers for part in (on_output.T @ inputs, on_output.sum(0))]

        return radius.to(similarities.dtype), of_parameters


class SimilarityRadius(PredictedRadius):
    """The paper's predictor: reads all N similarities of an anchor, so every contrasted batch must have N pairs.

    Columns of the same clip are read as the smallest similarity of the row.

    Args:
        batch_size: N, the number of pairs contrasted (local batch x ranks when gathering).
        radius_init: Output at the start.
        hidden_size: Width of both hidden layers.
        sort_negatives: Read the negatives hardest first, so that their order in the batch does not matter.
        on_batch_mismatch: For a batch of n != N pairs, "error" raises ValueError; "pad" appends the smallest similarity
            of the row while n < N, and reads the positive and the N - 1 hardest negatives when n > N.
    """

    def __init__(
        self,
        batch_size: int,
        radius_init: float = 0.1,
        hidden_size: int = 128,
        sort_negatives: bool = False,
        on_batch_mismatch: Literal["error", "pad"] = "error",
    ):
        super().__init__(batch_size, radius_init, hidden_size)
        self.batch_size = batch_size
        self.sort_negatives = sort_negatives
        self.on_batch_mismatch = on_batch_mismatch

    def features(self, similarities: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return (B, N)."""
        n = similarities.shape[1]
        if n != self.batch_size and self.on_batch_mismatch == "error":
            raise SettingsError(
                f"The radius predictor was built for N={self.batch_size} pairs in a contrasted batch (all ranks together) "
                f"but this batch has {n}. For a smaller last batch use drop_last=True; for another batch size build it "
                f"with batch_size={n}; or choose on_batch_mismatch='pad' or radius_predictor='summary'."
            )
        if n == self.batch_size and valid is None and not self.sort_negatives:
            return similarities
        if valid is None:
            smallest = similarities.amin(1, keepdim=True)
        else:
            smallest = similarities.masked_fill(~valid, torch.inf).amin(1, keepdim=True)
            similarities = similarities.masked_fill(~valid, -torch.inf)  # behind all negatives, also equal ones
        positive, negatives = similarities.split([1, n - 1], dim=1)
        if n > self.batch_size:
            hardest = negatives.topk(self.batch_size - 1).indices
            negatives = negatives.gather(1, hardest.sort().values)
        if self.sort_negatives:
            negatives = negatives.sort(descending=True).values
        negatives = negatives.maximum(smallest)
        padding = smallest.expand(-1, max(self.batch_size - n, 0))
        return torch.cat([positive, negatives, padding], dim=1)


class SummaryRadius(PredictedRadius):
    """A predictor for any number and order of negatives.

    It reads the positive; the `top_k` largest negatives, filled up with the smallest; the mean, standard deviation
    (population), minimum and logsumexp of the negatives. An anchor without negatives (a batch of one pair) is described
    by its positive, read as its only negative.
    """

    def __init__(self, top_k: int = 8, radius_init: float = 0.1, hidden_size: int = 128):
        super().__init__(top_k + 5, radius_init, hidden_size)
        self.top_k = top_k

    def features(self, similarities: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return (B, top_k + 5)."""
        valid = torch.ones_like(similarities, dtype=torch.bool) if valid is None else valid
        negative = torch.cat([~valid[:, 1:].any(1, keepdim=True), valid[:, 1:]], dim=1)
        count = negative.sum(1, keepdim=True)
        mean = similarities.masked_fill(~negative, 0).sum(1, keepdim=True) / count
        deviation = ((similarities - mean).masked_fill(~negative, 0).square().sum(1, keepdim=True) / count).sqrt()
        smallest = similarities.masked_fill(~negative, torch.inf).amin(1, keepdim=True)
        ranked = similarities.masked_fill(~negative, -torch.inf)
        hardest = ranked.topk(min(self.top_k, ranked.shape[1])).values
        hardest = F.pad(hardest, (0, self.top_k - hardest.shape[1]), value=-torch.inf).maximum(smallest)
        denominator = ranked.logsumexp(1, keepdim=True)
        return torch.cat([similarities[:, :1], hardest, mean, deviation, smallest, denominator], dim=1)
