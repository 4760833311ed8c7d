"""FSD50K: Freesound clips with several labels each."""

from collections.abc import Iterator

from supclap.errors import DataError

from ..labels import LABEL_TEMPLATE, label_caption, split_labels
from ..text_files import read_json
from .common import Source, csv_rows, freesound


SPLITS = {"train": "dev", "validation": "dev", "test": "eval"}
ALIASES = {"val": "validation", "eval": "test", "dev": "train"}
LICENCE = "CC BY 4.0 as a set; Creative Commons by clip"


def load(source: Source, template: str = LABEL_TEMPLATE) -> Iterator[dict]:
    """Rows of `train` or `validation` (both of the development set) or `test`, with `labels` as the vocabulary spells
    them."""
    name = SPLITS[source.split]
    path = source.table(f"table of FSD50K {source.split}", f"FSD50K.ground_truth/{name}.csv", f"{name}.csv")
    index = source.audio(f"FSD50K.{name}_audio")
    details = source.folder / f"FSD50K.metadata/{name}_clips_info_FSD50K.json"
    details = read_json(details) if details.is_file() else {}
    columns = {"fname": (), "labels": ()} | ({"split": ()} if name == "dev" else {})
    for where, row in csv_rows(path, columns):
        part = {"train": "train", "val": "validation"}.get(row.get("split", "").strip(), "test")
        if name == "dev" and part == "test":
            raise DataError(f"{where}: the split is {row['split']!r}, should be train or val.")
        if part != source.split:
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
