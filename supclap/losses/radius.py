"""Radius of the support vectors: one learnable number, or an MLP on the similarities of each anchor."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supclap.losses.precision import full_precision, without_autocast


def positive_first(logits: Tensor, column: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Order each row as the radius predictors read it: own positive, then the other columns in batch order.

    Args:
        logits: (B, N) scaled similarities, without bias.
        column: (B,) int64, the column of each row's own positive.
        positives: (B, N) bool, the columns of the same clip (own positive included).

    Returns:
        The (B, N) similarities in the new order, and a (B, N) bool mask, False where a column is no negative because it
        belongs to the same clip (True for the own positive).
    """
    others = torch.arange(logits.shape[1] - 1, device=logits.device)
    others = others + (others >= column[:, None])
    order = torch.cat([column[:, None], others], dim=1)
    valid = ~positives.gather(1, order)
    valid[:, 0] = True
    return logits.gather(1, order), valid


class StaticRadius(nn.Module):
    """One radius for all pairs, a learnable parameter of shape (1,) (FSDP refuses 0-d parameters)."""

    def __init__(self, radius_init: float = 0.1):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([float(radius_init)]))

    def forward(self, similarities: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the radius as (B,) for (B, N) similarities, whose values it does not use."""
        return self.value.to(full_precision(similarities).dtype).expand(len(similarities))


class PredictedRadius(nn.Module):
    """Three-layer MLP from features of the similarities to a radius; subclasses say what the features are.

    The output is linear, so that both sides of `radius_constraint` can act. The last layer starts at weight 0 and bias
    `radius_init`, so that training starts as `StaticRadius(radius_init)`.

    Args:
        features: Number of input features.
        hidden_size: Width of the two hidden layers.
        radius_init: Output at the start.
    """

    def __init__(self, features: int, hidden_size: int = 128, radius_init: float = 0.1):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(features, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, 1),
        )
        nn.init.zeros_(self.mlp[-1].weight)
        nn.init.constant_(self.mlp[-1].bias, radius_init)

    def features(self, similarities: Tensor, valid: Tensor) -> Tensor:
        """Map (B, N) similarities, positive first, and their mask to the (B, features) input of the MLP."""
        raise NotImplementedError

    def forward(self, similarities: Tensor, valid: Tensor | None = None) -> Tensor:
        """Predict a radius per row.

        Args:
            similarities: (B, N), scaled by 1/tau, positive first. Detached here: a gradient through them would add
                terms to the embeddings that break the law of `support_vectors`.
            valid: (B, N) bool, False for columns to leave out; all True when omitted.

        Returns:
            (B,) in float32, or float64 for float64 input.
        """
        similarities = full_precision(similarities.detach())
        valid = torch.ones_like(similarities, dtype=torch.bool) if valid is None else valid
        features = self.features(similarities, valid)
        with without_autocast(features):
            return self.mlp(features.to(self.mlp[0].weight.dtype)).squeeze(-1).to(similarities.dtype)


class SimilarityRadius(PredictedRadius):
    """The paper's predictor: reads the N similarities of an anchor, so N is the size of every contrasted batch.

    A column of the same clip is read as the smallest similarity of its row.

    Args:
        batch_size: N, the number of pairs contrasted (local batch x ranks when gathering).
        hidden_size: Width of the two hidden layers.
        radius_init: Output at the start.
        sort_negatives: Sort the negatives, hardest first, which makes the prediction independent of the batch order.
        on_batch_mismatch: What to do with a batch of n != N pairs: "error" raises; "pad" fills up with the smallest
            similarity of the row when n < N, and keeps the positive and the N - 1 hardest negatives when n > N.
    """

    def __init__(
        self,
        batch_size: int,
        hidden_size: int = 128,
        radius_init: float = 0.1,
        sort_negatives: bool = False,
        on_batch_mismatch: Literal["error", "pad"] = "error",
    ):
        super().__init__(batch_size, hidden_size, radius_init)
        self.batch_size = batch_size
        self.sort_negatives = sort_negatives
        self.on_batch_mismatch = on_batch_mismatch

    def features(self, similarities: Tensor, valid: Tensor) -> Tensor:
        """Return (B, N), filled, cut and sorted as configured; raise ValueError for n != N without a policy."""
        n = similarities.shape[1]
        if n != self.batch_size and self.on_batch_mismatch == "error":
            raise ValueError(
                f"The radius predictor was built for N={self.batch_size} pairs per contrasted batch (all ranks together), "
                f"this batch has {n}. Use drop_last=True and batch_size={n} if that is the real size, or choose "
                "on_batch_mismatch='pad', or radius_predictor='summary', which takes any size."
            )
        smallest = similarities.masked_fill(~valid, torch.inf).amin(1, keepdim=True)
        similarities = torch.where(valid, similarities, smallest)
        positive, negatives = similarities[:, :1], similarities[:, 1:]
        if n > self.batch_size:
            hardest = negatives.topk(self.batch_size - 1).indices.sort().values
            negatives = negatives.gather(1, hardest)
        if self.sort_negatives:
            negatives = negatives.sort(descending=True).values
        padding = smallest.expand(-1, max(self.batch_size - n, 0))
        return torch.cat([positive, negatives, padding], dim=1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(f"{prefix}mlp.0.weight")
        if weight is not None and weight.shape[1] != self.batch_size:
            raise ValueError(
                f"The saved radius predictor reads N={weight.shape[1]} similarities, this one N={self.batch_size}: resume "
                "with the same global batch (local batch x ranks), or use radius_predictor='summary', which takes any."
            )
        super()._load_from_state_dict(state_dict, prefix, *args)


class SummaryRadius(PredictedRadius):
    """A predictor for any batch size and order: reads the positive, the hardest negatives and summary statistics.

    Features: positive; `top_k` largest negatives in descending order, filled up with the smallest; mean, standard
    deviation (population), minimum and logsumexp of the negatives. A row without negatives (a batch of one pair) is
    described by its positive, read as its only negative.

    Args:
        top_k: Number of hardest negatives read one by one.
        hidden_size: Width of the two hidden layers.
        radius_init: Output at the start.
    """

    def __init__(self, top_k: int = 8, hidden_size: int = 128, radius_init: float = 0.1):
        super().__init__(top_k + 5, hidden_size, radius_init)
        self.top_k = top_k

    def features(self, similarities: Tensor, valid: Tensor) -> Tensor:
        """Return (B, top_k + 5)."""
        negative = valid[:, 1:]
        negative = torch.cat([~negative.any(1, keepdim=True), negative], dim=1)
        count = negative.sum(1, keepdim=True)
        mean = similarities.masked_fill(~negative, 0).sum(1, keepdim=True) / count
        deviation = ((similarities - mean).masked_fill(~negative, 0).square().sum(1, keepdim=True) / count).sqrt()
        smallest = similarities.masked_fill(~negative, torch.inf).amin(1, keepdim=True)
        hardness = similarities.masked_fill(~negative, -torch.inf)
        hardest = hardness.topk(min(self.top_k, hardness.shape[1])).values
        hardest = F.pad(hardest, (0, self.top_k - hardest.shape[1]), value=-torch.inf).maximum(smallest)
        return torch.cat(
            [similarities[:, :1], hardest, mean, deviation, smallest, hardness.logsumexp(1, keepdim=True)], dim=1
        )
