"""Your own folder, in the layout of `datasets`' audiofolder: files beside `metadata.csv`, or one folder a class.

`train/metadata.csv` and `test/metadata.csv` are splits. A single `metadata.csv` tells the split of a clip in its column
`split`, else by the folder of the file (`test/1.wav`). Without metadata, `train/dog/1.wav` and `test/dog/1.wav` are
splits whose classes are their folders. Names of files never decide a split, as they do in `datasets`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from supclap.errors import DataError

from ..audio_index import AUDIO_SUFFIXES
from ..columns import ColumnMapping
from ..labels import label_caption
from ..tables import COLUMNS, columns_of, file_of, read_table, table_rows


SPLITS: dict[str, str] = {}  # any
FOLDERS = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
SPLIT_COLUMN = "split"
METADATA = tuple(f"metadata{suffix}" for suffix in (".csv", ".jsonl", ".parquet"))


def load(folder: Path, split: str, **columns) -> Iterator[dict]:
    """Rows of a split.

    Args:
        folder: The folder.
        split: A value of the column `split` or the name of a folder in it; `train` is all else.
        columns: What the columns of the metadata mean, as arguments of [`~supclap.data.columns.ColumnMapping`]; the
            audio is a `file_name` relative to the metadata when omitted. Without metadata, `template`, `language` and
            `licence` count.
    """
    mapping = replace(COLUMNS, **columns)
    split = canonical(split)
    place = _place(folder, split)
    own, whole = _metadata(place) if place else None, _metadata(folder)
    if own or whole:
        path = own or whole
        table = read_table(path)
        if not own:
            tables = tables_by_split(path, table, mapping.audio_column)
            if split not in tables:
                raise DataError(f"{path}: no row is of the split {split!r}; there are {', '.join(sorted(tables))}.")
            table = tables[split]
        yield from table_rows(table, path, mapping, prefix=f"{place.name}/" if own else "")
        return
    if place is None and split != "train":
        raise DataError(f"{str(folder)!r} has no folder {split!r}.")
    yield from _rows_of_class_folders(folder, place or folder, mapping)


def _rows_of_class_folders(folder: Path, place: Path, mapping: ColumnMapping) -> Iterator[dict]:
    """Rows of a split without metadata: `place` has a folder for each class, at any depth below it lie the files."""
    found = 0
    for root, folders, files in os.walk(place):
        folders.sort()
        for file in sorted(files):
            if Path(file).suffix.lower() not in AUDIO_SUFFIXES:
                continue
            found += 1
            path = Path(root) / file
            label = path.relative_to(place).parts[0]
            if path.parent == place:
                raise DataError(f"{path} has no class: put it into a folder of its class, or write {METADATA[0]}.")
            yield {
                "id": str(path.relative_to(folder)),
                "file": file,
                "audio": str(path),
                "captions": label_caption(mapping.template, [label]),
                "label": label,
                "group": label,
                "source": folder.name,
                "language": mapping.language,
                "licence": mapping.licence,
            }
    if not found:
        raise DataError(f"{str(place)!r} holds neither {', '.join(METADATA)} nor folders of audio files.")


def splits_in(folder: Path, audio_column: str = "file_name") -> list[str]:
    """The splits that a folder holds, by its metadata and its folders."""
    whole = _metadata(folder)
    places = {split: _place(folder, split) for split in FOLDERS}
    found = {split for split, place in places.items() if place and (not whole or _metadata(place))}
    if whole:
        found |= set(tables_by_split(whole, read_table(whole), audio_column))
    known = [split for split in FOLDERS if split in found]
    return [*known, *sorted(found - set(known))] or ["train"]


def canonical(name: str) -> str:
    """The name of a split that another one, such as `val`, stands for."""
    return next((split for split, names in FOLDERS.items() if name.casefold() in names), name)


def _place(folder: Path, split: str) -> Path | None:
    """The folder of a split, where there is one."""
    return next((folder / name for name in FOLDERS.get(split, (split,)) if (folder / name).is_dir()), None)


def _metadata(place: Path) -> Path | None:
    """The table that lies in a folder, where there is one."""
    return next((place / name for name in METADATA if (place / name).is_file()), None)


def tables_by_split(
    path: Path, table: Sequence[dict], audio_column: str = COLUMNS.audio_column
) -> dict[str, list[dict]]:
    """The records of each split in the metadata of a whole folder, by the column `split` or else the folder of the file.

    Raises:
        DataError: The column is there, and has no value for a row.
    """
    if SPLIT_COLUMN not in columns_of(table):
        folders = [PurePosixPath(file_of(record.get(audio_column)) or "").parent.parts for record in table]
        splits = [canonical(parts[0]) if parts else "" for parts in folders]
        splits = [split if split in FOLDERS else "train" for split in splits]
    else:
        values = [str(record.get(SPLIT_COLUMN) or "").strip() for record in table]
        if "" in values:
            raise DataError(f"{path}, row {values.index('')}: no value in the column {SPLIT_COLUMN}.")
        splits = [canonical(value) for value in values]
    tables: dict[str, list[dict]] = {}
    for record, split in zip(table, splits, strict=True):
        tables.setdefault(split, []).append(record)
    return tables
