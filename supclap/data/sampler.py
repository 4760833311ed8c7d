"""Batches of clips of similar length, so that little time goes into padding."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler


class LengthGroupedSampler(Sampler[int]):
    """A random order in which each `batch_size` clips in a row are of similar length; a function of seed and epoch.

    Args:
        lengths: Length of each clip, in any unit.
        batch_size: Clips of one batch.
        seed: Seed of the order.
        group: Number of batches that are sorted together; larger groups need less padding but are less random.
    """

    def __init__(self, lengths: Sequence[float], batch_size: int, seed: int = 0, group: int = 20):
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.group = group
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self.lengths))
        size = self.batch_size * self.group
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        order = np.concatenate([chunk[np.argsort(self.lengths[chunk], kind="stable")] for chunk in chunks])
        whole = len(order) // self.batch_size * self.batch_size
        # the clips that fill no whole batch stay last, where a loader that wants whole batches drops them
        batches = rng.permutation(order[:whole].reshape(-1, self.batch_size))
        return iter([*batches.ravel().tolist(), *order[whole:].tolist()])
