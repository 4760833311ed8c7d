"""The course of a run as a picture."""

from pathlib import Path

from transformers import TrainerCallback
from transformers.utils import logging

from supclap.files import TRAINING_CURVES
from supclap.plots import plot_training_curves


logger = logging.get_logger(__name__)


class TrainingCurvesCallback(TrainerCallback):
    """Writes `training_curves.png` beside the checkpoints whenever one is saved, and at the end."""

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            try:
                plot_training_curves(state.log_history, Path(args.output_dir) / TRAINING_CURVES)
            except OSError as error:  # a run does not end because its picture cannot be written
                logger.warning(f"{TRAINING_CURVES} could not be written: {error}")

    on_train_end = on_save
