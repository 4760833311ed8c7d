"""The radius R of the support vectors: one learnable number, or an MLP that reads the similarities of each anchor."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supclap.errors import SettingsError
from supclap.losses.precision import full_precision, without_autocast


HIDDEN_SIZE = 128  # of the predictors


def positive_first(logits: Tensor, own: Tensor, positives: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Order each row of similarities as the predictors read it: the own positive, then the others in batch order.

    Args:
        logits: (..., B, N) scaled similarities, without bias.
        own: (B,) int64, the column of each row's own positive.
        positives: (B, N) bool, the columns of the same clip, own positive included; the own one alone when omitted.

    Returns:
        (..., B, N) similarities without gradient, and (B, N) bool: True for the own positive and the negatives, False for
        other columns of the same clip, which are neither; None in place of the latter when `positives` is omitted.

    Example:
        >>> positive_first(torch.tensor([[5.0, 1.0, 2.0], [3.0, 6.0, 4.0], [0.0, 1.0, 7.0]]), torch.arange(3))[0]
        tensor([[5., 1., 2.],
                [6., 3., 4.],
                [7., 0., 1.]])
    """
    own = own[:, None]
    behind = torch.arange(logits.shape[-1] - 1, device=logits.device) >= own

    def reorder(rows: Tensor) -> Tensor:
        ordered = torch.empty_like(rows, memory_format=torch.contiguous_format)
        ordered[..., :1] = rows.gather(-1, own.expand(*rows.shape[:-1], 1))
        torch.where(behind, rows[..., 1:], rows[..., :-1], out=ordered[..., 1:])
        return ordered

    if positives is None:
        return reorder(logits.detach()), None
    valid = reorder(~positives)
    valid[:, 0] = True
    return reorder(logits.detach()), valid


class StaticRadius(nn.Module):
    """One learnable radius for all pairs and both directions: a parameter of shape (1,), as FSDP refuses 0-d ones.

    Args:
        radius_init: Radius at the start.

    Example:
        >>> StaticRadius(0.25)(torch.zeros(3, 512)).tolist()
        [0.25, 0.25, 0.25]
    """

    def __init__(self, radius_init: float = 0.1):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([float(radius_init)]))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the radius as (B,), once for each of the B rows of any tensor."""
        return self.value.to(full_precision(rows).dtype).expand(len(rows))


class PredictedRadius(nn.Module, ABC):
    """Three-layer MLP from features of an anchor's similarities to its radius; subclasses define the features.

    The output is linear, so that both sides of `radius_constraint` can act. The last layer starts with weight 0 and bias
    `radius_init`: training starts as with `StaticRadius(radius_init)`.
    """

    def __init__(self, features: int, radius_init: float):
        super().__init__()
        layers = (nn.Linear(features, HIDDEN_SIZE), nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE), nn.Linear(HIDDEN_SIZE, 1))
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


class SimilarityRadius(PredictedRadius):
    """The paper's predictor: it reads all N similarities of an anchor, so every contrasted batch must have N pairs.

    Columns of the same clip are read as the smallest similarity of the row.

    Args:
        batch_size: N, the number of pairs contrasted (local batch x ranks when gathering).
        radius_init: Output at the start.
        on_batch_mismatch: For a batch of n != N pairs, "error" raises SettingsError; "pad" appends the smallest similarity
            of the row while n < N, and reads the positive and the N - 1 hardest negatives when n > N.

    Example:
        >>> predictor = SimilarityRadius(batch_size=3, radius_init=0.25)
        >>> similarities, valid = positive_first(torch.randn(3, 3), own=torch.arange(3))
        >>> predictor(similarities, valid).tolist()
        [0.25, 0.25, 0.25]
    """

    def __init__(
        self,
        batch_size: int,
        radius_init: float = 0.1,
        on_batch_mismatch: Literal["error", "pad"] = "error",
    ):
        super().__init__(batch_size, radius_init)
        self.batch_size = batch_size
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
        if n == self.batch_size and valid is None:
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
        negatives = negatives.maximum(smallest)
        padding = smallest.expand(-1, max(self.batch_size - n, 0))
        return torch.cat([positive, negatives, padding], dim=1)


class SummaryRadius(PredictedRadius):
    """A predictor for any number and order of negatives.

    It reads the positive; the `top_k` largest negatives, filled up with the smallest; the mean, standard deviation
    (population), minimum and logsumexp of the negatives. An anchor without negatives (a batch of one pair) is described
    by its positive, read as its only negative.

    Args:
        top_k: Number of the largest negatives that are read one by one.
        radius_init: Output at the start.

    Example:
        >>> predictor = SummaryRadius(radius_init=0.25)
        >>> [predictor(*positive_first(torch.randn(n, n), own=torch.arange(n))).shape[0] for n in (2, 9, 40)]
        [2, 9, 40]
    """

    def __init__(self, top_k: int = 8, radius_init: float = 0.1):
        super().__init__(top_k + 5, radius_init)
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
