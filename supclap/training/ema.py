"""Exponential moving average of the weights: evaluated and saved in place of those that training changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import Trainer

from supclap.training.callbacks.part import TrainingPart, check_weights_are_whole


TRAINING_WEIGHTS = "_training_weights.safetensors"


class WeightAverage(TrainingPart):
    """Averages the trained parameters after each step: `average = decay * average + (1 - decay) * weights`.

    Args:
        model: The model whose trained parameters are averaged. Each process has to hold all of them.
        decay: Share of the old average, in [0, 1).
    """

    def __init__(self, model: torch.nn.Module, decay: float):
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.average: dict[str, torch.Tensor] | None = None
        self._update = get_ema_multi_avg_fn(decay)

    @classmethod
    def for_trainer(cls, trainer: Trainer) -> "WeightAverage | None":
        if trainer.args.ema_decay is None:
            return None
        check_weights_are_whole(trainer, "ema_decay")
        return cls(trainer.model, trainer.args.ema_decay)

    def start(self) -> None:
        """Starts from the weights as they are."""
        self.average = {name: value.detach().clone() for name, value in self.parameters.items()}

    def on_train_begin(self, args, state, control, **kwargs):
        if self.average is None:
            self.start()

    def on_train_end(self, args, state, control, **kwargs):
        self.finish()

    def on_step_end(self, args, state, control, **kwargs):
        with torch.no_grad():
            self._update(list(self.average.values()), list(self.parameters.values()), None)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights. After training, and before it, this changes nothing."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, average in (self.average or {}).items():
            weights = self.parameters[name].clone()
            self.parameters[name].copy_(average)
            average.copy_(weights)

    def finish(self) -> None:
        """Ends training with the averaged weights in the model."""
        self._swap()
        self.average = None

    def save_training_weights(self, folder: str | Path) -> None:
        """Saves the weights that training goes on from, beside the averaged ones."""
        weights = {name: value.detach().cpu().contiguous() for name, value in self.parameters.items()}
        save_file(weights, Path(folder) / TRAINING_WEIGHTS)

    @torch.no_grad()
    def resume(self, folder: str | Path) -> None:
        """Takes the model's weights, just loaded from a checkpoint, as the average; training goes on from its other weights."""
        self.start()
        weights = load_file(Path(folder) / TRAINING_WEIGHTS)
        for name, value in self.parameters.items():
            value.copy_(weights[name])
