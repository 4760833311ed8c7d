"""A table of clips: CSV, JSON lines or Parquet, with the name of a file in each record, or in Parquet the sound itself."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from supclap.errors import DataError

from .columns import ColumnMapping, is_missing
from .rows import encoded_audio, join_captions
from .text_files import read_csv, read_text, refuse_stand_in


TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
# The columns of a table whose owner names none.
COLUMNS = ColumnMapping(audio_column="file_name")


def read_table(path: Path) -> list[dict]:
    """Records of a table; values of CSV as they stand in the file, so that ids such as `007` stay what they are.

    Raises:
        DataError: There is no such file, it has another ending or no rows, or cannot be read; the message says why.
    """
    if not path.is_file():
        raise DataError(f"No table at {str(path)!r}.")
    if path.suffix not in TABLES:
        raise DataError(f"{str(path)!r}: expected one of {', '.join(TABLES)}.")
    if path.suffix in (".csv", ".tsv"):
        return read_csv(path)
    records = _read_parquet(path) if path.suffix == ".parquet" else _read_json_records(path)
    if not records:
        raise DataError(f"{path} has no rows.")
    return records


def _read_parquet(path: Path) -> list[dict]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        refuse_stand_in(path)
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"{path} is not Parquet, or ends early: {reason}. Get or write it again.") from None


def _read_json_records(path: Path) -> list[dict]:
    """The records of JSON: a list of objects, or one object a line."""
    text = read_text(path)
    try:
        records = json.loads(text)
    except json.JSONDecodeError:
        records = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    records.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}, line {number}: not JSON ({error.msg}).") from None
    records = [records] if isinstance(records, dict) else records
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path}: expected one object a line, or a list of objects.")
    return records


def columns_of(table: Sequence[dict]) -> list[str]:
    """The columns of a table, in their order; a record of JSON may lack some of them."""
    return list(dict.fromkeys(name for record in table for name in record))


def file_of(cell: Any) -> str | None:
    """The name of the file in a cell, which Parquet of the Hub holds next to its bytes."""
    cell = cell.get("path") if isinstance(cell, Mapping) else cell
    return None if is_missing(cell) or isinstance(cell, bytes) else str(cell)


def clip_id(record: Mapping, columns: ColumnMapping, number: int, prefix: str = "") -> str:
    """The id of the clip of a record: its own, else the name of its file behind a prefix, else the record's number."""
    own = record.get(columns.id_column or "id")
    if is_missing(own):
        return prefix + (file_of(record.get(columns.audio_column)) or f"row {number}")
    return str(own)


def table_rows(
    table: Sequence[dict], path: Path, columns: ColumnMapping = COLUMNS, prefix: str = ""
) -> Iterator[dict]:
    """Rows of a table.

    Args:
        table: Its records.
        path: The file. Names of audio files are relative to its folder.
        columns: What its columns mean. Without an `id_column`, a column `id` is the id.
        prefix: What stands before a file name that becomes an id, to tell it from the same name elsewhere.

    Yields:
        A row a clip, with its `file`; `audio` is `None` where that file is missing. Records of one id are captions of
        one clip, wherever they stand.

    Raises:
        DataError: A column is missing, a duration is no number, or two files have one id.
    """
    columns = columns.found_in(columns_of(table), str(path))
    files: dict[str, str | None] = {}

    def row_of(number: int, record: dict) -> dict:
        audio = record.get(columns.audio_column)
        file = file_of(audio)
        if not isinstance(encoded_audio(audio), bytes):
            audio = str(path.parent / (file or ""))
            audio = audio if os.path.isfile(audio) else None
        where, clip = f"{path}, row {number}", clip_id(record, columns, number, prefix)
        if files.setdefault(clip, file) != file:
            raise DataError(f"{where}: the id {clip!r} is also that of {files[clip]!r}.")
        return {"id": clip, "file": file, "audio": audio} | columns.row(record, where)

    yield from join_captions(row_of(number, record) for number, record in enumerate(table))
