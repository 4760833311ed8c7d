"""Waveforms kept in memory up to a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np


class WaveformCache:
    """Results of a function that loads arrays, the least recently used dropped beyond a number of bytes.

    Threads may share it; two that ask for the same array at once may both load it.

    Args:
        load: Loads the array of a key.
        max_bytes: Bytes kept at most; an array that is larger alone is not kept. Each worker process has its own.
    """

    def __init__(self, load: Callable[[Hashable], np.ndarray], max_bytes: int):
        self.load = load
        self.max_bytes = max_bytes
        self.size = 0
        self._arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_lock": None}  # a lock does not go to another process

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state | {"_lock": threading.Lock()}

    def __call__(self, key: Hashable) -> np.ndarray:
        with self._lock:
            if key in self._arrays:
                self._arrays.move_to_end(key)
                return self._arrays[key]
        array = self.load(key)
        with self._lock:
            if array.nbytes <= self.max_bytes and key not in self._arrays:
                self._arrays[key] = array
                self.size += array.nbytes
                while self.size > self.max_bytes:
                    self.size -= self._arrays.popitem(last=False)[1].nbytes
        return array
