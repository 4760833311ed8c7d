"""The row format of all data, and which rows are accepted.

A row is a dictionary that describes one clip:

| key | what it holds |
| --- | --- |
| `id` | the clip's id, unique in its data |
| `audio` | a path, bytes, or `{"array", "sampling_rate"}`; decoded only when it is needed |
| `captions` | a list of one or more strings |
| `language` | optional: one code for all captions, or a list with one a caption |
| `label`, `labels` | optional: the class, or the classes |
| `group` | optional: rows of one group say the same thing and are never negatives of each other; the `id` when absent |
| `recording` | optional: what the clip was cut from, spelled alike in all corpora (`youtube:ID`) |
| `duration` | optional: seconds |
| `source`, `author`, `licence` | optional: where the clip comes from, who made it, and under which terms |

A loader may add `file`, the name of the audio file, and leave `audio` empty where that file is missing; messages then
name the file. [`accept_rows`] takes both away.
"""

import copy
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supclap.errors import DataError, name_some


def is_text(caption: object) -> bool:
    """Whether a caption can be trained on."""
    return isinstance(caption, str) and bool(caption.strip())


def check_row(row: dict, index: int) -> None:
    """Raises a `ValueError` that names the row when it has no id, no audio, or no usable captions."""
    name = f"row {index} (id {row.get('id')!r})"
    if row.get("id") is None:
        raise ValueError(f"row {index} has no `id`; its columns are {sorted(row)}.")
    if row.get("audio") is None:
        raise ValueError(f"{name} has no `audio`.")
    captions = row.get("captions")
    if isinstance(captions, str) or not captions:
        raise ValueError(f"{name} needs `captions`, a list with at least one string; got {captions!r}.")
    for caption in captions:
        if not is_text(caption):
            raise ValueError(f"{name} has the caption {caption!r}; captions must be non-empty strings.")
    language = row.get("language")
    if isinstance(language, list) and len(language) != len(captions):
        raise ValueError(f"{name} has {len(language)} languages for {len(captions)} captions.")


def caption_languages(row: dict) -> list[str | None]:
    """The language of each caption of a row; `None` where the row does not tell it."""
    language, captions = row.get("language"), row["captions"]
    return [language] * len(captions) if language is None or isinstance(language, str) else list(language)


def clean_captions(captions: Iterable) -> list:
    """Captions without white space around them or in excess inside; what is no text stays, for `check_row` to refuse."""
    return [" ".join(caption.split()) if isinstance(caption, str) else caption for caption in captions]


def encoded_audio(audio: Any) -> Any:
    """The path or the bytes that a row's audio is stored as, or `None` where it holds none; decoded audio as it is."""
    if not isinstance(audio, Mapping) or any(audio.get(key) is not None for key in ("array", "raw")):
        return audio
    return audio.get("path") if audio.get("bytes") is None else audio["bytes"]


class Rows(list):
    """A list of rows that remembers what was left out of it.

    Args:
        rows: The rows.
        removed: The `{"id", "reason"}` of each row that was left out; the attribute of that name.
    """

    def __init__(self, rows: Iterable[dict] = (), removed: Iterable[dict] = ()):
        super().__init__(rows)
        self.removed = list(removed)


class LazyRows(Sequence):
    """Rows that are made when asked for, so that audio that is stored as bytes need not fit in memory.

    Subclasses have `__getitem__` and `without_audio`, and make the rows of `places`.

    Args:
        places: What tells where each clip is stored.
        removed: The `{"id", "reason"}` of each row that was left out; the attribute of that name.
    """

    def __init__(self, places: Iterable, removed: Iterable[dict] = ()):
        self.places = list(places)
        self.removed = list(removed)

    def __len__(self) -> int:
        return len(self.places)

    @abstractmethod
    def without_audio(self, index: int) -> dict:
        """The row but for its audio, which is not read."""

    def select(self, indices: Sequence[int], removed: Iterable[dict]) -> "LazyRows":
        """The rows at some indices, with a new note of what was left out."""
        chosen = copy.copy(self)
        LazyRows.__init__(chosen, (self.places[index] for index in indices), removed)
        return chosen

    def audio_place(self, index: int) -> tuple[tuple[str, ...], Hashable] | None:
        """The files that hold the audio of a row, and its place in them; `None` where that is not known."""
        return None


