"""Where the rows of a stream come from: a data set of the Hub, shards, or rows that are listed and not opened."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.errors import DataError

from .corpora import corpus_loader, default_splits
from .corpora.hub import ColumnMapping, open_dataset
from .corpora.webdataset import find_shards, rows_of_shard
from .files import one_or_more
from .leaks import leaked_recordings
from .streaming import RowStream


if TYPE_CHECKING:
    import datasets

    from supclap.recipes.parser import DataArguments

# What is read from its place as it is needed; other corpora and tables list their clips before.
UNLISTED = ("hub", "webdataset")
# A data set on the disk is one file or few: so many parts are drawn from, and shared by ranks and workers.
PARTS = 64


def check_stream(args: "DataArguments") -> None:
    """Raises a [`DataError`] for keys that need all clips at hand."""
    needs = {"corpora": "draws from several corpora", "scenes": "mixes any two clips", "epoch_size": "is of a mixture"}
    for key, why in needs.items():
        if getattr(args, key) is not None:
            raise DataError(
                f"streaming reads the clips of one source one after the other, and {key} {why}: leave one out."
            )


def stream_listed(rows: Sequence[dict], name: str) -> RowStream:
    """Listed rows in an order that is drawn from all of them, their audio read when it is their turn."""
    import datasets

    # a list of the arguments is what `datasets` shuffles, and divides among ranks and workers
    stream = datasets.IterableDataset.from_generator(_each, gen_kwargs={"rows": list(rows)})
    return RowStream(stream, name, listed=rows)


def _each(rows: list[dict]) -> Iterator[dict]:
    yield from rows


def stream_corpus(args: "DataArguments", held_out: set) -> RowStream:
    """The training rows of `hub` or `webdataset`.

    Args:
        args: The arguments.
        held_out: Recordings of validation and test, which are left out like those of the leak lists.

    Raises:
        DataError: The source cannot be opened, or the arguments ask for what a stream cannot give.
    """
    chosen = one_or_more(args.train_splits or default_splits(args.corpus, args.data_dir)["train"])
    if len(chosen) > 1:
        raise DataError(f"{args.corpus}: name one split, not {', '.join(map(str, chosen))}.")
    options, split = args.corpus_options or {}, str(chosen[0])
    corpus_loader(args.corpus, options)  # refuses options that the corpus has not
    for name in one_or_more(args.exclude_leaks_of or ()):
        held_out = held_out | leaked_recordings(name, args.leak_lists or args.data_dir)
    folder = Path(args.data_dir)
    stream = (_hub if args.corpus == "hub" else _shards)(folder, split, options)
    stream = stream.filter(partial(_may_be_trained_on, held_out, bool(args.exclude_leaks_of)))
    name = folder.resolve().name if folder.is_dir() else folder.as_posix()
    return RowStream(stream, f"{name}, {split}", options.get("licence"))


def _may_be_trained_on(held_out: set, leaks: bool, row: dict) -> bool:
    recording = row.get("recording")
    if leaks and recording is None:
        raise DataError(
            f"exclude_leaks_of: clip {row['id']!r} does not say what recording it was cut from, so leaks cannot be told. "
            "Give the rows a `recording`, or leave exclude_leaks_of out."
        )
    return recording is None or recording not in held_out


def _shards(folder: Path, split: str, options: dict) -> "datasets.IterableDataset":
    import datasets

    shards = [str(shard) for shard in find_shards(folder, split)]
    common = {"language": options.get("language"), "licence": options.get("licence")}
    return datasets.IterableDataset.from_generator(_rows_of_shards, gen_kwargs={"shards": shards, **common})


def _rows_of_shards(shards: list[str], language: str | None, licence: str | None) -> Iterator[dict]:
    for shard in shards:
        yield from rows_of_shard(shard, language, licence)


def _hub(folder: Path, split: str, options: dict) -> "datasets.IterableDataset":
    columns = {key: value for key, value in options.items() if key not in ("subset", "revision")}
    dataset = open_dataset(folder, split, options.get("subset"), options.get("revision"), streaming=True)
    if hasattr(dataset, "to_iterable_dataset"):  # of the disk
        dataset = dataset.to_iterable_dataset(num_shards=min(len(dataset), PARTS))
    name = folder.resolve().name if folder.is_dir() else folder.as_posix()
    mapping = ColumnMapping.named(dataset, name=name, split=split, **columns)
    mapping.downloaded = not folder.is_dir()
    return mapping.undecoded(dataset).map(partial(_row_of_record, mapping), remove_columns=list(dataset.column_names))


def _row_of_record(mapping: ColumnMapping, record: dict) -> dict:
    # Each worker counts the records for itself, so that without an id a clip is known by what it holds.
    return mapping.row(record, "" if mapping.id_column else _digest(record, mapping.audio_column))


def _digest(record: dict, audio_column: str) -> str:
    audio = record[audio_column]
    sound = audio.get("bytes") if isinstance(audio, dict) else audio
    digest = hashlib.blake2b(sound if isinstance(sound, bytes) else repr(audio).encode(), digest_size=8)
    digest.update(repr([value for name, value in record.items() if name != audio_column]).encode())
    return digest.hexdigest()
