"""Share of padding in training batches of clips of 15-30 s, in random batches and in those of like length.

`python benchmarks/padding_waste.py`; needs no audio: what is padded follows from the lengths.
"""

import argparse

import numpy as np

from supclap.data.sampler import LengthGroupedSampler


def padding_waste(lengths: np.ndarray, order: np.ndarray, batch_size: int) -> float:
    """Share of the frames of full batches that are padding."""
    order = order[: len(order) // batch_size * batch_size]
    batches = lengths[order].reshape(-1, batch_size)
    return float(1 - batches.sum() / (batches.max(axis=1).sum() * batch_size))


def measure(clips: int = 3839, batch_size: int = 24, seed: int = 0) -> dict[str, float]:
    """Waste of one epoch in each kind of batch, for as many clips as Clotho's development set has."""
    lengths = np.random.default_rng(seed).uniform(15, 30, clips)
    grouped = np.array(list(LengthGroupedSampler(lengths, batch_size, seed)))
    return {
        "random": padding_waste(lengths, np.random.default_rng(seed).permutation(clips), batch_size),
        "group_by_length": padding_waste(lengths, grouped, batch_size),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=3839)
    parser.add_argument("--batch-size", type=int, default=24)
    options = parser.parse_args()
    for name, waste in measure(options.clips, options.batch_size).items():
        print(f"{name:16} {waste:6.1%} of the frames are padding")
