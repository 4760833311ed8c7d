"""The corpora by name: each module turns the official files on disk into rows of the row format.

A module has `SPLITS` (the names of its splits; empty where any name will do), where there are other names of them
`ALIASES`, and `load`, which yields rows, unusable ones included. A corpus of official files has `load(source, **options)`,
where the [`~supclap.data.corpora.common.Source`] holds the options `annotations` and `audio_dir`; with the option
`template`, it names the caption of a clip's label. Another has `load(folder, split, **options)`. Those whose audio is
read one clip after the other in a stream have `stream` too, with the same arguments. A new corpus is a module and its
line in `CORPORA`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from supclap.errors import DataError

from ..columns import COLUMN_OPTIONS, one_or_more
from ..leaks import exclude_leaks
from ..rows import LazyRows, Rows, UncheckedRows
from .common import Source


# name -> module; ESC-10 is a part of ESC-50
CORPORA = {
    name: name
    for name in ("audiocaps", "clotho", "wavcaps", "macs", "audioset", "esc50", "urbansound8k", "vggsound", "fsd50k")
} | {"esc10": "esc50", "audiofolder": "audiofolder", "webdataset": "webdataset", "hub": "hub"}


def load_corpus(
    name: str,
    data_dir: str | Path,
    split: str | int | Sequence[str | int] = "train",
    skip_bad: bool = False,
    exclude_leaks_of: str | Iterable[str] = (),
    leak_lists: str | Path | None = None,
    **options,
) -> Rows | LazyRows:
    """Rows of one or several splits of a corpus.

    Args:
        name: One of `CORPORA`.
        data_dir: Folder of the corpus: the official layout, or whatever the `annotations` and `audio_dir` options
            name in it.
        split: A split, or several; the corpus's own name of it works too, and a fold is a split.
        skip_bad: Whether to leave rows without usable audio or captions out. They are listed in `removed`.
        exclude_leaks_of: Evaluation set or sets whose recordings to leave out; see [`~supclap.data.leaks.exclude_leaks`].
        leak_lists: Folder of their leak lists; looked for in `data_dir` when omitted.
        options: Options of the corpus; its module's `load` describes them.

    Returns:
        Rows with `id`, `audio` (a path or bytes), `captions`, `language`, `source`, `licence`, and where the corpus has
        them `label` or `labels`, `group`, `recording` (what the clip was cut from) and `duration`. A list, but for
        shards and data sets, which are read when a row is asked for.

    Raises:
        DataError: An unknown corpus, split or option, files that cannot be read, or rows without usable audio or
            captions: the first 20 are named.

    Example:
        >>> rows = load_corpus("clotho", "data/clotho", split="evaluation")  # doctest: +SKIP
    """
    found = find_corpus(name, data_dir, split, **options)
    rows = found.checked(skip_bad)
    leaks = one_or_more(exclude_leaks_of)
    return exclude_leaks(rows, leaks, leak_lists or data_dir, found.where) if leaks else rows


def find_corpus(
    name: str, data_dir: str | Path, split: str | int | Sequence[str | int] = "train", **options
) -> UncheckedRows:
    """All rows of one or several splits of a corpus, unusable ones included; arguments and errors are those of
    [`load_corpus`]."""
    load = corpus_loader(name, options)
    folder = Path(data_dir)
    if name != "hub" and not folder.is_dir():
        raise DataError(f"data_dir {str(folder)!r} is not a folder.")
    splits = one_or_more(split)
    parts = [load(folder, split_name(name, one)) for one in splits]
    if isinstance(parts[0], LazyRows) and len(parts) > 1:
        raise DataError(f"{name}: name one split, not {', '.join(map(str, splits))}.")
    rows = parts[0] if isinstance(parts[0], LazyRows) else (row for part in parts for row in part)
    return UncheckedRows(rows, f"{name} {' + '.join(map(str, splits))}", str(folder))


def corpus_loader(
    name: str, options: Mapping, function: str = "load"
) -> Callable[[Path, str], Iterable[dict] | LazyRows]:
    """What reads a split of a corpus, called with the folder and the split's name; by `stream`, where it has that.

    Raises:
        DataError: The corpus is unknown, or has no such option.
    """
    read = getattr(corpus_module(name), function)
    parameters = inspect.signature(read).parameters
    of_source = [field.name for field in fields(Source)] if "source" in parameters else []
    allowed = [key for key in (*of_source, *parameters) if key not in ("source", "folder", "split", "columns")]
    if "columns" in parameters:
        allowed += COLUMN_OPTIONS
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise DataError(f"{name} has no option {', '.join(unknown)}; its options are {', '.join(allowed)}.")
    options = dict(options) | ({"esc10": True} if name == "esc10" else {})
    if not of_source:
        return partial(read, **options)
    shared = {key: options.pop(key) for key in of_source if key in options}
    return lambda folder, split: read(Source(folder, split, **shared), **options)


def can_stream(name: str) -> bool:
    """Whether the clips of a corpus are read from their place as they are needed; others are listed before."""
    return hasattr(corpus_module(name), "stream")


def corpus_module(name: str) -> ModuleType:
    """The module of a corpus; an unknown one is a [`DataError`] that names all."""
    if name not in CORPORA:
        raise DataError(f"corpus {name!r} is unknown; there are {', '.join(sorted(CORPORA))}.")
    return import_module(f"{__name__}.{CORPORA[name]}")


def split_name(name: str, split: str | int) -> str:
    """The name of a split that the module of the corpus takes; an unknown one is a [`DataError`] that names all."""
    module = corpus_module(name)
    key = str(split)
    key = getattr(module, "ALIASES", {}).get(key, key)
    if module.SPLITS and key not in module.SPLITS:
        raise DataError(f"{name} has no split {split!r}; it has {', '.join(module.SPLITS)}.")
    return key


def default_splits(name: str, data_dir: str | Path) -> dict[str, list[str]]:
    """The splits that training, validation and test take unless told otherwise: those of the same name.

    Of shards these are the splits that are there. Another corpus of your own is trained on its `train`, and its other
    splits have to be named.
    """
    module = corpus_module(name)
    if name == "webdataset":
        there = [split for split in ("validation", "test") if module.shards_of(Path(data_dir), split)]
        return {split: [split] for split in ("train", *there)}
    if not module.SPLITS:
        return {"train": ["train"]}
    return {split: [split] for split in ("train", "validation", "test") if split in module.SPLITS}
