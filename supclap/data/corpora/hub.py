"""Any `datasets.Dataset`: one of the Hub, one saved to disk, or your own, with a mapping of its columns."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from supclap.errors import DataError

from ..columns import ColumnMapping
from ..labels import label_of
from ..rows import LazyRows, join_captions


if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

    AnyDataset = TypeVar("AnyDataset", Dataset, IterableDataset)

SPLITS: dict[str, str] = {}  # any
# The columns of a data set whose owner names none.
COLUMNS = ColumnMapping(audio_column="audio", language="en")
# A data set on the disk is one file or few: a stream of it is cut into so many parts, which are shuffled, and shared by
# ranks and workers.
STREAM_PARTS = 64


class RecordReader:
    """What turns the records of one data set into rows; its arguments are those of [`DatasetRows`]."""

    def __init__(self, dataset: "AnyDataset", columns: ColumnMapping, name: str, split: str | None, downloaded: bool):
        self.columns = columns.found_in(list(dataset.features or dataset.column_names or []), name)
        self.name = name
        self.split = split
        self.downloaded = downloaded
        # where the column of the class is a `ClassLabel`
        self.class_names = getattr((dataset.features or {}).get(columns.label_column), "names", None)

    def row(self, record: Mapping, number: int | str) -> dict:
        """The row of a record but for its audio; the number names it in messages, and where there is no id."""
        label = record.get(self.columns.label_column)
        # a ClassLabel is stored as the number of its class; -1, which label_of takes for none, must not count from the end
        if self.class_names and isinstance(label, int) and label_of(label) is not None:
            record = {**record, self.columns.label_column: self.class_names[label]}
        prefix = f"{self.name}/{self.split}" if self.split else self.name
        clip = str(record[self.columns.id_column]) if self.columns.id_column else f"{prefix}/{number}"
        return {"id": clip, "source": self.name, **self.columns.row(record, f"{self.name}, row {number}")}

    def audio(self, record: Mapping, number: int | str) -> Any:
        """The audio of a record; a file elsewhere is refused in a data set that was downloaded."""
        audio = record.get(self.columns.audio_column)
        path = audio.get("path") if isinstance(audio, dict) and audio.get("bytes") is None else audio
        if self.downloaded and isinstance(path, str) and not _is_downloaded(path):
            raise DataError(
                f"{self.name}, row {number}: {self.columns.audio_column} is the file {path!r}, which did not come with the "
                "data set. Download the data set and name its folder, if you trust it."
            )
        return audio

    def streamed_row(self, record: Mapping) -> dict:
        """The row of a record of a stream, with its audio."""
        # each worker counts the records for itself, so that a clip without an id is known by what it holds
        name = "" if self.columns.id_column else _digest(record, self.columns.audio_column)
        row, audio = self.row(record, name), self.audio(record, name)
        return row if audio is None else row | {"audio": audio}


class DatasetRows(LazyRows):
    """Rows in the row format over a `datasets.Dataset`, made when asked for.

    Args:
        dataset: The data set. A column of kind `Audio` is not decoded here, so torchcodec is not needed.
        name: What ids and the source are called by.
        split: The split, which stands in ids too.
        downloaded: Whether strangers wrote the records, which may then name no other files of this machine than those
            that came with them.
        columns: What its columns mean, as arguments of [`~supclap.data.columns.ColumnMapping`]. When omitted, the audio
            is `audio`, each record is a clip of its own, and the language of captions that do not tell theirs is `en`.

    Raises:
        DataError: A column is missing.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_list([{"sound": "1.wav", "text": "rain falls"}])
        >>> rows = DatasetRows(data, name="mine", audio_column="sound")
        >>> rows[0]
        {'id': 'mine/0', 'source': 'mine', 'language': 'en', 'captions': ['rain falls'], 'audio': '1.wav'}
    """

    def __init__(
        self,
        dataset: "Dataset",
        name: str = "dataset",
        split: str | None = None,
        downloaded: bool = False,
        **columns,
    ):
        columns = replace(COLUMNS, **columns)
        self.reader = RecordReader(dataset, columns, name, split, downloaded)
        self.dataset = _undecoded(dataset, columns.audio_column)
        self._without_audio = self.dataset.remove_columns([columns.audio_column])
        records = [[index] for index in range(len(dataset))]
        if columns.id_column is not None:
            of_clip: dict[str, list[int]] = {}
            for index, clip in enumerate(self._without_audio[columns.id_column]):
                of_clip.setdefault(str(clip), []).append(index)
            records = of_clip.values()
        super().__init__(records)  # the place of a clip is its records

    def __getitem__(self, index: int) -> dict:
        first = self.places[index][0]
        audio = self.reader.audio(self.dataset[first], first)
        return self.without_audio(index) | ({} if audio is None else {"audio": audio})

    def without_audio(self, index: int) -> dict:
        rows = (self.reader.row(self._without_audio[record], record) for record in self.places[index])
        return join_captions(rows)[0]

    def audio_place(self, index: int) -> tuple[tuple[str, ...], tuple[str, int]] | None:
        files = tuple(file["filename"] for file in self.dataset.cache_files)
        return (files, (self.reader.columns.audio_column, self.places[index][0])) if files else None


def load(folder: Path, split: str, subset: str | None = None, revision: str | None = None, **columns) -> DatasetRows:
    """Rows of a data set.

    Args:
        folder: Id of a data set of the Hub, or a folder that `Dataset.save_to_disk` wrote or `load_dataset` reads,
            e.g. of Parquet.
        split: Its split.
        subset: Configuration of a data set of the Hub.
        revision: Revision of a data set of the Hub.
        columns: What the columns mean; see [`DatasetRows`].

    Raises:
        DataError: The data set cannot be loaded, lacks a column, or is of the Hub and names a file of this machine.
    """
    dataset = _open_dataset(folder, split, subset, revision)
    return DatasetRows(dataset, _name(folder), split, downloaded=not folder.is_dir(), **columns)


def stream(
    folder: Path, split: str, subset: str | None = None, revision: str | None = None, **columns
) -> "IterableDataset":
    """A stream of rows, each record a clip; the arguments are those of [`load`].

    `datasets` streams Parquet, and other files with an `Audio` column only where torchcodec is installed.
    """
    dataset = _open_dataset(folder, split, subset, revision, streaming=True)
    if hasattr(dataset, "to_iterable_dataset"):  # one of the disk, which is not streamed by itself
        dataset = dataset.to_iterable_dataset(num_shards=min(len(dataset), STREAM_PARTS))
    columns = replace(COLUMNS, **columns)
    reader = RecordReader(dataset, columns, _name(folder), split, downloaded=not folder.is_dir())
    dataset = _undecoded(dataset, columns.audio_column)
    return dataset.map(reader.streamed_row, remove_columns=list(dataset.column_names))


def _open_dataset(
    folder: Path, split: str, subset: str | None = None, revision: str | None = None, streaming: bool = False
) -> "Dataset | IterableDataset":
    """A split of a data set; the arguments are those of [`load`]."""
    import datasets

    saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
    try:
        if saved:
            dataset = datasets.load_from_disk(str(folder))
            dataset = dataset[split] if isinstance(dataset, datasets.DatasetDict) else dataset
        else:
            dataset = datasets.load_dataset(
                folder.as_posix(), subset, split=split, revision=revision, streaming=streaming
            )
    except KeyError:
        raise DataError(f"{str(folder)!r} has no split {split!r}; it has {', '.join(dataset)}.") from None
    except Exception as error:  # datasets wraps whatever its readers raise
        raise DataError(f"{folder.as_posix()!r} could not be loaded, split {split!r}: {error}") from error
    return dataset


def _name(folder: Path) -> str:
    """What a data set is called by: its id on the Hub, or the name of its folder, without where that lies."""
    return folder.resolve().name if folder.is_dir() else folder.as_posix()


def _undecoded(dataset: "AnyDataset", audio_column: str) -> "AnyDataset":
    """The data set with its audio as bytes or paths."""
    from datasets import Audio

    if isinstance((dataset.features or {}).get(audio_column), Audio):
        return dataset.cast_column(audio_column, Audio(decode=False))
    return dataset


def _is_downloaded(path: str) -> bool:
    """Whether a file is one of those that `datasets` downloads, or streams from the Hub."""
    import datasets
    from huggingface_hub import constants

    if path.startswith("hf://") or "::hf://" in path:
        return True
    caches = (constants.HF_HUB_CACHE, datasets.config.HF_DATASETS_CACHE)
    return any(Path(path).resolve().is_relative_to(Path(cache).resolve()) for cache in caches)


def _digest(record: Mapping, audio_column: str) -> str:
    """A short hash of all that a record holds."""
    audio = record[audio_column]
    sound = audio.get("bytes") if isinstance(audio, dict) else audio
    digest = hashlib.blake2b(sound if isinstance(sound, bytes) else repr(audio).encode(), digest_size=8)
    digest.update(repr([value for name, value in record.items() if name != audio_column]).encode())
    return digest.hexdigest()
