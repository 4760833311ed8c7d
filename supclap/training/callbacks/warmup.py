"""The weights of L_svr and L_cons at the beginning of a run."""

from transformers import Trainer

from supclap.losses import SupClapLoss
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.callbacks.part import TrainingPart


class WeightWarmupCallback(TrainingPart):
    """Raises the weights of L_svr and L_cons linearly from 0 in the first steps of a run.

    A weight depends on the number of the step alone, so that a resumed run needs no state of its own for it.

    Args:
        criterion: The objective.
        args: The training arguments, with both weights and the share of the steps in which each rises.
    """

    def __init__(self, criterion: SupClapLoss, args: SupClapTrainingArguments):
        self.criterion = criterion
        self.schedules = {
            "svr_weight": (args.svr_weight, args.svr_warmup),
            "constraint_weight": (args.constraint_weight, args.constraint_warmup),
        }

    @classmethod
    def for_trainer(cls, trainer: Trainer) -> "WeightWarmupCallback | None":
        rising = trainer.args.svr_warmup or trainer.args.constraint_warmup
        return cls(trainer.model.criterion, trainer.args) if rising else None

    def on_step_begin(self, args, state, control, **kwargs):
        for name, (weight, share) in self.schedules.items():
            rising = share * state.max_steps
            setattr(self.criterion, name, weight * min(1.0, (state.global_step + 1) / rising) if rising else weight)
