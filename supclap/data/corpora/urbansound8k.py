"""UrbanSound8K: labelled clips in ten folds; a split is a fold."""

from collections.abc import Iterator

from ..labels import LABEL_TEMPLATE
from .common import Source, class_row, csv_rows, freesound, whole_number


SPLITS = {str(fold): str(fold) for fold in range(1, 11)}
LICENCE = "CC BY-NC 3.0"


def load(source: Source, template: str = LABEL_TEMPLATE) -> Iterator[dict]:
    """Rows of a fold, `1` to `10`."""
    path = source.table("table of UrbanSound8K", "metadata/UrbanSound8K.csv", "UrbanSound8K.csv")
    index = source.audio()
    columns = {"slice_file_name": (), "fsID": (), "fold": (), "class": ("class_name",)}
    for where, row in csv_rows(path, columns):
        if whole_number(row["fold"], where) != int(source.split):
            continue
        label = row["class"].strip()
        file = row["slice_file_name"]
        made = class_row("urbansound8k", file, [file], index, label, template, freesound(row["fsID"]))
        yield made | {"fold": int(source.split), "licence": LICENCE}
