"""What changes with the number of the epoch or of the step."""

from supclap.training.callbacks.part import TrainingPart


class EpochCallback(TrainingPart):
    """Tells the data set and the samplers which epoch begins.

    Accelerate tells only one of them where batches are split over processes, or where a run goes on within an epoch.
    The other would repeat its captions and crops, or its order.
    """

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        parts = [getattr(train_dataloader, "dataset", None)]
        sampler = getattr(train_dataloader, "batch_sampler", None)
        while sampler is not None:  # the sampler of the batches, and those inside it
            parts.append(sampler)
            sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(int(state.epoch or 0))


class WeightWarmupCallback(TrainingPart):
    """Raises the weights of L_svr and L_cons linearly from 0 in the first steps of a run.

    A weight depends on the number of the step alone, so that a resumed run needs no state of its own for it.
    """

    @classmethod
    def for_trainer(cls, trainer):
        return cls() if trainer.args.svr_warmup or trainer.args.constraint_warmup else None

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        for term in ("svr", "constraint"):
            rising = getattr(args, f"{term}_warmup") * state.max_steps
            share = min(1.0, (state.global_step + 1) / rising) if rising else 1.0
            setattr(model.criterion, f"{term}_weight", getattr(args, f"{term}_weight") * share)
