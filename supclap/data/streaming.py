"""Streams: training samples from rows that are read when it is their turn, for corpora that do not fit the disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset, get_worker_info
from transformers.utils import logging

from supclap.errors import DataError

from .corpora import corpus_loader
from .dataset import CaptionedClips


if TYPE_CHECKING:
    import datasets


logger = logging.get_logger(__name__)


@dataclass
class RowStream:
    """Training rows that are read when it is their turn.

    Args:
        rows: A `datasets.IterableDataset` of rows.
        name: What the manifest calls their source.
        licence: Licence of all rows, where it is known.
        listed: The rows themselves, where their list was at hand and only the audio is read later.
    """

    rows: "datasets.IterableDataset"
    name: str
    licence: str | None = None
    listed: Sequence[dict] | None = None


def stream_rows(rows: Sequence[dict], name: str) -> RowStream:
    """A stream of rows that are at hand, whose order is drawn from all of them, and whose audio is read at its turn."""
    import datasets

    # a list among the arguments is what `datasets` shuffles, and divides among ranks and workers
    stream = datasets.IterableDataset.from_generator(_each, gen_kwargs={"rows": list(rows)})
    return RowStream(stream, name, listed=rows)


def _each(rows: list[dict]) -> Iterator[dict]:
    yield from rows


def stream_corpus(
    corpus: str, folder: Path, split: str, options: Mapping, left_out: set[str], must_know: bool = False
) -> RowStream:
    """A stream of the rows of a corpus that is read from its place, as [`~supclap.data.corpora.can_stream`] tells.

    Recordings in `left_out` are not trained on. With `must_know`, a row that does not tell its recording is an error,
    which comes when it is read.

    Raises:
        DataError: The corpus cannot be opened, or has no such option.
    """
    stream = corpus_loader(corpus, options, "stream")(folder, split)
    stream = stream.filter(partial(_may_be_trained_on, left_out, must_know))
    name = folder.resolve().name if folder.is_dir() else folder.as_posix()
    return RowStream(stream, f"{name}, {split}", options.get("licence"))


def _may_be_trained_on(left_out: set[str], must_know: bool, row: dict) -> bool:
    recording = row.get("recording")
    if must_know and recording is None:
        raise DataError(
            f"exclude_leaks_of: clip {row['id']!r} does not say what recording it was cut from, so leaks cannot be told. "
            "Give the rows a `recording`, or leave exclude_leaks_of out."
        )
    return recording is None or recording not in left_out


class StreamedClips(IterableDataset):
    """Endless samples of a `datasets.IterableDataset` of rows, epoch after epoch, each rank with rows of its own.

    As it never ends, all batches are full, and steps are counted by `max_steps`. The order is a function of seed, epoch
    and rank; a resumed run reads up to where it was. As in [`CaptionedClips`], what is drawn for a clip is a function
    of seed, epoch and clip.

    Args:
        rows: Rows in the row format, `audio` as a path or bytes.
        rank, world_size: This process and their number.
        shuffle_buffer: Rows that the order is drawn from; rows keep their order when 0.
        skip_bad: Whether rows without usable audio or captions are left out, with a warning, rather than an error.
        options: Arguments of [`CaptionedClips`] but for its rows.
    """

    def __init__(
        self,
        rows: "datasets.IterableDataset",
        rank: int = 0,
        world_size: int = 1,
        shuffle_buffer: int = 1000,
        skip_bad: bool = False,
        **options,
    ):
        from datasets.distributed import split_dataset_by_node

        self.seed = options.get("seed", 0)
        rows = rows.shuffle(self.seed, buffer_size=shuffle_buffer) if shuffle_buffer else rows
        self.rows = split_dataset_by_node(rows, rank, world_size)
        self.skip_bad = skip_bad
        self._options = options

    def __iter__(self) -> Iterator[dict]:
        for epoch in count():
            self.rows.set_epoch(epoch)
            empty = True
            for row in self.rows:
                clip = CaptionedClips([row], **self._options)
                clip.set_epoch(epoch)
                try:
                    sample = clip[0]
                except (ValueError, OSError) as error:
                    if not self.skip_bad:
                        raise
                    logger.warning(f"left out of the stream: {error.__cause__ or error}")
                    continue
                empty = False
                yield sample
            if empty and (worker := get_worker_info()) is not None and worker.num_workers > 1:
                return  # a stream of few shards has nothing for some of the workers
            if empty:
                raise ValueError(
                    "The stream of rows is empty on this rank: use fewer processes, or check its filters."
                )
