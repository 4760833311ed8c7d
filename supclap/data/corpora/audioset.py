"""AudioSet: segments of YouTube videos with labels, and captions of some of them where a file has them."""

from collections.abc import Iterator
from pathlib import Path

from supclap.errors import DataError

from ..columns import decimal
from ..labels import LABEL_TEMPLATE, label_caption, split_labels
from ..text_files import annotation_file, read_csv
from .common import Source, captions_of_record, csv_rows, read_caption_json, record_clip, youtube_id, youtube_names


SPLITS = {
    "train": "balanced_train_segments.csv",
    "unbalanced_train": "unbalanced_train_segments.csv",
    "strong_train": "audioset_train_strong.tsv",
    "strong_test": "audioset_eval_strong.tsv",
    "test": "eval_segments.csv",
}
ALIASES = {"balanced_train": "train", "unbalanced": "unbalanced_train", "eval": "test", "evaluation": "test"}
LICENCE = "labels CC BY 4.0; audio under the terms of its YouTube video"


def load(source: Source, captions: str | None = None, template: str = LABEL_TEMPLATE) -> Iterator[dict]:
    """Rows of a split, with `labels` in the words of the class list.

    Args:
        source: `train` (balanced), `unbalanced_train`, `test`, or `strong_train`, `strong_test`, whose labels come in
            the order of their events.
        captions: File of captions in the JSON form of WavCaps, relative to the folder; the split is then those clips.
        template: Caption of the labels where there is no file of captions.
    """
    names = label_names(source.folder)
    path, index = source.table(f"segments of {source.split}", SPLITS[source.split]), source.audio()
    written = _captions(source.folder / captions) if captions else None
    for where, video, start, end, mids in (_strong if source.split.startswith("strong") else _segments)(path):
        unknown = [mid for mid in mids if mid not in names]
        if unknown:
            raise DataError(f"{where}: the class list has no {', '.join(unknown)}.")
        labels = [names[mid] for mid in mids]
        if written is not None and video not in written:
            continue
        yield {
            "id": f"audioset/{video}_{start}",
            "file": f"Y{video}.wav",
            "audio": index.find(*youtube_names(video, start, end)),
            "captions": written[video] if written else label_caption(template, labels),
            "language": "en",
            "labels": labels,
            "recording": f"youtube:{video}",
            "source": f"youtube:{video}",
            "licence": LICENCE,
        }


def label_names(folder: Path) -> dict[str, str]:
    """Display name of each machine id, from the lists of classes in the folder."""
    names = {}
    if (folder / "mid_to_display_name.tsv").is_file():
        for row in read_csv(folder / "mid_to_display_name.tsv", names=["mid", "display_name"]):
            names[row["mid"].strip()] = row["display_name"].strip()
    if (folder / "class_labels_indices.csv").is_file() or not names:
        path = annotation_file(folder, None, ["class_labels_indices.csv"], "class list of AudioSet")
        for row in read_csv(path, {"mid": (), "display_name": ()}):
            names[row["mid"].strip()] = row["display_name"].strip()
    return names


def _segments(path: Path) -> Iterator[tuple[str, str, int, int, list[str]]]:
    names = ["YTID", "start_seconds", "end_seconds", "positive_labels"]
    for number, (where, row) in enumerate(csv_rows(path, names=names, spaced=True)):
        if number == 0 and row["YTID"].strip().casefold() == "ytid":
            continue  # a header, which the official files have as a comment
        start, end = (int(decimal(row[key], where, "time")) for key in ("start_seconds", "end_seconds"))
        mids = split_labels(row["positive_labels"])
        yield where, youtube_id(row["YTID"], where), start, end, mids


def _strong(path: Path) -> Iterator[tuple[str, str, int, int, list[str]]]:
    """Segments of the strong labels: `segment_id` is the video and the start in milliseconds."""
    events: dict[str, list[tuple[float, str]]] = {}
    for where, row in csv_rows(path, {"segment_id": (), "start_time_seconds": (), "label": ()}):
        start = decimal(row["start_time_seconds"], where, "time")
        events.setdefault(row["segment_id"].strip(), []).append((start, row["label"]))
    for segment, found in events.items():
        video, _, milliseconds = segment.rpartition("_")
        where = f"{path}, segment {segment!r}"
        start = int(decimal(milliseconds, where, "time")) // 1000
        mids = list(dict.fromkeys(mid.strip() for _, mid in sorted(found)))
        yield where, youtube_id(video, where), start, start + 10, mids


def _captions(path: Path) -> dict[str, list[str]]:
    return {
        record_clip(record).removesuffix(".wav")[-11:]: captions_of_record(record)
        for record in read_caption_json(path)
    }
