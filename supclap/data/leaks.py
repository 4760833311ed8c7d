"""Leak lists: recordings of evaluation sets that must not be trained on.

A recording is what clips are cut from, spelled alike in all corpora (`youtube:ID`, `freesound:NUMBER`), so that a clip of
one corpus is found in another one whatever its file is called there.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from supclap.errors import DataError

from .columns import one_or_more
from .rows import LazyRows, Rows, removed_of, select, without_audio
from .text_files import read_csv, read_json


# evaluation set -> the published list (WavCaps) of what to leave out for it
_AUDIOCAPS_CLOTHO = "blacklist_exclude_test_ac.json"
_SOUND_CLASSES = "blacklist_exclude_ub8k_esc50_vggsound.json"
LEAK_LISTS = {
    "audiocaps": _AUDIOCAPS_CLOTHO,
    "clotho": _AUDIOCAPS_CLOTHO,
    "esc50": _SOUND_CLASSES,
    "urbansound8k": _SOUND_CLASSES,
    "vggsound": _SOUND_CLASSES,
}


def read_leak_list(path: str | Path) -> set[str]:
    """Recordings of a leak list.

    Args:
        path: JSON of the form `{"AudioSet": ["Y<id>.wav", …], "FreeSound": [number, …]}`, or a CSV with a column
            `recording`.

    Raises:
        DataError: Another form, or no entries.
    """
    path = Path(path)
    if path.suffix != ".json":
        return {row["recording"].strip() for row in read_csv(path, {"recording": ()})}
    content = read_json(path)
    if not isinstance(content, dict) or not any(isinstance(content.get(key), list) for key in _READERS):
        raise DataError(f"{path}: expected {{'AudioSet': [...], 'FreeSound': [...]}}.")
    unknown = sorted(set(content) - set(_READERS))
    if unknown:
        raise DataError(f"{path}: the sources {', '.join(unknown)} are unknown; there are {', '.join(_READERS)}.")
    return {_READERS[source](str(entry)) for source, entries in content.items() for entry in entries}


def _youtube(name: str) -> str:
    stem = name.removesuffix(".wav")
    return "youtube:" + (stem[1:] if len(stem) == 12 and stem.startswith("Y") else stem)


_READERS = {"AudioSet": _youtube, "FreeSound": lambda name: f"freesound:{name.removesuffix('.wav')}"}


def _leaked_recordings(name: str, folder: str | Path) -> set[str]:
    """The recordings of one list, which is named by its path, or by its evaluation set."""
    if Path(name).suffix in (".json", ".csv"):
        return read_leak_list(name)
    if name not in LEAK_LISTS:
        raise DataError(
            f"exclude_leaks_of: {name!r} is no evaluation set with a published leak list ({', '.join(LEAK_LISTS)}); "
            "name a file (.json or .csv with a column `recording`) instead."
        )
    found = sorted(Path(folder).rglob(LEAK_LISTS[name]))
    if not found:
        raise DataError(
            f"The leak list of {name}, {LEAK_LISTS[name]}, is not under {str(folder)!r}. WavCaps publishes it among "
            "its JSON files (blacklist/); name its folder with leak_lists."
        )
    return read_leak_list(found[0])


def leaks_of(names: str | Iterable[str], folder: str | Path) -> dict[str, str]:
    """The recordings of several lists, each with the first of the names whose list has it.

    Args:
        names: Evaluation sets of `LEAK_LISTS`, or paths of leak lists; one or several.
        folder: Where the published lists lie, at any depth.

    Raises:
        DataError: A name is neither, or a list is not there.
    """
    found: dict[str, str] = {}
    for name in one_or_more(names):
        for recording in _leaked_recordings(name, folder):
            found.setdefault(recording, name)
    return found


def exclude_leaks(
    rows: Sequence[dict], names: str | Iterable[str], folder: str | Path, where: str = "the training data"
) -> Rows | LazyRows:
    """Rows whose recording no list names; those left out are noted in `removed`.

    Args:
        rows: Training rows with `recording`.
        names, folder: The lists; see [`leaks_of`].
        where: What messages call the rows.

    Raises:
        DataError: A list is missing, no row says what it was cut from, so that nothing can be told, or all rows leak.
    """
    reasons = {recording: f"is in {name}" for recording, name in leaks_of(names, folder).items()}
    unknown = sum(without_audio(rows, index).get("recording") is None for index in range(len(rows)))
    if unknown == len(rows):
        raise DataError(
            f"exclude_leaks_of: no clip of {where} says what recording it was cut from, so leaks cannot be told. Give "
            "the rows a `recording` (group_column, or the metadata of the corpus)."
        )
    if unknown:
        print(f"{where}: {unknown} of {len(rows)} clips do not say what they were cut from; leaks among them stay")
    return leave_out(rows, reasons, f"exclude_leaks_of: every clip of {where} is on a leak list")


def leave_out(rows: Sequence[dict], reasons: Mapping[str, str], all_leak: str) -> Rows | LazyRows:
    """Rows but for those of the recordings in `reasons`, which are noted in `removed` with the reason.

    Raises:
        DataError: No row is left; the message begins with `all_leak`.
    """
    kept, removed = [], removed_of(rows)
    for index in range(len(rows)):
        row = without_audio(rows, index)
        if (recording := row.get("recording")) in reasons:
            removed.append({"id": row["id"], "reason": f"leak: {recording} {reasons[recording]}"})
        else:
            kept.append(index)
    if not kept:
        raise DataError(f"{all_leak}; nothing is left to train on.")
    return select(rows, kept, removed)
