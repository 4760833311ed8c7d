"""Speed of the feature extractor, all checks on, against the one of transformers' CLAP, on the same machine and run.

Each extractor gets the same number of 10 s clips at its own native rate, so neither resamples. The two take turns of at
least a second, however many batches that takes: a core that has rested is slow for its first tens of milliseconds,
which would be a whole batch of the faster one. The medians over the turns are compared. Both keep their default number
of threads; a pause lets the threads of the one go to sleep before the other's turn. Exit status 1 if the ratio is below
`--min-ratio`.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from transformers import ClapFeatureExtractor

from processing_supclap import SupClapFeatureExtractor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=32, help="clips per batch")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a clip")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each extractor")
    parser.add_argument("--min-ratio", type=float, help="fail if we are not this many times as fast")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    extractors = {"supclap": SupClapFeatureExtractor(), "transformers CLAP": ClapFeatureExtractor()}
    batches = {
        name: [
            0.1 * rng.standard_normal(round(args.seconds * extractor.sampling_rate)).astype(np.float32)
            for _ in range(args.clips)
        ]
        for name, extractor in extractors.items()
    }
    speeds = {name: [] for name in extractors}
    for turn in range(args.repeats + 1):
        for name, extractor in extractors.items():
            time.sleep(0.3)
            start = time.perf_counter()
            count = seconds = 0
            while seconds < 1:
                extractor(batches[name], sampling_rate=extractor.sampling_rate, return_tensors="pt")
                count += args.clips
                seconds = time.perf_counter() - start
            if turn:  # the first turn warms up
                speeds[name].append(count / seconds)

    ours, theirs = (statistics.median(values) for values in speeds.values())
    print(
        f"{args.clips} clips of {args.seconds:g} s, {args.repeats} turns, {torch.get_num_threads()} threads of torch"
    )
    for name, values in speeds.items():
        print(f"{name:>18}: {statistics.median(values):7.1f} clips/s (min {min(values):.1f}, max {max(values):.1f})")
    print(f"{'ratio':>18}: {ours / theirs:7.1f}")
    if args.min_ratio is not None and ours / theirs < args.min_ratio:
        print(f"below the required {args.min_ratio:g}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
