"""From a record of a table or of a data set to a row: which columns say what, and how a cell is read.

Tables (CSV, JSON lines, Parquet), folders with `metadata.csv` and data sets of `datasets` are all read by
[`ColumnMapping.row`]. They differ only in where the audio lies and in what names a clip.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from supclap.errors import DataError

from .labels import LABEL_TEMPLATE, label_caption, label_of
from .rows import clean_captions


# Columns that become keys of the row as they are.
PASSED_ON = ("language", "source", "licence", "author", "duration", "recording", "labels", "group")
CAPTION_NAMES = re.compile(r"(captions?|texts?|sentences?|raw_text)([_ ]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class ColumnMapping:
    """What the columns of a data set mean.

    Args:
        audio_column: Column of the audio: the name of a file, or the sound itself.
        caption_columns: Column or columns of captions; each cell may hold one caption or a list. When omitted, these
            are the columns with a usual name (`caption`, `text_1`, …), or none where there is a `label_column`.
        label_column: Column of the class. A clip without captions gets its label in the template as its caption.
        id_column: Column of the clip's id. Records of one id are captions of one clip, wherever they stand.
        template: Caption of a class, with `{}` where its words go.
        language: Language of captions where no column `language` tells it.
        licence: Licence of clips where no column `licence` tells it.

    Example:
        >>> mapping = ColumnMapping("file", caption_columns="text", language="en")
        >>> mapping.row({"file": "1.wav", "text": "rain  falls", "author": "me"}, "table, row 0")
        {'language': 'en', 'author': 'me', 'captions': ['rain falls']}
    """

    audio_column: str = "audio"
    caption_columns: str | Sequence[str] | None = None
    label_column: str | None = None
    id_column: str | None = None
    template: str = LABEL_TEMPLATE
    language: str | None = None
    licence: str | None = None

    def found_in(self, columns: Sequence[str], where: str) -> "ColumnMapping":
        """This mapping with its caption columns as a list, once it is known that no column is missing from `columns`.

        Raises:
            DataError: The data lack a column, or have none with a usual name of captions.
        """
        captions = self.caption_columns
        if captions is None:
            captions = [] if self.label_column else [name for name in columns if CAPTION_NAMES.fullmatch(name)]
            if not captions and not self.label_column:
                raise DataError(
                    f"{where} has no column of captions that can be told; its columns are {sorted(columns)}."
                )
        captions = one_or_more(captions)
        wanted = (self.audio_column, *captions, self.label_column, self.id_column)
        absent = [name for name in wanted if name is not None and name not in columns]
        if absent:
            raise DataError(
                f"{where} has no column {', '.join(map(repr, absent))}; its columns are {sorted(columns)}."
            )
        return replace(self, caption_columns=captions)

    def row(self, record: Mapping, where: str) -> dict:
        """All of a row but its `id` and `audio`, from a record with the columns that [`found_in`] has looked up.

        Raises:
            DataError: A duration is no number, or a cell begins like a list of captions and is none.
        """
        captions = [
            caption
            for name in one_or_more(self.caption_columns or ())
            for caption in captions_of(record.get(name), where)
        ]
        row = {"language": self.language, "licence": self.licence} | _passed_on(record, where)
        label = label_of(record.get(self.label_column)) if self.label_column else None
        if label is not None:
            row["label"] = label
            if not captions:
                # the caption is the class's, so clips of a class are no negatives of each other
                captions = label_caption(self.template, [label])
                row["group"] = label
        row["captions"] = clean_captions(captions)
        return {key: value for key, value in row.items() if value is not None}


# What a recipe or `--option` may set.
COLUMN_OPTIONS = tuple(field.name for field in fields(ColumnMapping))


def one_or_more(value: Any) -> list:
    """A setting that may be one value or several, as a list: a string or an integer becomes a list of it alone."""
    return [value] if isinstance(value, str | int) else list(value)


def decimal(cell: str | int | float, where: str, kind: str = "number") -> float:
    """A finite number, which a spreadsheet may have saved as `0,5`; another cell is a [`DataError`], which says the kind."""
    try:
        value = float(str(cell).strip().replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {cell!r} is no {kind}.")
    return value


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: it is empty, or NaN, which tables have in place of it."""
    return cell is None or cell == "" or cell != cell


def captions_of(cell: Any, where: str) -> list:
    """The captions in a cell: one, or a list, which CSV holds as JSON. An empty cell has none."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: {cell[:80]!r} is no JSON list of captions ({error.msg}).") from None
    if cell is None or cell == "":
        return []
    return list(cell) if isinstance(cell, list | tuple) else [cell]


def _passed_on(record: Mapping, where: str) -> dict:
    """The columns of a record that become keys of the row, `duration` as a number."""
    kept = {key: record[key] for key in PASSED_ON if not is_missing(record.get(key))}
    if "duration" in kept:
        kept["duration"] = decimal(kept["duration"], f"{where}, duration", "number of seconds")
    return kept
