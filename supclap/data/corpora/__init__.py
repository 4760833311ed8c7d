"""The corpora by name: each module turns the official files on disk into rows of the row format."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from supclap.errors import DataError

from ..accept import accept_lazy, accept_rows, as_they_are
from ..files import one_or_more
from ..leaks import exclude_leaks
from ..rows import LazyRows, Rows


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
    keep_bad: bool = False,
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
        keep_bad: Whether to keep all rows as they stand, for a look at them: those without usable audio or captions,
            of one id, and of leaks. `audio` is `None` where it is missing.
        options: Options of the corpus; its module's `load` describes them.

    Returns:
        Rows with `id`, `audio` (a path or bytes), `captions`, `language`, `source`, `licence`, and where the corpus has
        them `label` or `labels`, `group`, `recording` (what the clip was cut from) and `duration`. A list, but for
        shards and data sets, which are read when a row is asked for.

    Raises:
        DataError: An unknown corpus, split or option, files that cannot be read, or rows without usable audio or
            captions: the first 20 are named.
    """
    load = corpus_loader(name, options)
    folder = Path(data_dir)
    if name != "hub" and not folder.is_dir():
        raise DataError(f"data_dir {str(folder)!r} is not a folder.")
    splits = one_or_more(split)
    parts = [load(folder, split_name(name, one)) for one in splits]
    where = f"{name} {' + '.join(map(str, splits))}"
    lazy = isinstance(parts[0], LazyRows)
    if lazy and len(parts) > 1:
        raise DataError(f"{name}: name one split, not {', '.join(map(str, splits))}.")
    rows = parts[0] if lazy else (row for part in parts for row in part)
    if keep_bad:
        return as_they_are(rows)
    rows = accept_lazy(rows, where, skip_bad) if lazy else accept_rows(rows, where, str(folder), skip_bad)
    names = one_or_more(exclude_leaks_of)
    return exclude_leaks(rows, names, leak_lists or folder, where) if names else rows


def corpus_loader(name: str, options: Mapping) -> Callable[[Path, str], Iterable[dict] | LazyRows]:
    """What reads a split of a corpus, called with the folder and the split's name: its `load` with the options.

    Raises:
        DataError: The corpus is unknown, or has no such option.
    """
    load = corpus_module(name).load
    allowed = [key for key in inspect.signature(load).parameters if key not in ("folder", "split")]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise DataError(f"{name} has no option {', '.join(unknown)}; its options are {', '.join(allowed)}.")
    return partial(load, **(dict(options) | {"esc10": True} if name == "esc10" else options))


def corpus_module(name: str):
    """The module of a corpus, or a [`DataError`] that names all."""
    if name not in CORPORA:
        raise DataError(f"corpus {name!r} is unknown; there are {', '.join(sorted(CORPORA))}.")
    return import_module(f"{__name__}.{CORPORA[name]}")


def split_name(name: str, split: str | int) -> str:
    """The name of a split that the module of the corpus takes.

    Raises:
        DataError: The corpus has no such split.
    """
    module = corpus_module(name)
    key = str(split)
    key = module.ALIASES.get(key, key)
    if module.SPLITS and key not in module.SPLITS:
        raise DataError(f"{name} has no split {split!r}; it has {', '.join(module.SPLITS)}.")
    return key


def default_splits(name: str, data_dir: str | Path) -> dict[str, list[str]]:
    """The splits that training, validation and test take unless told otherwise: those that go by that name.

    Of shards they are those that are there. Another corpus of your own is trained on its `train`; the others have to be
    named.
    """
    module = corpus_module(name)
    if name == "webdataset":
        there = [split for split in ("validation", "test") if module.shards_of(Path(data_dir), split)]
        return {split: [split] for split in ("train", *there)}
    if not module.SPLITS:
        return {"train": ["train"]}
    return {split: [split] for split in ("train", "validation", "test") if split in module.SPLITS}
