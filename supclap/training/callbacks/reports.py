"""What a run tells of itself while it trains: a line at each log, a picture of its course, and its time."""

import time
from pathlib import Path

from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging

from supclap.files import TRAINING_CURVES
from supclap.plots import plot_training_curves


logger = logging.get_logger(__name__)

# Logged value -> what the line calls it.
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
    """The Trainer's progress bar, with a short line of a few values at each log. The log itself keeps all of them."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        shown = [f"{name} {logs[key]:.3g}" for key, name in LINE.items() if key in (logs or {})]
        if shown and state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.write(f"step {state.global_step}: {', '.join(shown)}")

    def close(self) -> None:
        """Closes the bars that an error has left open, so that its message starts on a line of its own."""
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()


class TrainingCurvesCallback(TrainerCallback):
    """Writes `training_curves.png` beside the checkpoints whenever one is saved, and at the end."""

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            try:
                plot_training_curves(state.log_history, Path(args.output_dir) / TRAINING_CURVES)
            except OSError as error:  # a run does not end because its picture cannot be written
                logger.warning(f"{TRAINING_CURVES} could not be written: {error}")

    on_train_end = on_save


class TrainingTimeCallback(TrainerCallback):
    """Counts the wall time of training and validation, over all starts of a run.

    Each checkpoint holds the time up to it. A run that goes on from a checkpoint adds to that time, so the steps that a
    kill has undone are not counted.
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
