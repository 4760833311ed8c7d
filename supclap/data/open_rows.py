"""Opens whatever is to be checked or prepared as rows: a recipe's data, a table, shards, a corpus, or a folder of clips."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.errors import DataError

from .audio_index import AudioIndex
from .columns import COLUMN_OPTIONS
from .corpora import audiofolder, corpus_loader, corpus_module, find_corpus
from .mixture import CorpusMixture
from .rows import Rows, UncheckedRows
from .splits import EVALUATED, find_corpora, find_splits, load_splits
from .tables import COLUMNS, TABLES, columns_of, read_table, table_rows


if TYPE_CHECKING:
    from .arguments import DataArguments


def open_rows(
    path: str | Path,
    corpus: str | None = None,
    splits: Iterable[str] | None = None,
    options: Mapping | None = None,
    keep_bad: bool = False,
    skip_bad: bool = False,
) -> dict[str, Sequence[dict]]:
    """Rows of each split of what lies at a path.

    Args:
        path: A table (`.csv`, `.jsonl`, `.parquet`, …) with a column `split` or without, a folder of a corpus, of
            shards, in the audiofolder layout, or of audio files alone.
        corpus: The corpus, where the folder is one.
        splits: Splits to open; all there are when omitted.
        options: Options of the corpus or columns of the table.
        keep_bad: Whether to keep all rows as they stand, for a look at them: those without usable audio or captions,
            of one id, and of leaks. `audio` is `None` where it is missing.
        skip_bad: Whether to leave out rows that cannot be used, and note them in `removed`, rather than refuse them.

    Raises:
        DataError: There is nothing that can be read, or no such split or option.
    """
    path, options = Path(path), options or {}
    if path.is_file() or path.suffix in TABLES:
        if corpus:
            raise DataError(f"{path} is a table, and --corpus is of a folder; leave it out, or name the folder.")
        found = _find_in_table(path, splits, options)
    elif corpus != "hub" and not path.is_dir():
        raise DataError(f"No file or folder at {str(path)!r}.")
    elif corpus is None and _is_bare_audio(path):
        return {split: _bare_audio(path) for split in _chosen(path, ["all"], splits)}
    else:
        corpus = corpus or ("webdataset" if any(path.glob("*.tar")) else "audiofolder")
        if splits is None:
            splits = _splits_there(path, corpus, corpus_loader(corpus, options), options)
        found = {split: find_corpus(corpus, path, split, **options) for split in splits}
    return {split: rows.as_they_are() if keep_bad else rows.checked(skip_bad) for split, rows in found.items()}


def open_recipe(
    args: "DataArguments", splits: Iterable[str] | None = None, keep_bad: bool = False, skip_bad: bool = False
) -> dict[str, Sequence[dict]]:
    """Rows of each split of a recipe; one that trains on a mixture has a split for each of its corpora, in full.

    Args:
        args: The `data` section.
        splits, keep_bad, skip_bad: As of [`open_rows`]; `skip_bad` also where the recipe does not say so.

    Raises:
        DataError: The data cannot be used, or there is no such split.
    """
    if keep_bad:
        args = dataclasses.replace(args, streaming=False)
        found = find_splits(args)
        if args.corpora is not None:
            found = find_corpora(args) | {split: found[split] for split in EVALUATED if split in found}
        opened = {name: rows.as_they_are() for name, rows in found.items()}
    else:
        args = dataclasses.replace(args, skip_bad=args.skip_bad or skip_bad)
        opened = {}
        for name, rows in load_splits(args).items():
            # an epoch is a sample of the corpora, which are opened in full
            opened |= rows.parts if isinstance(rows, CorpusMixture) else {name: rows}
    # a hyphen stands between the name and the number of a shard
    opened = {name.replace("-", "_"): rows for name, rows in opened.items()}
    return {name: opened[name] for name in _chosen("the recipe", opened, splits)}


def _find_in_table(path: Path, splits: Iterable[str] | None, options: Mapping) -> dict[str, UncheckedRows]:
    """The rows of a table by its column `split`; without one it is a split of its own name."""
    if unknown := sorted(set(options) - set(COLUMN_OPTIONS)):
        raise DataError(
            f"{path}: a table has no option {', '.join(unknown)}; its options are {', '.join(COLUMN_OPTIONS)}."
        )
    table = read_table(path)
    has_splits = audiofolder.SPLIT_COLUMN in columns_of(table)
    parts = audiofolder.tables_by_split(path, table) if has_splits else {path.stem: table}
    mapping = dataclasses.replace(COLUMNS, **options)
    chosen = _chosen(path, parts, splits and map(audiofolder.canonical, splits))
    return {
        split: UncheckedRows(table_rows(parts[split], path, mapping), f"{path} {split}", str(path.parent))
        for split in chosen
    }


def _chosen(where: str | Path, there: Iterable[str], splits: Iterable[str] | None) -> list[str]:
    """The splits asked for; all there are when none is."""
    there, splits = list(there), None if splits is None else list(splits)
    if absent := [split for split in splits or () if split not in there]:
        raise DataError(f"{where} has no split {', '.join(absent)}; it has {', '.join(there)}.")
    return there if splits is None else splits


def _splits_there(path: Path, corpus: str, load: Callable, options: Mapping) -> list[str]:
    """The splits of a corpus that the folder has files of."""
    if corpus == "hub":
        return ["train"]
    if corpus == "webdataset":
        names = sorted({shard.name.rpartition("-")[0] for shard in path.glob("*-*.tar")})
        return [name for name in names if name] or ["train"]
    if corpus == "audiofolder":
        return audiofolder.splits_in(path, options.get("audio_column", COLUMNS.audio_column))
    found, reasons = [], []
    for split in corpus_module(corpus).SPLITS:
        try:
            next(iter(load(path, split)), None)
            found.append(split)
        except DataError as error:
            reasons.append(str(error))
    if not found:
        raise DataError(f"{str(path)!r} holds no split of {corpus}: {reasons[0]}")
    return found


def _is_bare_audio(path: Path) -> bool:
    """Whether a folder has neither shards nor metadata nor folders of classes."""
    if any(path.glob("*.tar")) or any(path.rglob("metadata.*")):
        return False
    return not any(place.is_dir() and len(AudioIndex(place)) for place in path.iterdir())


def _bare_audio(path: Path) -> Rows:
    """The audio files of a folder, without captions."""
    files = AudioIndex(path).paths()
    if not files:
        raise DataError(f"{str(path)!r} holds no audio.")
    return Rows({"id": str(Path(file).relative_to(path)), "audio": file, "captions": []} for file in files)
