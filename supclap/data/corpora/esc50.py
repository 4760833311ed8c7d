"""ESC-50 and ESC-10: labelled clips in five folds; a split is a fold."""

from collections.abc import Iterator
from pathlib import Path

from ..audio_index import AudioIndex
from ..labels import LABEL_TEMPLATE
from ..text_files import annotation_file, read_csv
from .common import class_row, freesound, whole_number


SPLITS = {str(fold): str(fold) for fold in range(1, 6)}
ALIASES: dict[str, str] = {}
LICENCE = {True: "CC BY 3.0", False: "CC BY-NC 3.0"}


def load(
    folder: Path,
    split: str,
    annotations: str | None = None,
    audio_dir: str | None = None,
    template: str = LABEL_TEMPLATE,
    esc10: bool = False,
) -> Iterator[dict]:
    """Rows of a fold; clips of a class are no negatives of each other.

    Args:
        folder: The folder of the corpus.
        split: The fold, `1` to `5`.
        annotations: The table, relative to the folder; `meta/esc50.csv` when omitted.
        audio_dir: Folder of the audio, relative to the folder; all of it when omitted.
        template: Caption of a label.
        esc10: Whether to take the ten classes of ESC-10 only.
    """
    names = ["meta/esc50.csv", "esc50.csv"]
    path = annotation_file(folder, annotations, names, "table of ESC-50")
    index = AudioIndex(folder / (audio_dir or ""))
    columns = {"filename": ("file_name",), "fold": (), "category": ("label",), "esc10": (), "src_file": ()}
    for line, row in enumerate(read_csv(path, columns), start=1):
        # a German or French spreadsheet writes its own word for True
        in_esc10 = row["esc10"].strip().casefold() in ("true", "wahr", "vrai", "verdadero", "vero", "1")
        if whole_number(row["fold"], f"{path}, row {line}") != int(split) or (esc10 and not in_esc10):
            continue
        label = row["category"].strip()
        file = row["filename"]
        made = class_row("esc50", file, [file], index, label, template, freesound(row["src_file"]))
        yield made | {"fold": int(split), "licence": LICENCE[in_esc10]}
