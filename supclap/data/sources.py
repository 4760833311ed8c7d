"""Rows from files: a folder of clips with a CSV or JSON-lines table."""

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .captions import check_row


class DataError(ValueError):
    """Data that cannot be used; the message names the file, row or column, and the fix."""


if TYPE_CHECKING:
    from supclap.config import DataArguments


def read_table(path: Path) -> list[dict]:
    """Rows of a CSV or JSON-lines file, read by `datasets` with every CSV value as it stands in the file.

    Raises:
        DataError: There is no such file, or it has another ending or no rows.
    """
    from datasets import Features, Value, load_dataset

    if not path.is_file():
        raise DataError(f"No table at {str(path)!r}.")
    kinds = {".csv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
    if path.suffix not in kinds:
        raise DataError(f"{str(path)!r}: expected one of {', '.join(kinds)}.")
    options = {}
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file), [])
        # all strings: ids such as "007" or "1e5" stay what they are, and an empty cell is an empty string
        options = {"features": Features({name: Value("string") for name in header}), "keep_default_na": False}
    try:
        rows = load_dataset(kinds[path.suffix], data_files=str(path), split="train", **options).to_list()
    except Exception as error:  # datasets wraps whatever its readers raise
        raise DataError(f"{str(path)!r} could not be read, or has no rows: {error.__cause__ or error}") from error
    return rows


def _captions(row: dict, columns: list[str]) -> list[str]:
    """The captions of all columns; a cell may hold one caption or a JSON list of them."""
    captions = []
    for column in columns:
        value = row[column]
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = json.loads(value)
        captions += [value] if isinstance(value, str) else list(value)
    return captions


def to_rows(table: list[dict], folder: Path, args: "DataArguments", name: str) -> list[dict]:
    """A table in the row format.

    Raises:
        DataError: A column is missing, a label has no captions, or a file does not exist; the first 20 are named.
    """
    columns = set(table[0])
    captions_from_label = args.label_captions is not None
    needed = [args.audio_column, *([] if captions_from_label else args.caption_columns)]
    needed += [column for column in (args.label_column, args.group_column) if column]
    absent = [column for column in needed if column not in columns]
    if absent:
        raise DataError(f"{name} has no column {', '.join(map(repr, absent))}; its columns are {sorted(columns)}.")
    rows, missing = [], []
    for index, record in enumerate(table):
        path = folder / record[args.audio_column]
        if not path.is_file():
            missing.append(f"row {index}: {record[args.audio_column]!r}")
        row = {"id": record.get("id") or record[args.audio_column], "audio": str(path)}
        if args.label_column:
            row["label"] = record[args.label_column]
        if captions_from_label:
            if row["label"] not in args.label_captions:
                raise DataError(f"{name}, row {index}: label {row['label']!r} has no entry in label_captions.")
            row["captions"] = list(args.label_captions[row["label"]])
            row["group"] = row["label"]  # the captions are the class's, so clips of a class are no negatives
        else:
            row["captions"] = _captions(record, args.caption_columns)
        if args.group_column:
            row["recording"] = record[args.group_column]
        row |= {key: record[key] for key in ("source", "licence", "author", "duration") if key in record}
        check_row(row, index)
        rows.append(row)
    if missing:
        raise DataError(f"{name}: {len(missing)} of {len(table)} files do not exist: {'; '.join(missing[:20])}")
    return rows


def load_splits(args: "DataArguments") -> dict[str, list[dict]]:
    """The rows of `train`, `validation` and `test`, as far as the arguments name them.

    Training rows of a recording (`group_column`) that also occurs in validation or test are dropped and counted.
    """
    if args.data_dir is None:
        raise DataError("data_dir is not set: name the folder of the clips, e.g. --data_dir path/to/clips.")
    folder = Path(args.data_dir)
    if not folder.is_dir():
        raise DataError(f"data_dir {str(folder)!r} is not a folder.")
    splits = {}
    tables: dict[str, list[dict]] = {}
    for split in ("train", "validation", "test"):
        file = getattr(args, f"{split}_file")
        if file is None:
            continue
        path = folder / file
        table = tables.setdefault(file, read_table(path) if file not in tables else [])
        if args.split_column:
            wanted = {str(value) for value in getattr(args, f"{split}_splits") or []}
            if args.split_column not in table[0]:
                raise DataError(f"{path} has no column {args.split_column!r}; its columns are {sorted(table[0])}.")
            table = [record for record in table if str(record[args.split_column]) in wanted]
            if not table:
                raise DataError(
                    f"{path}: no row has {args.split_column} in {sorted(wanted)}, named by {split}_splits."
                )
        splits[split] = to_rows(table, path.parent, args, str(path))
    if "train" not in splits:
        raise DataError("train_file is not set: name the table of the training clips.")
    held_out = {
        row["recording"] for split in ("validation", "test") for row in splits.get(split, []) if "recording" in row
    }
    leaks = [row["id"] for row in splits["train"] if row.get("recording") in held_out]
    if leaks:
        print(f"dropped {len(leaks)} training clips whose recording is in validation or test: {', '.join(leaks[:20])}")
        splits["train"] = [row for row in splits["train"] if row.get("recording") not in held_out]
    return splits
