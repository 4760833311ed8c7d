"""What support vectors cost: InfoNCE against bi-DynamicSVR, as ratios of times measured in turns in one run.

    python benchmarks/svr_cost.py loss --max-ratio 2.8
    python benchmarks/svr_cost.py loss --batches 16384 --chunk 512 --repeats 1
    python benchmarks/svr_cost.py step --max-ratio 1.02

`loss` takes the loss alone, forward and backward. `step` takes whole training steps (forward, backward, AdamW) of random
CED-Base and BERT-base towers, and prints what a measurement of the drift adds at its default interval. Times are CPU time
of one thread, which other processes disturb less than they do the wall clock. Exit status 1 beyond the limit.
"""

import argparse
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from transformers import BertConfig

from supclap import CedConfig, SupClapConfig, SupClapForContrastiveTraining, SupClapLoss, SupClapModel
from supclap.losses.diagnostics import push_statistics
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.callbacks.drift import MEMORY_BATCHES, embed_in_eval_mode
from supclap.training.runtime import keep_freed_memory


def criteria(batch: int, chunk: int | None = None) -> dict[str, SupClapLoss]:
    return {
        "InfoNCE": SupClapLoss(svr=None, chunk_size=chunk),
        "bi-DynamicSVR": SupClapLoss(batch_size=batch, chunk_size=chunk),
    }


def ratio_of_turns(forms: dict, repeats: int, warm_up: int = 1) -> tuple[dict[str, float], float]:
    """Median CPU seconds of each form, called in turns, and the second's over the first's."""
    times = {name: [] for name in forms}
    for turn in range(repeats + warm_up):
        for name, function in forms.items():
            start = time.process_time()
            function()
            if turn >= warm_up:
                times[name].append(time.process_time() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    first, second = medians.values()
    return medians, second / first


def loss_alone(batch: int, dim: int, chunk: int | None, repeats: int) -> float:
    torch.manual_seed(0)
    audio, text = (F.normalize(torch.randn(batch, dim), dim=-1).requires_grad_() for _ in range(2))
    scale = torch.tensor(1 / 0.07, requires_grad=True)

    def run(criterion: SupClapLoss):
        return lambda: criterion(audio, text, scale).loss.backward()

    forms = {name: run(criterion) for name, criterion in criteria(batch, chunk).items()}
    medians, ratio = ratio_of_turns(forms, repeats)
    print(
        f"batch {batch:6}: " + ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in medians.items()) + f": {ratio:.2f}"
    )
    return ratio


def whole_step(batch: int, seconds: float, tokens: int, repeats: int) -> float:
    torch.manual_seed(0)
    config = SupClapConfig(text_config=BertConfig(), audio_config=CedConfig.from_size("ced-base"), projection_dim=1024)
    clap = SupClapModel(config)
    inputs = {
        "input_features": torch.randn(batch, int(100 * seconds) + 1, 64) * 20 - 40,
        "input_ids": torch.randint(1000, 30000, (batch, tokens)),
    }
    forms = {}
    for name, criterion in criteria(batch).items():
        model = SupClapForContrastiveTraining(clap, criterion).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

        def step(model=model, optimizer=optimizer):
            model(**inputs)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()

        forms[name] = step
    medians, ratio = ratio_of_turns(forms, repeats)
    parameters = sum(parameter.numel() for parameter in clap.parameters()) / 1e6
    print(f"CED-Base + BERT-base ({parameters:.0f} M), batch {batch}, {seconds:g} s clips, {tokens} tokens:")
    print(", ".join(f"{name} {t:.2f} s" for name, t in medians.items()) + f": {ratio:.4f}")

    defaults = {name: field.default for name, field in SupClapTrainingArguments.__dataclass_fields__.items()}
    batches = [inputs] * -(-defaults["drift_probe_size"] // batch)
    start = time.process_time()
    for _ in range(2):  # before and after the step
        audio, text = embed_in_eval_mode(model, batches)
    memory = [F.normalize(torch.randn(batch, audio.shape[1]), dim=-1)] * MEMORY_BATCHES
    push_statistics(text, audio, memory, 14.0)
    push_statistics(audio, text, memory, 14.0)
    measurement = time.process_time() - start
    share = measurement / (defaults["drift_steps"] * medians["bi-DynamicSVR"])
    print(f"a measurement of the drift: {measurement:.2f} s, {share:.1%} of {defaults['drift_steps']} steps")
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["loss", "step"])
    parser.add_argument("--batches", type=int, nargs="+", default=[24, 96, 384, 768, 1536, 2100, 3072, 4096])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--chunk", type=int, help="rows of the loss at a time")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of the clips of `step`")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, help="turns; by default more for smaller batches")
    parser.add_argument("--max-ratio", type=float)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as train_supclap.py does
    if args.what == "step":
        ratios = [whole_step(24, args.seconds, args.tokens, args.repeats or 5)]
    else:
        ratios = [
            loss_alone(batch, args.dim, args.chunk, args.repeats or max(3, 10_000 // batch)) for batch in args.batches
        ]
    return int(args.max_ratio is not None and max(ratios) > args.max_ratio)


if __name__ == "__main__":
    sys.exit(main())
