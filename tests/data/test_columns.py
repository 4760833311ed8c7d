"""The columns of tables and of data sets mean the same."""

import datasets
import pytest

from supclap.data.columns import ColumnMapping
from supclap.data.corpora.hub import DatasetRows
from supclap.data.tables import table_rows
from supclap.errors import DataError


RECORDS = [
    {"id": "x", "sound": "1.wav", "text": "rain  falls", "kind": "rain", "language": "en", "duration": "3,5"},
    {"id": "y", "sound": "2.wav", "text": "", "kind": "big_cat", "language": None, "duration": "2"},
    {
        "id": "x",
        "sound": "1.wav",
        "text": '["es regnet", "Regen"]',
        "kind": "rain",
        "language": "de",
        "duration": "3,5",
    },
    {"id": "z", "sound": "3.wav", "text": "wind", "kind": "-1", "language": None, "duration": ""},
]
COLUMNS = {"audio_column": "sound", "caption_columns": "text", "label_column": "kind", "id_column": "id"}
EXPECTED = [
    {
        "id": "x",
        "captions": ["rain falls", "es regnet", "Regen"],
        "language": ["en", "de", "de"],
        "label": "rain",
        "duration": 3.5,
    },
    {
        "id": "y",
        "captions": ["a sound of big cat"],
        "language": "fr",
        "label": "big_cat",
        "group": "big_cat",
        "duration": 2,
    },
    {"id": "z", "captions": ["wind"], "language": "fr"},
]


def without_place(rows):
    return [{key: value for key, value in row.items() if key not in ("audio", "file", "source")} for row in rows]


def test_records_of_a_table_become_rows(tmp_path):
    columns = ColumnMapping(**COLUMNS, template="a sound of {}", language="fr")
    assert without_place(table_rows(RECORDS, tmp_path / "t.jsonl", columns)) == EXPECTED


def test_the_same_records_as_a_data_set_become_the_same_rows():
    data = datasets.Dataset.from_list(RECORDS)
    rows = DatasetRows(data, template="a sound of {}", language="fr", **COLUMNS)
    assert without_place(rows) == EXPECTED


@pytest.mark.parametrize("column", ["audio_column", "caption_columns", "label_column", "id_column"])
def test_a_column_that_is_not_there_is_named(column):
    mapping = ColumnMapping(**(COLUMNS | {column: "nope"}))
    with pytest.raises(DataError, match="t.csv has no column 'nope'; its columns are .*'kind'"):
        mapping.found_in(list(RECORDS[0]), "t.csv")
