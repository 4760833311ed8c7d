"""Waveforms kept in memory up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np


class WaveformCache:
    """Results of a function that loads arrays, the least recently used dropped beyond a number of bytes.

    Args:
        load: Loads the array of a key.
        max_bytes: Bytes kept at most; an array that is larger alone is not kept. Each worker process has its own.
    """

    def __init__(self, load: Callable[[Hashable], np.ndarray], max_bytes: int):
        self.load = load
        self.max_bytes = max_bytes
        self.size = 0
        self._arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()

    def __call__(self, key: Hashable) -> np.ndarray:
        if key in self._arrays:
            self._arrays.move_to_end(key)
            return self._arrays[key]
        array = self.load(key)
        if array.nbytes <= self.max_bytes:
            self._arrays[key] = array
            self.size += array.nbytes
            while self.size > self.max_bytes:
                self.size -= self._arrays.popitem(last=False)[1].nbytes
        return array
