"""The chunked loss against the one with all rows at once: peak memory of a large batch, and time of a smaller one.

    python benchmarks/chunked_loss.py memory --batch 32768 --max-gib 3
    python benchmarks/chunked_loss.py time --batch 4096 --max-ratio 1.3

`memory` makes one forward and backward pass of InfoNCE + bi-DynamicSVR in a process of its own and prints the largest
resident size of that process, libraries included. `time` lets both forms take turns and compares their medians, in CPU
time with one thread, which other processes disturb less than they do the wall clock; of bi-DynamicSVR, which a CPU takes in
chunks that fit its cache in any case, and of uni-DynamicSVR, which makes whole matrices. Exit status 1 beyond the limit.
"""

import argparse
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F

from supclap.losses import SupClapLoss


def step(criterion: SupClapLoss, audio: torch.Tensor, text: torch.Tensor, scale: torch.Tensor) -> float:
    """CPU seconds of one forward and backward pass."""
    start = time.process_time()
    criterion(audio, text, scale).loss.backward()
    return time.process_time() - start


def pairs(batch: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    audio, text = (F.normalize(torch.randn(batch, dim), dim=-1).requires_grad_() for _ in range(2))
    return audio, text, torch.tensor(1 / 0.07, requires_grad=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "time"])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=512, help="rows at a time")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each form")
    parser.add_argument("--max-gib", type=float, help="fail beyond this peak")
    parser.add_argument("--max-ratio", type=float, help="fail beyond this ratio of times")
    args = parser.parse_args()

    inputs = pairs(args.batch, args.dim)
    chunked = SupClapLoss(batch_size=args.batch, chunk_size=args.chunk)
    if args.what == "memory":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        seconds = step(chunked, *inputs)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"batch {args.batch} x {args.dim}, chunks of {args.chunk}: peak {peak:.2f} GiB ({before:.2f} before the step), "
            f"{seconds:.0f} s of CPU; one matrix of logits would be {4 * args.batch**2 / 2**30:.2f} GiB"
        )
        return int(args.max_gib is not None and peak > args.max_gib)
    torch.set_num_threads(1)
    ratios = []
    for direction in ("uni", "bi"):
        whole, chunked = (
            SupClapLoss(svr_direction=direction, batch_size=args.batch, chunk_size=size) for size in (None, args.chunk)
        )
        forms = {f"{direction}, no chunk size": whole, f"{direction}, chunked": chunked}
        times = {name: [] for name in forms}
        for turn in range(args.repeats + 1):
            for name, criterion in forms.items():
                seconds = step(criterion, *inputs)
                if turn:  # the first turn warms up
                    times[name].append(seconds)
        for name, values in times.items():
            print(f"{name:>18}: {statistics.median(values):7.3f} s (min {min(values):.3f}, max {max(values):.3f})")
        first, second = (statistics.median(values) for values in times.values())
        ratios.append(second / first)
        print(f"{'ratio':>18}: {ratios[-1]:7.2f}")
    return int(args.max_ratio is not None and max(ratios) > args.max_ratio)


if __name__ == "__main__":
    sys.exit(main())