def without_audio(rows: Sequence[dict], index: int) -> dict:
    """One of `rows`, for a look at all but its audio, which lazy rows do not read then."""
    return rows.without_audio(index) if isinstance(rows, LazyRows) else rows[index]


def select(rows: Sequence[dict], indices: Sequence[int], removed: Iterable[dict]) -> Rows | LazyRows:
    """The rows at some indices, with a note of what was left out."""
    if isinstance(rows, LazyRows):
        return rows.select(indices, removed)
    return Rows((rows[index] for index in indices), removed)


def removed_of(rows: Sequence[dict]) -> list[dict]:
    """What was left out of rows: `{"id", "reason"}` of each."""
    return list(getattr(rows, "removed", ()))


@dataclass
class UncheckedRows:
    """Rows as a loader found them, unusable ones included.

    Args:
        rows: The rows, to be walked through once; or lazy rows.
        where: What messages call them.
        folder: Where the audio was looked for.
    """

    rows: Iterable[dict] | LazyRows
    where: str
    folder: str

    def checked(self, skip_bad: bool = False) -> Rows | LazyRows:
        """The usable rows; see [`accept_rows`]."""
        return accept_rows(self.rows, self.where, self.folder, skip_bad)

    def as_they_are(self) -> Rows | LazyRows:
        """All rows, for a look at them; `audio` is `None` where it is missing."""
        if isinstance(self.rows, LazyRows):
            return self.rows
        return Rows({"audio": None, **row, "captions": clean_captions(row.get("captions", []))} for row in self.rows)


def accept_rows(rows: Iterable[dict] | LazyRows, where: str, folder: str, skip_bad: bool = False) -> Rows | LazyRows:
    """The usable rows; the others are an error, or with `skip_bad` left out and noted in `removed`.

    The audio is not opened. The first three arguments are those of [`UncheckedRows`].

    Raises:
        DataError: There are no rows, two have one id, or some cannot be used; the first 20 and the count are named.
    """
    lazy = isinstance(rows, LazyRows)
    if not lazy:
        rows = Rows({key: value for key, value in row.items() if value is not None} for row in rows)
    kept, missing, broken, removed = [], [], [], removed_of(rows)
    seen: dict[str, int] = {}
    for index in range(len(rows)):
        row = rows.without_audio(index) | {"audio": "not read yet"} if lazy else rows[index]
        file = row.pop("file", None)
        row["captions"] = clean_captions(row.get("captions", []))
        if seen.setdefault(row["id"], index) != index:
            raise DataError(f"{where}: rows {seen[row['id']]} and {index} have the same id {row['id']!r}.")
        if "audio" not in row:
            missing.append(f"row {index} (id {row['id']!r}): {file!r}")
            removed.append({"id": row["id"], "reason": f"no audio file {file!r}"})
            continue
        try:
            check_row(row, index)
            kept.append(index)
        except ValueError as error:
            broken.append(str(error).rstrip("."))
            removed.append({"id": row["id"], "reason": str(error)})
    if not len(rows):
        raise DataError(f"{where}: no rows.")
    if not kept:
        raise DataError(
            f"{where}: none of the {len(rows)} clips can be used; the first: {removed[0]['reason']}. Audio was looked "
            f"for under {folder!r}."
        )
    if missing and not skip_bad:
        raise DataError(
            f"{where}: {len(missing)} of {len(rows)} audio files are missing under {folder!r}: {name_some(missing)}. Get "
            "them, or leave their rows out with skip_bad: true; they are then counted and listed in the manifest."
        )
    if broken and not skip_bad:
        raise DataError(
            f"{where}: {len(broken)} of {len(rows)} rows cannot be used: {name_some(broken)}. Repair them, or leave "
            "them out with skip_bad: true; they are then counted and listed in the manifest."
        )
    return select(rows, kept, removed)


def join_captions(rows: Iterable[dict]) -> list[dict]:
    """One row a clip, from rows of one caption or more each: rows of one id are joined, wherever they stand.

    A clip takes all but its captions and their languages from the first of its rows.
    """
    clips: dict[str, dict] = {}
    for row in rows:
        known = clips.setdefault(row["id"], row)
        if known is row:
            continue
        if "language" in known or "language" in row:
            languages = caption_languages(known) + caption_languages(row)
            known["language"] = languages[0] if len(set(languages)) == 1 else languages
        known["captions"] = known["captions"] + row["captions"]
    return list(clips.values())
