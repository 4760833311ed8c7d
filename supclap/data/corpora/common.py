"""What the corpora share: ids of YouTube and Freesound, numbered captions, and the JSON form of WavCaps and ML-CLAP."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from supclap.errors import DataError

from ..audio_index import AudioIndex
from ..columns import decimal
from ..labels import label_caption
from ..text_files import annotation_file, read_csv, read_json


YOUTUBE_ID = re.compile(r"[A-Za-z0-9_-]{11}")
NUMBER = re.compile(r"(\d+)([.,]0+)?")  # a spreadsheet may have saved it with decimals


@dataclass(frozen=True)
class Source:
    """A split of a corpus on the disk, with the options that all corpora of official files share.

    Args:
        folder: The folder of the corpus.
        split: The split, by the name that the module of the corpus has for it.
        annotations: The file of annotations, relative to the folder; looked for by its published names when omitted.
        audio_dir: Folder of the audio, relative to the folder; the split's own where it has one, else all of the folder,
            when omitted.
    """

    folder: Path
    split: str
    annotations: str | None = None
    audio_dir: str | None = None

    def table(self, what: str, *names: str) -> Path:
        """The file of annotations, by one of its published names; see [`annotation_file`]."""
        return annotation_file(self.folder, self.annotations, names, what)

    def audio(self, *own: str) -> AudioIndex:
        """The audio files, from the first of the folders of the split that is there."""
        there = (place for place in own if (self.folder / place).is_dir())
        return AudioIndex(self.folder / (self.audio_dir or next(there, "")))


def csv_rows(path: Path, *args, **options) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV file, each with what messages call it; the arguments are those of [`read_csv`]."""
    for line, row in enumerate(read_csv(path, *args, **options), start=1):
        yield f"{path}, row {line}", row


def youtube_id(text: str, where: str) -> str:
    """The id, or a [`DataError`] where a spreadsheet has made something else of it (`-abc…` becomes `#NAME?`)."""
    text = text.strip()
    if not YOUTUBE_ID.fullmatch(text):
        raise DataError(
            f"{where}: {text!r} is no YouTube id (11 letters, digits, '-' or '_'). A spreadsheet may have rewritten "
            "it; take the file as it was published."
        )
    return text


def whole_number(text: str | int | float, where: str) -> int:
    """An integer that a spreadsheet may have saved as `30.0`, `30,0` or `0030`."""
    value = decimal(text, where, "whole number")
    if not value.is_integer():
        raise DataError(f"{where}: {text!r} is no whole number.")
    return int(value)


def freesound(text: str | int) -> str | None:
    """`freesound:NUMBER`, the recording of a Freesound number; `None` where it is none ("Not found")."""
    number = NUMBER.fullmatch(str(text).strip())
    return f"freesound:{int(number[1])}" if number else None


def youtube_names(video: str, start: int, end: int | None = None) -> list[str]:
    """The names that download tools give the clip of a video, without a suffix."""
    end = start + 10 if end is None else end
    parts = [f"{start:06d}", f"{start}", f"{start * 1000}", f"{start}_{end}", f"{start * 1000}_{end * 1000}"]
    own = [f"{video}_{part}" for part in [*parts, f"{start}.000", f"{start:.1f}"]] + [video]
    return own + [f"Y{name}" for name in own]


def class_row(
    corpus: str, file: str, names: Sequence[str], index: AudioIndex, label: str, template: str, recording: str | None
) -> dict:
    """The row of a clip with one label, but for its licence; clips of a class are no negatives of each other."""
    return {
        "id": f"{corpus}/{file.strip()}",
        "file": file,
        "audio": index.find(*names),
        "captions": label_caption(template, [label]),
        "language": "en",
        "label": label,
        "group": f"{corpus}/{label}",
        "recording": recording,
        "source": recording or corpus,
    }


def numbered(record: dict, prefix: str = "caption_") -> list[tuple[str, str]]:
    """`(number, value)` of `caption_1`, `caption_2`, … in the order of their numbers."""
    keys = [key for key in record if key.startswith(prefix) and key.removeprefix(prefix).isdigit()]
    numbers = sorted((key.removeprefix(prefix) for key in keys), key=int)
    return [(number, record[prefix + number]) for number in numbers]


def read_caption_json(path: Path) -> list[dict]:
    """Records of the JSON form of WavCaps and ML-CLAP: `{"data": [{"id", "caption" or "caption_1", …}]}`.

    Raises:
        DataError: Another form, a record without an id or a caption, or another number of captions than the file says.
    """
    content = read_json(path)
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, list) or not data:
        raise DataError(f"{path}: expected {{'data': [...]}} with one record a clip.")
    number = content.get("num_captions_per_audio")
    for index, record in enumerate(data):
        where = f"{path}, record {index}"
        if not isinstance(record, dict) or not any(record.get(key) for key in ("id", "wav")):
            raise DataError(f"{where} has no id.")
        captions = captions_of_record(record)
        if not captions or (isinstance(number, int) and number != len(captions)):
            raise DataError(f"{where} (id {record.get('id')!r}) has {len(captions)} captions, should have {number}.")
    return data


def captions_of_record(record: dict) -> list:
    """All captions of a record, in order."""
    captions = [value for _, value in numbered(record)]
    if not captions and "caption" in record:
        captions = record["caption"] if isinstance(record["caption"], list) else [record["caption"]]
    return captions


def record_clip(record: dict) -> str:
    """What a record calls its clip: its `id`, else the name of its `wav`."""
    return str(record.get("id") or PurePosixPath(str(record["wav"])).stem)


def record_names(record: dict) -> list[str]:
    """Names of the audio of a record. `audio` holds a path on the machine of whoever made the file: only its name."""
    names = [PurePosixPath(str(record[key])).name for key in ("wav", "id", "audio") if record.get(key)]
    return [name for name in dict.fromkeys(names) if name != "wav_path"]


def json_rows(
    path: Path,
    index: AudioIndex,
    corpus: str,
    recording: Callable[[dict], str | None],
    language: str = "en",
    licence: str | None = None,
) -> Iterator[dict]:
    """Rows of a file in the JSON form; `recording` tells what the clip of a record was cut from."""
    for record in read_caption_json(path):
        names = record_names(record)
        row = {
            "id": f"{corpus}/{names[0]}",
            "file": names[0],
            "audio": index.find(*names),
            "captions": captions_of_record(record),
            # ML-CLAP tells the language of each caption
            "language": [value for _, value in numbered(record, "source_lang_")] or language,
            "recording": recording(record),
            "source": record.get("href") or record.get("download_link") or corpus,
            "author": record.get("author"),
            "licence": licence,
        }
        if isinstance(record.get("duration"), int | float):
            row["duration"] = float(record["duration"])
        yield row
