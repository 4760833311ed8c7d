"""Annotation files (CSV, JSON) as people really have them: read whole, or refused with the reason."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supclap.errors import DataError, MissingFileError


# No annotation is longer; a longer field has swallowed the lines after an unbalanced quote.
LONGEST_FIELD = 10_000


def refuse_stand_in(path: Path) -> None:
    """Raises a [`DataError`] where something else lies in place of a file, as downloads leave it.

    Raises:
        MissingFileError: No such file.
        DataError: It is empty, a Git LFS pointer, a web page, or an archive.
    """
    if not path.is_file():
        raise MissingFileError(f"No file at {str(path)!r}.")
    with path.open("rb") as file:
        head = file.read(512).lstrip()
    if not head and not path.read_bytes().strip():
        raise DataError(f"{path} is empty. Download it again.")
    if head.startswith(b"version ") and b"oid sha256:" in head:
        raise DataError(f"{path} is a Git LFS pointer, not the file itself. Run `git lfs pull` in its repository.")
    if head[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise DataError(f"{path} is a web page, not the file itself. Download the raw file.")
    if head.startswith((b"PK\x03\x04", b"\x1f\x8b", b"7z\xbc\xaf")):
        raise DataError(f"{path} is an archive or a spreadsheet (xlsx). Unpack it, or save it as CSV UTF-8.")


def read_text(path: Path, fallback: str | None = None) -> str:
    """Text of a file in UTF-8 or UTF-16, with or without a byte-order mark.

    Args:
        path: The file.
        fallback: Encoding to use where the file is not UTF-8, for files that are published in it.

    Raises:
        DataError: What [`refuse_stand_in`] refuses, or another encoding.
    """
    refuse_stand_in(path)
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if fallback:
            return data.decode(fallback)
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; a spreadsheet may have saved the file "
            "in its own encoding. Save it as CSV UTF-8, or take the file as it was published."
        ) from None


def read_csv(
    path: Path,
    columns: Mapping[str, Sequence[str]] | None = None,
    names: Sequence[str] | None = None,
    fallback: str | None = None,
    spaced: bool = False,
) -> list[dict[str, str]]:
    """Rows of a CSV, semicolon- or tab-separated file, every value as it stands in the file.

    Args:
        path: The file. Lines that start with `#` before the data are left out.
        columns: Columns that must be there, each with the other names it goes by; case does not matter.
        names: Names of the columns of a file without a header.
        fallback: Encoding of files that are not published in UTF-8.
        spaced: Whether a space follows each delimiter, also before a quote.

    Raises:
        DataError: What [`read_text`] refuses, a missing column, a line with too few or too many fields (a quote is
            unbalanced or a comma unquoted), or no rows.
    """
    lines = read_text(path, fallback).splitlines(keepends=True)
    skipped = 0
    while skipped < len(lines) and (lines[skipped].startswith(("#", "sep=")) or not lines[skipped].strip()):
        skipped += 1
    lines = lines[skipped:]
    columns = columns or {}
    csv.field_size_limit(2**31 - 1)
    header, delimiter = _header(path, lines, columns, names)
    width = len(header)
    rows = []
    # the csv module wants the text undivided: other line ends than \n may stand inside of quotes
    reader = csv.reader(
        io.StringIO("".join(lines), newline=""), delimiter=delimiter, skipinitialspace=spaced, strict=True
    )
    try:
        for index, fields in enumerate(reader):
            if (index == 0 and names is None) or not any(field.strip() for field in fields):
                continue
            if len(fields) < width or any(field.strip() for field in fields[width:]):
                raise DataError(
                    f"{path}, line {reader.line_num + skipped}: {len(fields)} fields where there should be {width} "
                    f"({', '.join(filter(None, header))}). Look for a missing quote or an unquoted {delimiter!r}."
                )
            if any(len(field) > LONGEST_FIELD for field in fields):
                raise DataError(f"{path}, line {reader.line_num + skipped}: a quote is opened and not closed.")
            rows.append({name: field for name, field in zip(header, fields) if name})
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num + skipped}: {error}. Look for an unbalanced quote.") from None
    if not rows:
        raise DataError(f"{path} has no rows.")
    return rows


def _header(
    path: Path, lines: Sequence[str], columns: Mapping[str, Sequence[str]], names: Sequence[str] | None
) -> tuple[list[str], str]:
    """The names of the columns of a file, and its delimiter.

    The delimiter is the one that divides the first line into the wanted columns, under any of their names; where no
    columns are wanted, it is the one that gives the most.
    """
    if names is not None:
        return list(names), _delimiter(path, lines, names)
    first = lines[0] if lines else ""
    candidates = {}
    for delimiter in ",;\t":
        fields = next(csv.reader([first], delimiter=delimiter, skipinitialspace=True), [])
        candidates[delimiter] = [field.strip().strip('"') for field in fields]
    aliases = {alias.casefold(): name for name, others in columns.items() for alias in (name, *others)}
    for delimiter, fields in candidates.items():
        header = [aliases.get(field.casefold(), field) for field in fields]
        if all(name in header for name in columns):
            candidates[delimiter] = header
        elif columns:
            candidates[delimiter] = []
    delimiter = max(candidates, key=lambda key: len(candidates[key]))
    header = candidates[delimiter]
    if not header:
        raise DataError(
            f"{path} lacks some of the columns {', '.join(columns)}; its first line is {first.strip()[:200]!r}. Take "
            "the file as it was published."
        )
    twice = {name for name in header if name and header.count(name) > 1}
    if twice:
        raise DataError(f"{path} has the column {', '.join(sorted(twice))} twice.")
    return header, delimiter


def _delimiter(path: Path, lines: Sequence[str], names: Sequence[str]) -> str:
    """The delimiter of a file without a header: the one that divides most of its lines into the columns.

    A comma may stand in a label or a number as well, so the others go before it where they divide as many.
    """

    def fitting(delimiter: str) -> int:
        rows = csv.reader(lines[:1000], delimiter=delimiter, skipinitialspace=True)
        return sum(len(fields) >= len(names) and not any(fields[len(names) :]) for fields in rows)

    counts = {delimiter: fitting(delimiter) for delimiter in "\t;,"}
    if not any(counts.values()):
        first = lines[0].strip() if lines else ""
        raise DataError(f"{path}: expected lines of {len(names)} fields ({', '.join(names)}), got {first!r}.")
    return max(counts, key=counts.get)


def read_json(path: Path) -> Any:
    """The content of a JSON file, in any encoding that [`read_text`] takes.

    Raises:
        DataError: What [`read_text`] refuses, or broken JSON; the message names the line.
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not JSON ({error.msg}). Download it again.") from None


def annotation_file(folder: Path, chosen: str | None, names: Sequence[str], what: str) -> Path:
    """The file of annotations in a folder: the one that the user chose, else the first of its published names there.

    Raises:
        MissingFileError: None is chosen, and none of the names is there; all are named.
    """
    if chosen:
        return folder / chosen
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise MissingFileError(
        f"No {what} in {str(folder)!r}; looked for {', '.join(names)}. Name another with `annotations`."
    )
