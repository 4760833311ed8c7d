"""UrbanSound8K: labelled clips in ten folds; a split is a fold."""

from collections.abc import Iterator
from pathlib import Path

from ..audio_index import AudioIndex
from ..labels import LABEL_TEMPLATE
from ..text_files import annotation_file, read_csv
from .common import class_row, freesound, whole_number


SPLITS = {str(fold): str(fold) for fold in range(1, 11)}
ALIASES: dict[str, str] = {}
LICENCE = "CC BY-NC 3.0"


def load(
    folder: Path,
    split: str,
    annotations: str | None = None,
    audio_dir: str | None = None,
    template: str = LABEL_TEMPLATE,
) -> Iterator[dict]:
    """Rows of a fold; clips of a class are no negatives of each other.

    Args:
        folder: The folder of the corpus.
        split: The fold, `1` to `10`.
        annotations: The table, relative to the folder; `metadata/UrbanSound8K.csv` when omitted.
        audio_dir: Folder of the audio, relative to the folder; all of it when omitted.
        template: Caption of a label.
    """
    names = ["metadata/UrbanSound8K.csv", "UrbanSound8K.csv"]
    path = annotation_file(folder, annotations, names, "table of UrbanSound8K")
    index = AudioIndex(folder / (audio_dir or ""))
    columns = {"slice_file_name": (), "fsID": (), "fold": (), "class": ("class_name",)}
    for line, row in enumerate(read_csv(path, columns), start=1):
        if whole_number(row["fold"], f"{path}, row {line}") != int(split):
            continue
        label = row["class"].strip()
        file = row["slice_file_name"]
        made = class_row("urbansound8k", file, [file], index, label, template, freesound(row["fsID"]))
        yield made | {"fold": int(split), "licence": LICENCE}
