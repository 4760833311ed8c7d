"""The audio files under a folder, found by the names that annotations give them."""

import html
import os
import unicodedata
from pathlib import Path

from supclap.errors import DataError


# Where one clip lies there in several formats, the first of these is taken.
AUDIO_SUFFIXES = (".flac", ".wav", ".aif", ".aiff", ".ogg", ".oga", ".opus", ".mp3", ".m4a", ".mp4", ".aac", ".webm")


class AudioIndex:
    """The audio files under a folder, found by name in one walk.

    Names are matched exactly first; then without the suffix, because corpora get converted; then without regard to
    case, surrounding space, HTML entities and Unicode form, which unpacking and file systems change.

    Args:
        folder: Where to look, with its subfolders.
    """

    def __init__(self, folder: str | Path):
        self.folder = str(folder)
        self._exact: dict[str, list[str]] = {}
        self._stems: dict[str, list[str]] = {}
        self._normalized: dict[str, list[str]] = {}
        for root, _, files in os.walk(folder, followlinks=True):
            for file in files:
                stem, suffix = os.path.splitext(file)
                if suffix.lower() in AUDIO_SUFFIXES:
                    path = os.path.join(root, file)
                    self._exact.setdefault(file, []).append(path)
                    self._stems.setdefault(stem, []).append(path)
                    self._normalized.setdefault(_normalized(stem), []).append(path)

    def __len__(self) -> int:
        return sum(map(len, self._exact.values()))

    def paths(self) -> list[str]:
        """All files, sorted."""
        return sorted(path for paths in self._exact.values() for path in paths)

    def find(self, *names: str) -> str | None:
        """Path of the first of the names that there is a file for.

        Raises:
            DataError: Several files in different folders go by that name.
        """
        stems = [_without_suffix(name) for name in names]
        for name, stem in zip(names, stems, strict=True):
            for table, key in ((self._exact, name), (self._stems, stem)):
                if key in table:
                    return _preferred(table[key], name)
        for name, stem in zip(names, stems, strict=True):
            if (key := _normalized(stem)) in self._normalized:
                return _preferred(self._normalized[key], name)
        return None


def _without_suffix(name: str) -> str:
    """A name without the ending of an audio file; other dots belong to the name."""
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in AUDIO_SUFFIXES else name


def _normalized(stem: str) -> str:
    """A name as it compares with others whose case, spaces, HTML entities or Unicode form were changed."""
    return unicodedata.normalize("NFC", html.unescape(stem)).strip().casefold()


def _preferred(paths: list[str], name: str) -> str:
    """One of the files that go by a name: they may differ in their format alone, not in their folder."""
    if len({os.path.splitext(path)[0] for path in paths}) > 1:
        raise DataError(
            f"Several files go by the name {name!r}: {', '.join(sorted(paths)[:5])}. Name the folder of this split "
            "with `audio_dir`."
        )
    order = {suffix: rank for rank, suffix in enumerate(AUDIO_SUFFIXES)}
    return min(paths, key=lambda path: (order[os.path.splitext(path)[1].lower()], path))
