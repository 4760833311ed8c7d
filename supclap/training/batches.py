"""What a Trainer reads: rows as training samples, the collator, the order of the clips."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import datasets
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from transformers.utils import logging

from processing_supclap import SupClapFeatureExtractor
from supclap.data.collator import ContrastiveCollator
from supclap.data.corpora.hub import COLUMNS, DatasetRows
from supclap.data.dataset import CaptionedClips
from supclap.data.sampler import LengthGroupedSampler
from supclap.data.streaming import StreamedClips
from supclap.errors import SettingsError
from supclap.training.arguments import SupClapTrainingArguments


logger = logging.get_logger(__name__)


def build_collator(args: SupClapTrainingArguments, given: Callable | None, processor: Any) -> Callable:
    """The collator of training, which leaves the features to the device of the model where the arguments say so.

    Raises:
        SettingsError: There is none, or it cannot leave the features to the device.
    """
    if given is None and processor is None:
        raise SettingsError(
            "SupClapTrainer needs a processor, to make inputs of clips and captions: pass processing_class="
            "SupClapProcessor.from_pretrained(...). For another dual encoder, pass a data_collator of your own."
        )
    collator = given or ContrastiveCollator(processor, seed=args.seed, positives=args.positives)
    if not args.features_on_device:
        return collator
    extractor = getattr(processor, "feature_extractor", None)
    if not (isinstance(extractor, SupClapFeatureExtractor) and isinstance(collator, ContrastiveCollator)):
        raise SettingsError(
            "features_on_device true is for the features of CED in a ContrastiveCollator; those of other encoders "
            "are made on the CPU, best in the data workers: leave it out."
        )
    return replace(collator, features_later=True)


def training_samples(data: Any, collator: Callable, args: SupClapTrainingArguments) -> Any:
    """Training samples of rows, which only a `ContrastiveCollator` expects; other data sets stay as they are.

    Raises:
        SettingsError: The data are a stream of rows.
    """
    if isinstance(data, datasets.IterableDataset) and isinstance(collator, ContrastiveCollator):
        raise SettingsError("train_dataset is a stream of rows: pass supclap.data.StreamedClips(stream).")
    if data is None or isinstance(data, Dataset) or not isinstance(collator, ContrastiveCollator):
        return data
    return CaptionedClips(evaluation_rows(data), collator.processor.feature_extractor.sampling_rate, seed=args.seed)


def evaluation_rows(data: Any) -> Any:
    """Rows of a `datasets.Dataset`, whose columns are found by their usual names; other rows as they are."""
    if not isinstance(data, datasets.Dataset):
        return data
    return DatasetRows(data, replace(COLUMNS, id_column="id") if "id" in data.column_names else COLUMNS)


def check_last_batch(args: SupClapTrainingArguments, data: Any) -> None:
    """Raises a [`SettingsError`] for a last batch that the radius predictor would refuse, at the end of an epoch."""
    fixed = args.svr == "dynamic" and args.radius_predictor == "similarities" and args.on_batch_mismatch == "error"
    # Accelerate fills the last batch of several ranks
    filled = args.dataloader_drop_last or (args.world_size > 1 and args.accelerator_config.even_batches)
    if not fixed or filled or not hasattr(data, "__len__"):
        return
    pairs = args.train_batch_size * args.world_size
    if rest := len(data) % pairs:
        raise SettingsError(
            f"dataloader_drop_last false leaves a last batch of {rest} of {pairs} pairs, which radius_predictor "
            "'similarities' cannot read: leave it at true, or choose on_batch_mismatch 'pad' or radius_predictor 'summary'."
        )


def stream_loader(clips: StreamedClips, collator: Callable, args: SupClapTrainingArguments) -> DataLoader:
    """The batches of a stream. Accelerate must not prepare them: it would split among the ranks what is split already."""
    return DataLoader(
        clips,
        batch_size=args.train_batch_size,
        collate_fn=collator,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        prefetch_factor=args.dataloader_prefetch_factor,
    )


def length_grouped_sampler(data: Any, args: SupClapTrainingArguments) -> Sampler:
    """An order with batches of clips of like length, where the lengths are known."""
    if data.lengths is None:
        logger.warning_once(
            "group_by_length: neither rows nor files tell how long clips are; batches are of clips of any length."
        )
        return RandomSampler(data)
    return LengthGroupedSampler(data.lengths, args.train_batch_size * args.world_size, args.seed)
