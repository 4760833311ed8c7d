"""WavCaps: captions written by a language model for clips of AudioSet, BBC Sound Effects, FreeSound and SoundBible."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from supclap.errors import DataError

from ..audio_index import AudioIndex
from ..columns import one_or_more
from ..text_files import annotation_file
from .common import freesound, json_rows, record_clip, youtube_id


SPLITS = {"train": "train"}
LICENCE = "WavCaps: academic use only; audio under the terms of its source"
# source -> names of its folder and its file
SOURCES = {
    "audioset": (("AudioSet_SL", "AudioSet"), ("as_final.json",)),
    "bbc": (("BBC_Sound_Effects",), ("bbc_final.json",)),
    "freesound": (("FreeSound",), ("fsd_final.json", "fsd_final_2s.json")),
    "soundbible": (("SoundBible",), ("sb_final.json", "json_files_SoundBible_sb_final.json")),
}


def load(
    folder: Path, split: str, sources: str | Sequence[str] = tuple(SOURCES), audio_dir: str | None = None
) -> Iterator[dict]:
    """Rows of the sources.

    Args:
        folder: The folder of the corpus, with the JSON files of the sources (in `json_files/` or by themselves).
        split: `train`; WavCaps has no other.
        sources: Some of `audioset`, `bbc`, `freesound`, `soundbible`.
        audio_dir: Folder of the audio, relative to the folder; all of it when omitted. In it, the audio of a source
            lies in a folder of its name. That may be missing where there is one source only.
    """
    root = folder / (audio_dir or "")
    sources = one_or_more(sources)
    for source in sources:
        if source not in SOURCES:
            raise DataError(f"WavCaps has the sources {', '.join(SOURCES)}, not {source!r}.")
        folders, files = SOURCES[source]
        names = [f"{place}{file}" for file in files for place in _places(folders)]
        path = annotation_file(folder, None, names, f"WavCaps file of {source}")
        index = _audio_of(root, source, alone=len(sources) == 1)
        rows = json_rows(path, index, f"wavcaps/{source}", lambda record, s=source: recording(s, record_clip(record)))
        yield from (row | {"licence": LICENCE} for row in rows)


def _places(folders: Sequence[str]) -> list[str]:
    """Where the JSON file of a source may lie."""
    return [f"{base}{name}/" for base in ("json_files/", "") for name in folders] + [""]


def _audio_of(root: Path, source: str, alone: bool) -> AudioIndex:
    """The audio of a source. The names of two sources are bare numbers, so one is never looked for in another."""
    own = _folders_of(root, source)
    for place in own:
        if len(index := AudioIndex(place)):
            return index
    if alone and not any(_folders_of(root, other) for other in SOURCES if other != source):
        return AudioIndex(root)
    return AudioIndex(root / SOURCES[source][0][0])  # is not there, or empty: all clips count as missing


def _folders_of(root: Path, source: str) -> list[Path]:
    """The folders by the name of a source at any depth, as the archives are unpacked; the uppermost first."""
    names = {name + ending for name in SOURCES[source][0] for ending in ("", "_flac")}
    found = [Path(place, name) for place, folders, _ in os.walk(root) for name in folders if name in names]
    return sorted(found, key=lambda path: (len(path.parts), path))


def recording(source: str, clip: str) -> str | None:
    """What a clip of a source was cut from, spelt as in all corpora."""
    if source == "audioset":
        return f"youtube:{youtube_id(clip.removesuffix('.wav')[-11:], f'WavCaps, id {clip!r}')}"
    return freesound(clip) if source == "freesound" else f"{source}:{clip}"
