"""FSD50K: Freesound clips with several labels each."""

from collections.abc import Iterator
from pathlib import Path

from supclap.errors import DataError

from ..audio_index import AudioIndex
from ..labels import LABEL_TEMPLATE, label_caption, split_labels
from ..text_files import annotation_file, read_csv, read_json
from .common import freesound


SPLITS = {"train": "dev", "validation": "dev", "test": "eval"}
ALIASES = {"val": "validation", "eval": "test", "dev": "train"}
LICENCE = "CC BY 4.0 as a set; Creative Commons by clip"


def load(
    folder: Path,
    split: str,
    annotations: str | None = None,
    audio_dir: str | None = None,
    template: str = LABEL_TEMPLATE,
) -> Iterator[dict]:
    """Rows of a split, with `labels` as the vocabulary spells them.

    Args:
        folder: The folder of the corpus.
        split: `train` and `validation` (both of the development set), or `test` (the evaluation set).
        annotations: The table, relative to the folder; `FSD50K.ground_truth/dev.csv` or `eval.csv` when omitted.
        audio_dir: Folder of the audio, relative to the folder; `FSD50K.dev_audio` or `FSD50K.eval_audio`, else all of
            it, when omitted.
        template: Caption of the labels.
    """
    name = SPLITS[split]
    names = [f"FSD50K.ground_truth/{name}.csv", f"{name}.csv"]
    path = annotation_file(folder, annotations, names, f"table of FSD50K {split}")
    own = f"FSD50K.{name}_audio"
    index = AudioIndex(folder / (audio_dir or (own if (folder / own).is_dir() else "")))
    details = folder / f"FSD50K.metadata/{name}_clips_info_FSD50K.json"
    details = read_json(details) if details.is_file() else {}
    columns = {"fname": (), "labels": ()} | ({"split": ()} if name == "dev" else {})
    for line, row in enumerate(read_csv(path, columns), start=1):
        part = {"train": "train", "val": "validation"}.get(row.get("split", "").strip(), "test")
        if name == "dev" and part == "test":
            raise DataError(f"{path}, row {line}: the split is {row['split']!r}, should be train or val.")
        if part != split:
            continue
        clip = row["fname"].strip().removesuffix(".0")
        labels = split_labels(row["labels"])
        detail = details.get(clip, {})
        yield {
            "id": f"fsd50k/{clip}",
            "file": f"{clip}.wav",
            "audio": index.find(clip),
            "captions": label_caption(template, labels),
            "language": "en",
            "labels": labels,
            "recording": freesound(clip),
            "source": freesound(clip) or "fsd50k",
            "author": detail.get("uploader"),
            "licence": detail.get("license") or LICENCE,
        }
