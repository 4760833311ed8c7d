"""Mixtures of corpora, of which each gives its share of an epoch, whatever its size."""

from collections.abc import Mapping, Sequence

import numpy as np

from supclap.errors import DataError

from .dataset import stable_hash
from .rows import removed_of


class CorpusMixture(Sequence):
    """Rows of several corpora, each with its share of an epoch.

    Each corpus is walked through in a random order that goes on from epoch to epoch, and is begun anew where it ends. A
    corpus that gives few of its clips to an epoch therefore gives others to the next one. What an epoch holds is a
    function of the seed and the epoch.

    Args:
        parts: Rows of each corpus, by name.
        weights: Share of each, in any unit; by the number of rows when omitted.
        size: Rows of an epoch; as many as the corpora have together when omitted.
        seed: Seed of the order in each corpus.

    Raises:
        DataError: A weight is missing or not positive, a corpus is empty, or the epoch is too short for all of them.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[dict]],
        weights: Mapping[str, float] | None = None,
        size: int | None = None,
        seed: int = 0,
    ):
        weights = {name: float(len(rows)) for name, rows in parts.items()} if weights is None else dict(weights)
        if set(weights) != set(parts) or any(not weight > 0 for weight in weights.values()):
            raise DataError(f"Give each of {', '.join(parts)} a weight above 0; got {weights}.")
        self.parts = dict(parts)
        self.seed = seed
        self.shares = _apportion(sum(map(len, parts.values())) if size is None else size, weights)
        if not all(self.shares.values()):
            raise DataError(f"An epoch of {size} rows leaves none for {min(self.shares, key=self.shares.get)}.")
        self.removed = [item for rows in parts.values() for item in removed_of(rows)]
        # their lengths change with the epoch, so batches cannot be grouped by them once and for all
        self.lengths = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        # the places of this epoch in the endless walk through each corpus; a turn is one walk from end to end
        self._plan = []
        for name, share in self.shares.items():
            rows = len(self.parts[name])
            places = np.arange(epoch * share, (epoch + 1) * share)
            for turn in np.unique(places // rows):
                order = np.random.default_rng([self.seed, stable_hash(name), int(turn)]).permutation(rows)
                chosen = order[places[places // rows == turn] % rows]
                self._plan.append((name, int(turn), chosen))
        self._ends = np.cumsum([len(chosen) for _, _, chosen in self._plan])

    def __len__(self) -> int:
        return sum(self.shares.values())

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        part = int(np.searchsorted(self._ends, index, side="right"))
        name, turn, chosen = self._plan[part]
        place = int(chosen[index - (self._ends[part] - len(chosen))])
        return {**self.parts[name][place], "repeat": [turn]}


def _apportion(size: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Whole shares of the size, by the largest remainders."""
    total = sum(weights.values())
    exact = {name: size * weight / total for name, weight in weights.items()}
    shares = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: size - sum(shares.values())]:
        shares[name] += 1
    return shares
