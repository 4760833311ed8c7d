"""How long a run takes."""

import time

from transformers import TrainerCallback, TrainerState


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
