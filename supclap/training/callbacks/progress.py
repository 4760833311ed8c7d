"""Callbacks of training: its course as short lines and as a picture, its time."""

import time
from collections.abc import Iterator
from pathlib import Path

from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging

from supclap.files import TRAINING_CURVES


logger = logging.get_logger(__name__)

PANELS = {
    "loss": ("loss_contrastive", "loss_svr", "loss_constraint", "eval_loss"),
    "radius": ("radius", "pair_distance", "radius_out_of_range", "temperature"),
    "retrieval": (
        "eval_text_to_audio/recall@1",
        "eval_audio_to_text/recall@1",
        "eval_text_to_audio/recall@10",
        "eval_audio_to_text/recall@10",
    ),
}


LINE = {
    "loss": "loss",
    "loss_contrastive": "contrastive",
    "loss_svr": "svr",
    "loss_constraint": "constraint",
    "radius": "R",
    "pair_distance": "|a-t|",
    "radius_out_of_range": "R outside",
    "temperature": "temperature",
    "eval_loss": "validation loss",
    "eval_text_to_audio/recall@1": "T->A R@1",
    "eval_text_to_audio/recall@10": "R@10",
    "eval_audio_to_text/recall@1": "A->T R@1",
    "eval_audio_to_text/recall@10": "R@10",
    "eval_zero_shot/accuracy": "zero-shot",
}


class ShortProgressCallback(ProgressCallback):
    """The Trainer's progress bar with one short line for each logged step or evaluation; the log keeps everything."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        shown = [f"{name} {logs[key]:.3g}" for key, name in LINE.items() if key in (logs or {})]
        if shown and state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.write(f"step {state.global_step}: {', '.join(shown)}")

    def close(self) -> None:
        """Ends the lines of bars that an error has left open, so that what is told next starts on one of its own."""
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()


class EpochCallback(TrainerCallback):
    """Tells the data and the samplers which epoch begins.

    Accelerate tells either one or the other when the batches are split over processes or resumed within an epoch, and
    captions, crops or the order would repeat.
    """

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        epoch = int(state.epoch or 0)
        node = getattr(train_dataloader, "batch_sampler", None)
        for part in (getattr(train_dataloader, "dataset", None), *_chain(node)):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


def _chain(node: object | None) -> Iterator[object]:
    """A batch sampler and all that it wraps."""
    while node is not None:
        yield node
        node = getattr(node, "batch_sampler", None) or getattr(node, "sampler", None)


def plot_training_curves(log_history: list[dict], path: str | Path) -> None:
    """Draws loss parts, radius and retrieval over the steps of a run.

    Args:
        log_history: The Trainer's `state.log_history`.
        path: The PNG to write.
    """
    if not any(name in entry for entry in log_history for names in PANELS.values() for name in names):
        return  # nothing was logged: no picture is better than an empty one
    from matplotlib.figure import Figure  # the object, not pyplot: no display and no global state

    figure = Figure(figsize=(15, 4), layout="constrained")
    for axis, (title, names) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for name in names:
            points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, marker="." if name.startswith("eval_") else None)
        axis.set(title=title, xlabel="step")
        if axis.lines:
            axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


class TrainingCurvesCallback(TrainerCallback):
    """Writes `training_curves.png` beside the checkpoints whenever one is saved, and at the end."""

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            try:
                plot_training_curves(state.log_history, Path(args.output_dir) / TRAINING_CURVES)
            except OSError as error:  # a picture is no reason to end a run
                logger.warning(f"{TRAINING_CURVES} could not be written: {error}")

    on_train_end = on_save


class TrainingTimeCallback(TrainerCallback):
    """Counts the wall time of training and validation over all parts of a run. Each checkpoint holds the time up to it,
    and a run that goes on from there adds to that: what a kill undid is not counted.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        self._began = time.perf_counter() - time_so_far(state)["seconds"]

    def on_step_end(self, args, state, control, **kwargs):
        time_so_far(state)["seconds"] = time.perf_counter() - self._began

    on_evaluate = on_step_end


def time_so_far(state: TrainerState) -> dict:
    """`seconds` of training up to now, counted from `first_step`: 0 unless the first part did not count."""
    beginning = {"seconds": 0.0, "first_step": state.global_step}
    return state.stateful_callbacks.setdefault(TrainingTimeCallback.__name__, beginning)


class WeightWarmupCallback(TrainerCallback):
    """Raises the weights of L_svr and L_cons linearly from 0 in the first steps; a function of the step alone.

    Args:
        criterion: The objective, a `SupClapLoss`.
        args: The training arguments, with both weights and the share of the steps in which each rises.
    """

    def __init__(self, criterion, args):
        self.criterion = criterion
        self.schedules = {
            "svr_weight": (args.svr_weight, args.svr_warmup),
            "constraint_weight": (args.constraint_weight, args.constraint_warmup),
        }

    def on_step_begin(self, args, state, control, **kwargs):
        for name, (weight, share) in self.schedules.items():
            rising = share * state.max_steps
            setattr(self.criterion, name, weight * min(1.0, (state.global_step + 1) / rising) if rising else weight)
