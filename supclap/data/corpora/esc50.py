"""ESC-50 and ESC-10: labelled clips in five folds; a split is a fold."""

from collections.abc import Iterator

from ..labels import LABEL_TEMPLATE
from .common import Source, class_row, csv_rows, freesound, whole_number


SPLITS = {str(fold): str(fold) for fold in range(1, 6)}
LICENCE = {True: "CC BY 3.0", False: "CC BY-NC 3.0"}


def load(source: Source, template: str = LABEL_TEMPLATE, esc10: bool = False) -> Iterator[dict]:
    """Rows of a fold, `1` to `5`; with `esc10` of the ten classes of ESC-10 only."""
    path, index = source.table("table of ESC-50", "meta/esc50.csv", "esc50.csv"), source.audio()
    columns = {"filename": ("file_name",), "fold": (), "category": ("label",), "esc10": (), "src_file": ()}
    for where, row in csv_rows(path, columns):
        # a German or French spreadsheet writes its own word for True
        in_esc10 = row["esc10"].strip().casefold() in ("true", "wahr", "vrai", "verdadero", "vero", "1")
        if whole_number(row["fold"], where) != int(source.split) or (esc10 and not in_esc10):
            continue
        label = row["category"].strip()
        file = row["filename"]
        made = class_row("esc50", file, [file], index, label, template, freesound(row["src_file"]))
        yield made | {"fold": int(source.split), "licence": LICENCE[in_esc10]}
