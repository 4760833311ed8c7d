"""Opens whatever a path holds as rows: a recipe, a table, shards, a corpus, or a folder of clips."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .accept import accept_rows
from .corpora import audiofolder, corpus_loader, corpus_module, load_corpus, split_name
from .files import AudioIndex, DataError
from .rows import Rows
from .tables import TABLES, read_table, table_rows


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
        path: A recipe (`.yaml`), a table (`.csv`, `.jsonl`, `.parquet`, …), a folder of a corpus, of shards, in the
            audiofolder layout, or of audio files alone.
        corpus: The corpus, where the folder is one.
        splits: Splits to open; all there are when omitted.
        options: Options of the corpus or columns of the table.
        keep_bad: Whether to keep rows without audio (`audio` is `None`) and without captions, for a look at them.
        skip_bad: Whether to leave out rows that cannot be used, and note them in `removed`, rather than refuse them.

    Returns:
        The rows by split. A recipe that trains on a mixture has a split for each of its corpora, in full.

    Raises:
        DataError: There is nothing that can be read, or no such split or option.
    """
    path, options = Path(path), options or {}
    if path.suffix in (".yaml", ".yml"):
        return _open_recipe(path, splits, skip_bad)
    if path.is_file() or path.suffix in TABLES:
        _check_columns(path, options)
        rows = _as_they_are(table_rows(read_table(path), path, **options))
        return {path.stem: rows if keep_bad else accept_rows(rows, str(path), str(path.parent), skip_bad)}
    if corpus == "hub":
        return {split: load_corpus("hub", path, split, skip_bad, **options) for split in splits or ["train"]}
    if not path.is_dir():
        raise DataError(f"No file or folder at {str(path)!r}.")
    if corpus is None:
        corpus = "webdataset" if any(path.glob("*.tar")) else "audiofolder"
        if corpus == "audiofolder" and not any(path.rglob("metadata.*")) and not _has_class_folders(path):
            return {"all": _bare_audio(path)}
    load = corpus_loader(corpus, options)
    if splits is None:
        splits = _splits_there(path, corpus, load, options)
    opened = {}
    for split in splits:
        lazy = corpus == "webdataset"
        if lazy or not keep_bad:
            opened[split] = load_corpus(corpus, path, split, skip_bad, **options)
        else:
            opened[split] = _as_they_are(load(path, split_name(corpus, split)))
    return opened


def _as_they_are(rows: Iterable[dict]) -> Rows:
    return Rows({"audio": None, **row} for row in rows)


def _check_columns(path: Path, options: dict) -> None:
    allowed = [
        name
        for name in inspect.signature(table_rows).parameters
        if name not in ("table", "path", "defaults", "prefix")
    ]
    if unknown := sorted(set(options) - set(allowed)):
        raise DataError(f"{path}: a table has no option {', '.join(unknown)}; its options are {', '.join(allowed)}.")


def _open_recipe(path: Path, splits: Iterable[str] | None, skip_bad: bool) -> dict[str, Sequence[dict]]:
    from supclap.config import parse_recipe

    from .mixture import CorpusMixture
    from .sources import load_splits

    arguments = parse_recipe([str(path)])[1]
    arguments.skip_bad |= skip_bad
    opened: dict[str, Sequence[dict]] = {}
    for name, rows in load_splits(arguments).items():
        if splits is not None and name not in splits:
            continue
        if isinstance(rows, CorpusMixture):
            # an epoch is a sample of the corpora; a hyphen stands between the name and the number of a shard
            opened |= {corpus.replace("-", "_"): part for corpus, part in rows.parts.items()}
        else:
            opened[name] = rows
    if not opened:
        raise DataError(f"{path} has no split {', '.join(splits or [])}; a recipe has train, validation, test.")
    return opened


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
