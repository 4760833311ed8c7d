"""Parts of training that join a Trainer by themselves where the arguments ask for them."""

from typing import Self

from transformers import Trainer, TrainerCallback

from supclap.errors import SettingsError


class TrainingPart(TrainerCallback):
    """A callback that knows which arguments ask for it, and which settings it cannot go with."""

    @classmethod
    def for_trainer(cls, trainer: Trainer) -> Self | None:
        """The part of a Trainer that is being made; None where its arguments do not ask for it.

        Raises:
            SettingsError: They ask for it together with something that it cannot go with.
        """
        return cls()


def check_weights_are_whole(trainer: Trainer, setting: str) -> None:
    """Raises a [`SettingsError`] where each process holds a share of the weights only."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise SettingsError(f"{setting} needs the whole weights on each process: leave it out with FSDP or DeepSpeed.")
