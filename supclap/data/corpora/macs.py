"""MACS: captions by several annotators of the TAU Urban Acoustic Scenes 2019 development clips, in one YAML file."""

from collections.abc import Iterator

from supclap.errors import DataError

from ..text_files import read_text
from .common import Source


SPLITS = {"train": "train"}
LICENCE = "captions and audio: Tampere University, non-commercial"


def load(source: Source) -> Iterator[dict]:
    """Rows of all clips; MACS has no official split but `train`."""
    import yaml

    path = source.table("annotations of MACS", "MACS.yaml")
    try:
        # the C loader where it is built: the pure one takes minutes for the 4 thousand clips
        content = yaml.load(read_text(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise DataError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("files"), list):
        raise DataError(f"{path}: expected `files:` with one entry a clip.")
    index = source.audio()
    for number, entry in enumerate(content["files"]):
        if not isinstance(entry, dict) or not entry.get("filename") or not entry.get("annotations"):
            raise DataError(f"{path}, entry {number}: needs filename and annotations, got {entry!r}.")
        annotations = entry["annotations"]
        if not isinstance(annotations, list) or not all(isinstance(one, dict) for one in annotations):
            raise DataError(
                f"{path}, entry {number}: annotations must be a list with a `sentence` each, got {annotations!r}."
            )
        name = str(entry["filename"])
        yield {
            "id": f"macs/{name}",
            "file": name,
            "audio": index.find(name),
            "captions": [annotation.get("sentence") for annotation in annotations],
            "language": "en",
            # scene-city-location-segment-device.wav: clips of one location are one recording session
            "recording": "tau:" + "-".join(name.split("-")[:3]),
            "source": "TAU Urban Acoustic Scenes 2019",
            "licence": LICENCE,
        }
