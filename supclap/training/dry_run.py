"""`--dry-run`: the plan of a run, with the time and the memory of three measured steps. Nothing is written."""

import statistics
import sys
import time

import torch
from transformers import TrainerCallback

from supclap.training.trainer import SupClapTrainer


MEASURED_STEPS = 3


class _Stopwatch(TrainerCallback):
    """Ends training after a first step, which warms up, and the measured ones. Nothing is evaluated or saved."""

    def __init__(self):
        self.times: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter())
        control.should_evaluate = control.should_save = control.should_log = False
        control.should_training_stop = len(self.times) > MEASURED_STEPS

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_evaluate = control.should_save = control.should_log = False

    def seconds_per_step(self) -> float | None:
        gaps = [after - before for before, after in zip(self.times, self.times[1:])]
        return statistics.median(gaps) if gaps else None


def parameter_table(trainer: SupClapTrainer) -> list[tuple[str, int, int]]:
    """Name of each part of the model with its numbers of trained and frozen parameters."""
    clap, criterion = trainer.model.clap, trainer.model.criterion
    heads = torch.nn.ModuleList([clap.text_projection, clap.audio_projection])
    scalars = [value for value in (clap.logit_scale, clap.logit_bias) if value is not None]
    parts = {
        "text tower": clap.text_model.parameters(),
        "audio tower": clap.audio_model.parameters(),
        "projections": heads.parameters(),
        "temperature, bias": scalars,
        "radius": criterion.parameters(),
    }
    rows = []
    for name, parameters in parts.items():
        parameters = list(parameters)
        trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        rows.append((name, trained, sum(parameter.numel() for parameter in parameters) - trained))
    return rows


def _peak_memory(device: torch.device) -> tuple[float, str]:
    """The peak of the memory so far in GB, and what it is the memory of."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9, "of the GPU"
    import resource  # Windows has no such module, and trains without it

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, "of the whole process"


def duration(seconds: float) -> str:
    """A time in a readable unit: `45 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.3g} h"


def plan(trainer: SupClapTrainer, counts: dict[str, int | None]) -> str:
    """Trains a few steps and describes the run.

    Args:
        trainer: A trainer that has not trained yet, whose `output_dir` may be thrown away.
        counts: Rows or scenes of each split; `None` of a stream.
    """
    table = parameter_table(trainer)
    trained, frozen = (sum(row[column] for row in table) for column in (1, 2))
    stopwatch = _Stopwatch()
    trainer.add_callback(stopwatch)
    trainer.train()
    args, state = trainer.args, trainer.state
    pairs = args.train_batch_size * args.world_size
    seconds = stopwatch.seconds_per_step()
    peak, where = _peak_memory(args.device)
    lines = [
        "plan (dry run: nothing was written)",
        "data         " + ", ".join(f"{'a stream of' if n is None else f'{n:,}'} {s}" for s, n in counts.items()),
    ]
    drawn = state.max_steps * args.gradient_accumulation_steps * pairs
    lines += [
        f"steps        {state.max_steps:,} of {pairs} pairs ({args.train_batch_size} on each of {args.world_size} "
        f"processes), "
        + (f"{drawn:,} clips" if counts["train"] is None else f"{drawn / counts['train']:.1f} epochs")
        + (f", {args.gradient_accumulation_steps} batches a step" if args.gradient_accumulation_steps > 1 else "")
    ]
    lines += [
        f"{'parameters' if i == 0 else '':13}{n:18}{t:>14,} trained{f:>14,} frozen"
        for i, (n, t, f) in enumerate(table)
    ]
    lines += [
        f"memory       weights {(trained + frozen) * 4 / 1e9:.2f} GB, gradients {trained * 4 / 1e9:.2f} GB, Adam moments "
        f"{trained * 8 / 1e9:.2f} GB in float32 on one process; measured peak {where}: {peak:.2f} GB"
    ]
    if seconds is None:
        lines += ["time         not measured: the run has a single step"]
    else:
        lines += [
            f"time         {seconds:.3g} s a step (median of {len(stopwatch.times) - 1} after the first), "
            f"{duration(seconds * state.max_steps)} for all steps, without evaluation and checkpoints"
        ]
    return "\n".join(lines)
