"""Any `datasets.Dataset`: one of the Hub, one saved to disk, or your own, with a mapping of its columns."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.errors import DataError

from ..accept import clean_captions
from ..files import one_or_more
from ..rows import LazyRows
from ..tables import add_captions, captions_of, find_caption_columns, passed_on
from .common import LABEL_TEMPLATE, label_caption, label_of


if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

SPLITS: dict[str, str] = {}  # any
ALIASES: dict[str, str] = {}


class DatasetRows(LazyRows):
    """Rows in the row format over a `datasets.Dataset`, made when asked for.

    Args:
        dataset: The data set. A column of kind `Audio` is not decoded here, so torchcodec is not needed.
        audio_column: Column of the audio: `Audio`, a path, bytes, or a dict.
        caption_columns: Columns of captions; each may hold a list. Those of a usual name when omitted.
        label_column: Column of the class (a `ClassLabel` gives its name), whose template caption stands in where there
            are no captions.
        id_column: Column of the clip's id. Rows of one id are one clip, wherever they stand; each row is a clip of its
            own when omitted.
        template: Caption of a class.
        language: Language of the captions where there is no column `language`.
        licence: Licence where there is no column `licence`.
        name: What ids and the source are called by.
        split: The split, which stands in ids too.

    Raises:
        DataError: A column is missing.
    """

    def __init__(
        self,
        dataset: "Dataset",
        audio_column: str = "audio",
        caption_columns: str | Sequence[str] | None = None,
        label_column: str | None = None,
        id_column: str | None = None,
        template: str = LABEL_TEMPLATE,
        language: str = "en",
        licence: str | None = None,
        name: str = "dataset",
        split: str | None = None,
    ):
        self.mapping = ColumnMapping(
            dataset, audio_column, caption_columns, label_column, id_column, template, language, licence, name, split
        )
        self.dataset = self.mapping.undecoded(dataset)
        self._silent = self.dataset.remove_columns([audio_column])
        self.removed = []
        self._groups = [[index] for index in range(len(dataset))]
        if id_column is not None:
            groups: dict[str, list[int]] = {}
            for index, clip in enumerate(self._silent[id_column]):
                groups.setdefault(str(clip), []).append(index)
            self._groups = list(groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> dict:
        record = self._groups[index][0]
        audio = self.mapping.audio(self.dataset[record], record)
        return self.without_audio(index) | ({} if audio is None else {"audio": audio})

    def without_audio(self, index: int) -> dict:
        first, *others = (self.mapping.row(self._silent[record], record) for record in self._groups[index])
        for other in others:
            add_captions(first, other)
        return first

    def audio_place(self, index: int) -> tuple[tuple[str, ...], tuple[str, int]] | None:
        files = tuple(file["filename"] for file in self.dataset.cache_files)
        return (files, (self.mapping.audio_column, self._groups[index][0])) if files else None

    def select(self, indices: Sequence[int], removed: Iterable[dict]) -> "DatasetRows":
        chosen = copy.copy(self)
        chosen._groups = [self._groups[index] for index in indices]
        chosen.removed = list(removed)
        return chosen


DEFAULTS = {
    "audio_column": "audio",
    "caption_columns": None,
    "label_column": None,
    "id_column": None,
    "template": LABEL_TEMPLATE,
    "language": "en",
    "licence": None,
    "name": "dataset",
    "split": None,
}


class ColumnMapping:
    """From a record of a data set to a row; the arguments are those of [`DatasetRows`].

    Attributes:
        downloaded: Whether strangers wrote the records, which may then name no other files of this machine than those
            that came with them.
    """

    downloaded = False

    def __init__(
        self, dataset, audio_column, caption_columns, label_column, id_column, template, language, licence, name, split
    ):
        columns = list(dataset.features or dataset.column_names or [])
        if caption_columns is None:
            caption_columns = [] if label_column else find_caption_columns(columns, name)
        caption_columns = one_or_more(caption_columns)
        wanted = [audio_column, *caption_columns, label_column, id_column]
        absent = [column for column in wanted if column is not None and column not in columns]
        if absent:
            raise DataError(f"{name} has no column {', '.join(map(repr, absent))}; its columns are {sorted(columns)}.")
        self.audio_column, self.caption_columns = audio_column, caption_columns
        self.label_column, self.id_column = label_column, id_column
        self.template, self.name = template, name
        self.prefix = f"{name}/{split}" if split else name
        self.defaults = {"language": language, "licence": licence, "source": name}
        self.label_names = getattr((dataset.features or {}).get(label_column), "names", None)

    @classmethod
    def named(cls, dataset, **columns) -> "ColumnMapping":
        """A mapping with the defaults of [`DatasetRows`].

        Raises:
            DataError: There is no such option, or no such column.
        """
        unknown = sorted(set(columns) - set(DEFAULTS))
        if unknown:
            raise DataError(f"A stream of rows has no option {', '.join(unknown)}; it has {', '.join(DEFAULTS)}.")
        return cls(dataset, **(DEFAULTS | columns))

    def undecoded(self, dataset):
        """The data set with its audio as bytes or paths."""
        from datasets import Audio

        if isinstance((dataset.features or {}).get(self.audio_column), Audio):
            return dataset.cast_column(self.audio_column, Audio(decode=False))
        return dataset

    def row(self, record: dict, index: int | str) -> dict:
        where = f"{self.name}, row {index}"
        captions = [caption for name in self.caption_columns for caption in captions_of(record[name], where)]
        row = self.defaults | passed_on(record, where)
        row["id"] = str(record[self.id_column]) if self.id_column else f"{self.prefix}/{index}"
        row["audio"] = self.audio(record, index)
        if self.label_column is not None:
            label = label_of(record[self.label_column])
            if label is not None and self.label_names and isinstance(record[self.label_column], int):
                label = self.label_names[int(label)]
            row["label"] = label
            if not captions and label is not None:
                captions = label_caption(self.template, [row["label"]])
                row["group"] = row["label"]
        row["captions"] = clean_captions(captions)
        return {key: value for key, value in row.items() if value is not None}

    def audio(self, record: dict, index: int | str):
        """The audio of a record.

        Raises:
            DataError: The data set is a downloaded one, and the audio a file elsewhere.
        """
        audio = record.get(self.audio_column)
        path = audio.get("path") if isinstance(audio, dict) and audio.get("bytes") is None else audio
        if self.downloaded and isinstance(path, str) and not _is_downloaded(path):
            raise DataError(
                f"{self.name}, row {index}: {self.audio_column} is the file {path!r}, which did not come with the data set. "
                "Download the data set and name its folder, if you trust it."
            )
        return audio


def _is_downloaded(path: str) -> bool:
    import datasets
    from huggingface_hub import constants

    caches = (constants.HF_HUB_CACHE, datasets.config.HF_DATASETS_CACHE)
    if path.startswith("hf://") or "::hf://" in path:  # a file of the data set that is streamed
        return True
    return any(Path(path).resolve().is_relative_to(Path(cache).resolve()) for cache in caches)


def stream_rows(dataset: "IterableDataset", **columns) -> Iterator[dict]:
    """Rows of a streamed data set, each record a clip; the columns are named as for [`DatasetRows`].

    The rows come in the order of the stream, to be read once: for `datasets.load_dataset(..., streaming=True)` of
    Parquet files. `datasets` streams other kinds of files with an `Audio` column only where torchcodec is installed.
    """
    mapping = ColumnMapping.named(dataset, **columns)
    for index, record in enumerate(mapping.undecoded(dataset)):
        yield mapping.row(record, index)


def load(
    folder: Path,
    split: str,
    audio_column: str = "audio",
    caption_columns: str | Sequence[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    template: str = LABEL_TEMPLATE,
    language: str = "en",
    licence: str | None = None,
    subset: str | None = None,
    revision: str | None = None,
) -> DatasetRows:
    """Rows of a data set.

    Args:
        folder: Id of a data set of the Hub, or a folder that `Dataset.save_to_disk` wrote or `load_dataset` reads.
        split: Its split.
        audio_column: Column of the audio.
        caption_columns: Columns of captions; those of a usual name when omitted.
        label_column: Column of the class.
        id_column: Column of the clip's id; rows of one id are one clip.
        template: Caption of a class.
        language: Language of the captions where there is no column `language`.
        licence: Licence where there is no column `licence`.
        subset: Configuration of a data set of the Hub.
        revision: Revision of a data set of the Hub.

    Raises:
        DataError: The data set cannot be loaded, lacks a column, or is of the Hub and names a file of this machine.
    """
    dataset = open_dataset(folder, split, subset, revision)
    rows = DatasetRows(
        dataset,
        audio_column,
        caption_columns,
        label_column,
        id_column,
        template,
        language,
        licence,
        folder.resolve().name if folder.is_dir() else folder.as_posix(),
        split,
    )
    rows.mapping.downloaded = not folder.is_dir()
    return rows


def open_dataset(
    folder: Path, split: str, subset: str | None = None, revision: str | None = None, streaming: bool = False
) -> "Dataset | IterableDataset":
    """A split of a data set of the Hub, or of a folder: one that `Dataset.save_to_disk` wrote, or files that
    `load_dataset` reads, e.g. Parquet.

    Raises:
        DataError: It cannot be loaded, or has no such split.
    """
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
