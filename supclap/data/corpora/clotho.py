"""Clotho v1 and v2.1, its DCASE 2023 form (one row a caption), and the JSON form of WavCaps and ML-CLAP.

A file name may occur in two splits, so the audio of a split is looked for in its own folder where there is one. The
metadata file beside the captions tells the Freesound recording and the licence of a clip.
"""

from collections.abc import Iterator
from pathlib import Path

from ..rows import join_captions
from ..text_files import read_csv
from .common import Source, freesound, json_rows, numbered


SPLITS = {"train": "development", "validation": "validation", "test": "evaluation"}
ALIASES = {"development": "train", "dev": "train", "val": "validation", "evaluation": "test", "eval": "test"}
LICENCE = "captions: Tampere University, non-commercial; audio: Creative Commons by clip"
_SHORT = {"train": "train", "validation": "val", "test": "test"}


def load(source: Source) -> Iterator[dict]:
    """Rows of a split."""
    folder, split = source.folder, source.split
    long, short = SPLITS[split], _SHORT[split]
    names = [f"clotho_captions_{long}.csv", f"csv_files/{short}.csv", f"{short}.csv", f"{long}_captions.csv"]
    names += [f"retrieval_json_files/{short}.json", f"{short}.json"]
    path = source.table(f"captions of Clotho {split}", *names)
    index = source.audio(long, f"clotho_audio_{long}", f"waveforms/{short}", short)
    if path.suffix == ".json":
        for row in json_rows(path, index, f"clotho/{split}", _recording, "en", LICENCE):
            yield row | {"source": row["recording"] or "clotho"}
        return
    details = _metadata(folder / f"clotho_metadata_{long}.csv")

    def row_of(record: dict) -> dict:
        name = record["file_name"]
        captions = [value for _, value in numbered(record)]
        detail = details.get(name.strip(), {})
        recording = freesound(detail.get("sound_id", ""))
        return {
            "id": f"clotho/{split}/{name.strip()}",
            "file": name,
            "audio": index.find(name),
            "captions": captions or [record.get("raw_text") or record.get("text", "")],
            "language": "en",
            "recording": recording,
            "source": recording or "clotho",
            "author": detail.get("manufacturer"),
            "licence": detail.get("license") or LICENCE,
        }

    yield from join_captions(map(row_of, read_csv(path, {"file_name": ("fname", "filename")})))


def _recording(record: dict) -> str | None:
    return freesound(record.get("id", ""))


def _metadata(path: Path) -> dict[str, dict]:
    """What the metadata file says of each clip; it is published in Latin-1."""
    if not path.is_file():
        return {}
    return {row["file_name"].strip(): row for row in read_csv(path, {"file_name": ()}, fallback="latin-1")}
