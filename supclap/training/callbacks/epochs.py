"""The number of the epoch, from which data and samplers draw."""

from collections.abc import Iterator

from supclap.training.callbacks.part import TrainingPart


class EpochCallback(TrainingPart):
    """Tells the data set and the samplers which epoch begins.

    Accelerate tells only one of them where batches are split over processes, or where a run goes on within an epoch.
    The other would repeat its captions and crops, or its order.
    """

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        epoch = int(state.epoch or 0)
        node = getattr(train_dataloader, "batch_sampler", None)
        for part in (getattr(train_dataloader, "dataset", None), *_chain(node)):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


def _chain(node: object | None) -> Iterator[object]:
    """A batch sampler and the samplers inside it."""
    while node is not None:
        yield node
        node = getattr(node, "batch_sampler", None) or getattr(node, "sampler", None)
