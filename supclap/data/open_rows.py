"""Opens whatever a path holds as rows: a recipe, a table, shards, a corpus, or a folder of clips."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from supclap.errors import DataError

from .accept import accept_rows, as_they_are
from .corpora import audiofolder, corpus_loader, corpus_module, load_corpus
from .files import AudioIndex
from .rows import Rows
from .tables import TABLES, columns_of, read_table, table_rows


def open_rows(
    path: str | Path,
    corpus: str | None = None,
    splits: Iterable[str] | None = None,
    options: dict | None = None,
    keep_bad: bool = False,
    skip_bad: bool = False,
) -> dict[str, Sequence[dict]]:
    """Rows of each split of what lies at a path.

    Args:
        path: A recipe (`.yaml`), a table (`.csv`, `.jsonl`, `.parquet`, …) with a column `split` or without, a folder
            of a corpus, of shards, in the audiofolder layout, or of audio files alone.
        corpus: The corpus, where the folder is one.
        splits: Splits to open; all there are when omitted.
        options: Options of the corpus or columns of the table.
        keep_bad: Whether to keep all rows as they stand, for a look at them: those without usable audio or captions,
            of one id, and of leaks. `audio` is `None` where it is missing.
        skip_bad: Whether to leave out rows that cannot be used, and note them in `removed`, rather than refuse them.

    Returns:
        The rows by split. A recipe that trains on a mixture has a split for each of its corpora, in full.

    Raises:
        DataError: There is nothing that can be read, or no such split or option.
    """
    path, options = Path(path), options or {}
    if path.suffix in (".yaml", ".yml"):
        if corpus or options:
            raise DataError(
                f"{path}: a recipe names its corpora and their options itself; leave --corpus and --option out."
            )
        return _open_recipe(path, splits, keep_bad, skip_bad)
    if path.is_file() or path.suffix in TABLES:
        if corpus:
            raise DataError(f"{path} is a table, and --corpus is of a folder; leave it out, or name the folder.")
        return _open_table(path, splits, options, keep_bad, skip_bad)
    if corpus == "hub":
        splits = splits or ["train"]
    elif not path.is_dir():
        raise DataError(f"No file or folder at {str(path)!r}.")
    if corpus is None:
        corpus = "webdataset" if any(path.glob("*.tar")) else "audiofolder"
        if corpus == "audiofolder" and not any(path.rglob("metadata.*")) and not _has_class_folders(path):
            return {split: _bare_audio(path) for split in _chosen(path, ["all"], splits)}
    if splits is None:
        splits = _splits_there(path, corpus, corpus_loader(corpus, options), options)
    return {split: load_corpus(corpus, path, split, skip_bad, keep_bad=keep_bad, **options) for split in splits}


def _open_table(
    path: Path, splits: Iterable[str] | None, options: dict, keep_bad: bool, skip_bad: bool
) -> dict[str, Sequence[dict]]:
    """The rows of a table by its column `split`; without one it is a split of its own name."""
    _check_columns(path, options)
    table = read_table(path)
    parts = {path.stem: table}
    if audiofolder.SPLIT_COLUMN in columns_of(table):
        parts = {}
        for record, split in zip(table, audiofolder.splits_of(path, table), strict=True):
            parts.setdefault(split, []).append(record)
    opened = {}
    for split in _chosen(path, parts, splits and map(audiofolder.canonical, splits)):
        rows, where = table_rows(parts[split], path, **options), f"{path} {split}"
        opened[split] = as_they_are(rows) if keep_bad else accept_rows(rows, where, str(path.parent), skip_bad)
    return opened


def _chosen(path: Path, there: Iterable[str], splits: Iterable[str] | None) -> list[str]:
    """The splits asked for; all there are when none is."""
    there, splits = list(there), None if splits is None else list(splits)
    if absent := [split for split in splits or () if split not in there]:
        raise DataError(f"{path} has no split {', '.join(absent)}; it has {', '.join(there)}.")
    return there if splits is None else splits


def _check_columns(path: Path, options: dict) -> None:
    allowed = [
        name
        for name in inspect.signature(table_rows).parameters
        if name not in ("table", "path", "defaults", "prefix")
    ]
    if unknown := sorted(set(options) - set(allowed)):
        raise DataError(f"{path}: a table has no option {', '.join(unknown)}; its options are {', '.join(allowed)}.")


def _open_recipe(
    path: Path, splits: Iterable[str] | None, keep_bad: bool, skip_bad: bool
) -> dict[str, Sequence[dict]]:
    from supclap.recipes.parser import parse_recipe

    from .mixture import CorpusMixture
    from .splits import load_splits, splits_as_they_are

    arguments = parse_recipe([str(path)])[1]
    arguments.skip_bad |= skip_bad
    opened: dict[str, Sequence[dict]] = {}
    for name, rows in (splits_as_they_are if keep_bad else load_splits)(arguments).items():
        # an epoch is a sample of the corpora, which are opened in full
        opened |= rows.parts if isinstance(rows, CorpusMixture) else {name: rows}
    # a hyphen stands between the name and the number of a shard
    opened = {name.replace("-", "_"): rows for name, rows in opened.items()}
    return {name: opened[name] for name in _chosen(path, opened, splits)}


def _splits_there(path: Path, corpus: str, load: Callable, options: dict) -> list[str]:
    """The splits of a corpus that the folder has files of."""
    if corpus == "webdataset":
        names = sorted({shard.name.rpartition("-")[0] for shard in path.glob("*-*.tar")})
        return [name for name in names if name] or ["train"]
    if corpus == "audiofolder":
        return audiofolder.splits_in(path, options.get("audio_column", "file_name"))
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


def _has_class_folders(path: Path) -> bool:
    return any(place.is_dir() and len(AudioIndex(place)) for place in path.iterdir())


def _bare_audio(path: Path) -> Rows:
    """The audio files of a folder, without captions."""
    files = AudioIndex(path).paths()
    if not files:
        raise DataError(f"{str(path)!r} holds no audio.")
    return Rows({"id": str(Path(file).relative_to(path)), "audio": file, "captions": []} for file in files)
