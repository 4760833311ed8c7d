"""WavCaps: captions written by a language model for clips of AudioSet, BBC Sound Effects, FreeSound and SoundBible."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..files import AudioIndex, DataError, first_existing
from .common import freesound, json_rows, youtube_id


SPLITS = {"train": "train"}
ALIASES: dict[str, str] = {}
LICENCE = "WavCaps: academic use only; audio under the terms of its source"
# source -> names of its folder and its file
SOURCES = {
    "audioset": (("AudioSet_SL", "AudioSet"), ("as_final.json",)),
    "bbc": (("BBC_Sound_Effects",), ("bbc_final.json",)),
    "freesound": (("FreeSound",), ("fsd_final.json", "fsd_final_2s.json")),
    "soundbible": (("SoundBible",), ("sb_final.json", "json_files_SoundBible_sb_final.json")),
}


def load(
    folder: Path, split: str, sources: Sequence[str] = tuple(SOURCES), audio_dir: str | None = None
) -> Iterator[dict]:
    """Rows of the sources.

    Args:
        folder: The folder of the corpus, with the JSON files of the sources (in `json_files/` or by themselves).
        split: `train`; WavCaps has no other.
        sources: Some of `audioset`, `bbc`, `freesound`, `soundbible`.
        audio_dir: Folder of the audio, relative to the folder; where it is by its source's name when omitted.
    """
    for source in sources:
        if source not in SOURCES:
            raise DataError(f"WavCaps has the sources {', '.join(SOURCES)}, not {source!r}.")
        folders, files = SOURCES[source]
        names = [f"{place}{file}" for file in files for place in _places(folders)]
        path = first_existing(folder, names, f"WavCaps file of {source}")
        places = [f"{base}{name}" for name in folders for base in ("waveforms/", "audio/", "")]
        own = [place for place in places if (folder / place).is_dir() and folder / place != path.parent]
        index = AudioIndex(folder / (audio_dir or (own[0] if own else "")))
        rows = json_rows(path, index, f"wavcaps/{source}", lambda record, s=source: recording(s, record["id"]))
        yield from (row | {"licence": LICENCE} for row in rows)


def _places(folders: Sequence[str]) -> list[str]:
    return [f"{base}{name}/" for base in ("json_files/", "") for name in folders] + [""]


def recording(source: str, clip: str) -> str | None:
    """What a clip of a source was cut from, spelt as in all corpora."""
    if source == "audioset":
        return f"youtube:{youtube_id(clip.removesuffix('.wav')[-11:], f'WavCaps, id {clip!r}')}"
    return freesound(clip) if source == "freesound" else f"{source}:{clip}"
