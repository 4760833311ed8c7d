"""VGGSound: labelled ten-second clips of YouTube videos, in the full table or in the list of the test clips."""

from collections.abc import Iterator
from pathlib import Path

from supclap.errors import DataError

from ..audio_index import AudioIndex
from ..labels import LABEL_TEMPLATE
from ..text_files import annotation_file, read_csv
from .common import class_row, whole_number, youtube_id, youtube_names


SPLITS = {"train": "train", "test": "test"}
ALIASES: dict[str, str] = {}
LICENCE = "labels CC BY 4.0; audio under the terms of its YouTube video"


def load(
    folder: Path,
    split: str,
    annotations: str | None = None,
    audio_dir: str | None = None,
    template: str = LABEL_TEMPLATE,
) -> Iterator[dict]:
    """Rows of a split; clips of a class are no negatives of each other.

    Args:
        folder: The folder of the corpus.
        split: `train` or `test`.
        annotations: The table, relative to the folder, without a header: `vggsound.csv` (id, start, label, split) or
            `train.csv`, `test.csv` (file, label); looked for when omitted.
        audio_dir: Folder of the audio, relative to the folder; all of it when omitted.
        template: Caption of a label.
    """
    names = ["vggsound.csv", f"{split}.csv", "data/vggsound.csv", f"data/{split}.csv"]
    path = annotation_file(folder, annotations, names, "table of VGGSound")
    index = AudioIndex(folder / (audio_dir or ""))
    for video, start, label in _clips(path, split):
        names = youtube_names(video, start)
        made = class_row("vggsound", f"{video}_{start:06d}", names, index, label, template, f"youtube:{video}")
        yield made | {"file": f"{video}_{start:06d}.wav", "licence": LICENCE}


def _clips(path: Path, split: str) -> Iterator[tuple[str, int, str]]:
    try:
        records = read_csv(path, names=["id", "start", "label", "split"])
    except DataError as four:
        try:
            records = read_csv(path, names=["file", "label"])
        except DataError:
            raise four from None
    for line, record in enumerate(records, start=1):
        where = f"{path}, row {line}"
        if "split" in record:
            if record["split"].strip() == split:
                yield youtube_id(record["id"], where), whole_number(record["start"], where), record["label"].strip()
            continue
        # a file is its id, an underscore, and the start in six digits; ids hold underscores too
        video, _, start = Path(record["file"].strip()).stem.rpartition("_")
        yield youtube_id(video, where), whole_number(start, where), record["label"].strip()
