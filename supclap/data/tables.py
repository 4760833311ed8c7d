"""A table of clips with columns of your own: CSV, JSON lines or Parquet, captions in one column or several."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from supclap.errors import DataError

from .corpora.common import LABEL_TEMPLATE, label_caption, label_of
from .files import decimal, encoded, one_or_more, read_csv, read_text, refuse_stand_in


# columns that become keys of the row as they are
PASSED_ON = ("language", "source", "licence", "author", "duration", "recording", "labels", "group")
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
CAPTION_NAMES = re.compile(r"(captions?|texts?|sentences?|raw_text)([_ ]?\d+)?", re.IGNORECASE)


def read_table(path: Path) -> list[dict]:
    """Rows of a table; values of CSV as they stand in the file, so that ids such as `007` stay what they are.

    Raises:
        DataError: There is no such file, it has another ending or no rows, or cannot be read; the message says why.
    """
    if not path.is_file():
        raise DataError(f"No table at {str(path)!r}.")
    if path.suffix not in TABLES:
        raise DataError(f"{str(path)!r}: expected one of {', '.join(TABLES)}.")
    if path.suffix in (".csv", ".tsv"):
        return read_csv(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    return _read_json_rows(path)


def _read_parquet(path: Path) -> list[dict]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        refuse_stand_in(path)
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"{path} is not Parquet, or ends early: {reason}. Get or write it again.") from None
    if not rows:
        raise DataError(f"{path} has no rows.")
    return rows


def _read_json_rows(path: Path) -> list[dict]:
    text = read_text(path)
    try:
        rows = json.loads(text)
    except json.JSONDecodeError:
        rows = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}, line {number}: not JSON ({error.msg}).") from None
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected one object a line, or a list of objects.")
    if not rows:
        raise DataError(f"{path} has no rows.")
    return rows


def columns_of(table: Sequence[dict]) -> list[str]:
    """The columns of a table: records of JSON may lack some of them."""
    return list(dict.fromkeys(name for record in table for name in record))


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: it is empty, or NaN, which tables have in place of it."""
    return value is None or value == "" or value != value


def passed_on(record: Mapping, where: str) -> dict:
    """The columns of a record that become keys of the row, `duration` as a number.

    Raises:
        DataError: A duration is none.
    """
    kept = {key: record[key] for key in PASSED_ON if not is_missing(record.get(key))}
    if "duration" in kept:
        kept["duration"] = decimal(kept["duration"], f"{where}, duration", "number of seconds")
    return kept


def file_of(value: Any) -> str | None:
    """The name of the file in a cell, which Parquet of the Hub holds next to its bytes."""
    value = value.get("path") if isinstance(value, Mapping) else value
    return None if is_missing(value) or isinstance(value, bytes) else str(value)


def clip_id(record: Mapping, audio_column: str, number: int) -> str:
    """The id of a clip: its `id`, else its file, else its row."""
    own = record.get("id")
    return (file_of(record.get(audio_column)) or f"row {number}") if is_missing(own) else str(own)


def captions_of(value, where: str) -> list:
    """Captions of a cell: one, or a list, which CSV holds as JSON. An empty cell has none.

    Raises:
        DataError: The cell begins like a list and is none.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: {value[:80]!r} is no JSON list of captions ({error.msg}).") from None
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def find_caption_columns(columns: Sequence[str], where: str) -> list[str]:
    """The columns that go by a usual name of captions, in their order.

    Raises:
        DataError: There is none.
    """
    found = [name for name in columns if CAPTION_NAMES.fullmatch(name)]
    if not found:
        raise DataError(f"{where} has no column of captions that can be told; its columns are {sorted(columns)}.")
    return found


def table_rows(
    table: Sequence[dict],
    path: Path,
    audio_column: str = "file_name",
    caption_columns: str | Sequence[str] | None = None,
    label_column: str | None = None,
    template: str = LABEL_TEMPLATE,
    defaults: Mapping[str, str | None] | None = None,
    prefix: str = "",
) -> Iterator[dict]:
    """Rows of a table, audio relative to it; `audio` is `None` where the file is missing.

    Args:
        table: Its records.
        path: The file.
        audio_column: Column of the file, or in Parquet of its bytes, as `datasets` writes them.
        caption_columns: Columns of captions; each may hold a list. Those of a usual name when omitted.
        label_column: Column of the class; its caption in the template stands in where there are no captions.
        template: Caption of a class.
        defaults: Values of columns that the table lacks.
        prefix: What stands before the file where that is the id, to tell it from files of that name elsewhere.

    Raises:
        DataError: A column is missing, or a duration is no number.
    """
    columns = columns_of(table)
    if caption_columns is None:
        caption_columns = [] if label_column else find_caption_columns(columns, str(path))
    caption_columns = one_or_more(caption_columns)
    absent = [
        name for name in (audio_column, *caption_columns, label_column) if name is not None and name not in columns
    ]
    if absent:
        raise DataError(f"{path} has no column {', '.join(map(repr, absent))}; its columns are {sorted(columns)}.")
    clips: dict[str, dict] = {}
    for number, record in enumerate(table):
        where = f"{path}, row {number}"
        file, audio = file_of(record.get(audio_column)), record.get(audio_column)
        if not isinstance(encoded(audio), bytes):
            audio = str(path.parent / (file or ""))
        captions = [caption for name in caption_columns for caption in captions_of(record.get(name), where)]
        row = {
            **{key: value for key, value in (defaults or {}).items() if value is not None},
            **passed_on(record, where),
            "id": (prefix if is_missing(record.get("id")) else "") + clip_id(record, audio_column, number),
            "file": file,
            "audio": audio if not isinstance(audio, str) or os.path.isfile(audio) else None,
            "captions": captions,
        }
        if label_column:
            row["label"] = label_of(record.get(label_column))
            if not captions and row["label"] is not None:
                row |= {"captions": label_caption(template, [row["label"]]), "group": row["label"]}
        known = clips.setdefault(row["id"], row)
        if known is row:
            continue
        # one row a caption: rows of one clip are one row, wherever they stand
        if known["file"] != file:
            raise DataError(f"{where}: the id {row['id']!r} is also that of {known['file']!r}.")
        add_captions(known, row)
    yield from clips.values()


def add_captions(row: dict, other: dict) -> None:
    """Appends the captions of another row of the same clip, with their languages where the two differ."""
    if "language" in row or "language" in other:
        spoken = [
            one["language"] if isinstance(one.get("language"), list) else [one.get("language")] * len(one["captions"])
            for one in (row, other)
        ]
        languages = spoken[0] + spoken[1]
        row["language"] = languages[0] if len(set(languages)) == 1 else languages
    row["captions"] = row["captions"] + other["captions"]
