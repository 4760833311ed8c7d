"""VGGSound: labelled ten-second clips of YouTube videos, in the full table or in the list of the test clips."""

from collections.abc import Iterator
from pathlib import Path

from supclap.errors import DataError

from ..labels import LABEL_TEMPLATE
from .common import Source, class_row, csv_rows, whole_number, youtube_id, youtube_names


SPLITS = {"train": "train", "test": "test"}
LICENCE = "labels CC BY 4.0; audio under the terms of its YouTube video"


def load(source: Source, template: str = LABEL_TEMPLATE) -> Iterator[dict]:
    """Rows of a split. Its table has no header: `vggsound.csv` (id, start, label, split) or `train.csv`, `test.csv`
    (file, label)."""
    names = [f"{place}{name}.csv" for place in ("", "data/") for name in ("vggsound", source.split)]
    path, index = source.table("table of VGGSound", *names), source.audio()
    for video, start, label in _clips(path, source.split):
        names = youtube_names(video, start)
        made = class_row("vggsound", f"{video}_{start:06d}", names, index, label, template, f"youtube:{video}")
        yield made | {"file": f"{video}_{start:06d}.wav", "licence": LICENCE}


def _clips(path: Path, split: str) -> Iterator[tuple[str, int, str]]:
    try:
        records = list(csv_rows(path, names=["id", "start", "label", "split"]))
    except DataError as four:
        try:
            records = list(csv_rows(path, names=["file", "label"]))
        except DataError:
            raise four from None
    for where, record in records:
        if "split" in record:
            if record["split"].strip() == split:
                yield youtube_id(record["id"], where), whole_number(record["start"], where), record["label"].strip()
            continue
        # a file is its id, an underscore, and the start in six digits; ids hold underscores too
        video, _, start = Path(record["file"].strip()).stem.rpartition("_")
        yield youtube_id(video, where), whole_number(start, where), record["label"].strip()
