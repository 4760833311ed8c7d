"""What support vectors and chunks cost, as ratios of times measured in turns in one run.

    python benchmarks/svr_cost.py step --max-ratio 1.02
    python benchmarks/svr_cost.py loss --max-ratio 4
    python benchmarks/svr_cost.py chunks --batches 4096 --max-ratio 1.3
    python benchmarks/svr_cost.py memory --batches 32768 --max-gib 3

`step` compares whole training steps (forward, backward, AdamW) of random CED-Base and BERT-base towers with InfoNCE and with
bi-DynamicSVR, and prints what a measurement of the drift adds at its default interval. `loss` compares the loss alone, forward
and backward. `chunks` compares bi-DynamicSVR in chunks with the one that takes all rows at once. `memory` takes one step of
bi-DynamicSVR in chunks, and prints the largest resident size of this process, libraries included.

Both forms take turns, which change their order each time; a ratio is the median of the turns' ratios. Times are CPU time of
one thread, which other processes disturb less than they do the wall clock. Exit status 1 beyond the limit.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import BertConfig

from supclap import CedConfig, SupClapConfig, SupClapForContrastiveTraining, SupClapLoss, SupClapModel
from supclap.losses.diagnostics import push_statistics
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.callbacks.drift import MEMORY_BATCHES, embed_in_eval_mode
from supclap.training.runtime import keep_freed_memory


def ratio_of_turns(forms: dict[str, Callable[[], object]], repeats: int) -> tuple[dict[str, float], float]:
    """Median CPU seconds of each of two forms, and the median over turns of the second's time over the first's."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(repeats + 1):
        for name in list(forms)[:: 1 if turn % 2 else -1]:
            start = time.process_time()
            forms[name]()
            if turn:  # the first one warms up
                times[name].append(time.process_time() - start)
    first, second = times.values()
    ratio = statistics.median(b / a for a, b in zip(first, second, strict=True))
    return {name: statistics.median(values) for name, values in times.items()}, ratio


def gradients_of(criterion: SupClapLoss, batch: int, dim: int) -> Callable[[], object]:
    """One forward and backward pass of a loss, of the same embeddings each time."""
    torch.manual_seed(0)
    audio, text = (F.normalize(torch.randn(batch, dim), dim=-1).requires_grad_() for _ in range(2))
    scale = torch.tensor(1 / 0.07, requires_grad=True)
    leaves = [audio, text, scale, *criterion.parameters()]
    return lambda: torch.autograd.grad(criterion(audio, text, scale).loss, leaves)


def compare_losses(first: tuple[str, SupClapLoss], second: tuple[str, SupClapLoss], batch: int, args) -> float:
    forms = {name: gradients_of(criterion, batch, args.dim) for name, criterion in (first, second)}
    medians, ratio = ratio_of_turns(forms, args.repeats or max(3, 10_000 // batch))
    times = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in medians.items())
    print(f"batch {batch:6}: {times}: {ratio:.2f}")
    return ratio


def memory(batch: int, args) -> float:
    step = gradients_of(SupClapLoss(batch_size=batch, loss_chunk_size=args.chunk), batch, args.dim)
    peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]
    start = time.process_time()
    step()
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    print(
        f"batch {batch} x {args.dim}, chunks of {args.chunk}: peak {peaks[1]:.2f} GiB ({peaks[0]:.2f} before the step), "
        f"{time.process_time() - start:.0f} s of CPU; one matrix of logits would be {4 * batch**2 / 2**30:.2f} GiB"
    )
    return peaks[1]


def whole_step(batch: int, args) -> float:
    torch.manual_seed(0)
    config = SupClapConfig(text_config=BertConfig(), audio_config=CedConfig.from_size("ced-base"), projection_dim=1024)
    clap = SupClapModel(config)
    inputs = {
        "input_features": torch.randn(batch, int(100 * args.seconds) + 1, 64) * 20 - 40,
        "input_ids": torch.randint(1000, 30000, (batch, args.tokens)),
    }
    forms = {}
    for name, criterion in {"InfoNCE": SupClapLoss(svr=None), "bi-DynamicSVR": SupClapLoss(batch_size=batch)}.items():
        model = SupClapForContrastiveTraining(clap, criterion).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

        def step(model=model, optimizer=optimizer):
            model(**inputs)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()

        forms[name] = step
    medians, ratio = ratio_of_turns(forms, args.repeats or 5)
    parameters = sum(parameter.numel() for parameter in clap.parameters()) / 1e6
    print(f"CED-Base + BERT-base ({parameters:.0f} M), batch {batch}, {args.seconds:g} s clips, {args.tokens} tokens:")
    print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items()) + f": {ratio:.4f}")

    defaults = {name: field.default for name, field in SupClapTrainingArguments.__dataclass_fields__.items()}
    batches = [inputs] * -(-defaults["drift_probe_size"] // batch)
    start = time.process_time()
    for _ in range(2):  # before and after the step
        audio, text = embed_in_eval_mode(model, batches)
    past = [F.normalize(torch.randn(batch, audio.shape[1]), dim=-1)] * MEMORY_BATCHES
    push_statistics(text, audio, past, 14.0)
    push_statistics(audio, text, past, 14.0)
    measurement = time.process_time() - start
    share = measurement / (defaults["drift_steps"] * medians["bi-DynamicSVR"])
    print(f"a measurement of the drift: {measurement:.2f} s, {share:.1%} of {defaults['drift_steps']} steps")
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["step", "loss", "chunks", "memory"])
    parser.add_argument("--batches", type=int, nargs="+", help="24 for `step`, 24 to 4,096 else")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=512, help="rows at a time of `chunks` and `memory`")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the clips of `step`")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, help="turns; by default more for smaller batches")
    parser.add_argument("--max-ratio", type=float)
    parser.add_argument("--max-gib", type=float)
    args = parser.parse_args()
    if args.what == "memory":
        peaks = [memory(batch, args) for batch in args.batches or [4096]]
        return int(args.max_gib is not None and max(peaks) > args.max_gib)
    torch.set_num_threads(1)
    keep_freed_memory()  # as training does
    ratios = []
    for batch in args.batches or ([24] if args.what == "step" else [24, 96, 384, 768, 1536, 2100, 3072, 4096]):
        whole = ("bi-DynamicSVR", SupClapLoss(batch_size=batch))
        if args.what == "step":
            ratios.append(whole_step(batch, args))
        elif args.what == "loss":
            ratios.append(compare_losses(("InfoNCE", SupClapLoss(svr=None)), whole, batch, args))
        else:
            chunked = ("in chunks", SupClapLoss(batch_size=batch, loss_chunk_size=args.chunk))
            ratios.append(compare_losses(whole, chunked, batch, args))
    return int(args.max_ratio is not None and max(ratios) > args.max_ratio)


if __name__ == "__main__":
    sys.exit(main())
