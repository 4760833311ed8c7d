"""Hashes of audio that are kept in a file, so that a run that starts again does not read all audio again."""

import hashlib
import os
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .inspection import HASH_BYTES, content_hash
from .rows import LazyRows, encoded_audio


# Files whose names begin so are no part of a checkpoint: they are neither uploaded nor hashed with it.
AUDIO_HASHES = "_audio_hashes.txt"


class AudioHashes:
    """Content hashes of clips, looked up by where the audio of a clip lies.

    That is the path, size and time of change of its files, and the place in them. The file holds a line for each clip,
    which is written as soon as the clip is hashed, so that a start that is killed has not hashed in vain. The line holds
    a hash of the place, not the place itself, so that the file names no folder of this machine. Audio that changes
    without a change of the file's size and time keeps its old hash.

    Args:
        path: The file; hashes are not kept when omitted.
    """

    def __init__(self, path: str | Path | None = None):
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stat = cache(_stat)
        self._path = None if path is None else Path(path)
        if self._path is not None and self._path.is_file():
            lines = self._path.read_text(encoding="utf-8").splitlines()
            # the last line of a start that was killed may be torn
            pairs = [line.split(" ") for line in lines if len(line) == 4 * HASH_BYTES + 1]
            self._known = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def __enter__(self) -> "AudioHashes":
        self._file = None
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
            self._file.write("\n" if self._file.tell() else "")  # a torn line ends here
        return self

    def __exit__(self, *error) -> None:
        if self._file is not None:
            self._file.close()

    def of(self, rows: Sequence[dict], index: int) -> str:
        """The content hash of a row's audio, which is read only where its hash is not known. Threads may call it."""
        place = rows.audio_place(index) if isinstance(rows, LazyRows) else _place(rows[index]["audio"])
        if place is None:
            return content_hash(rows[index]["audio"])
        files, inside = place
        described = repr(([self._stat(os.path.abspath(file)) for file in files], inside))
        key = hashlib.blake2b(described.encode(), digest_size=HASH_BYTES).hexdigest()
        if key not in self._known:
            digest = content_hash(rows[index]["audio"])
            with self._lock:
                self._known[key] = digest
                if self._file is not None:
                    self._file.write(f"{key} {digest}\n")
                    self._file.flush()
        return self._known[key]


def _place(audio: Any) -> tuple[tuple[str, ...], None] | None:
    """The file that audio lies in, as [`~supclap.data.rows.LazyRows.audio_place`] gives it; `None` where it lies in none."""
    audio = encoded_audio(audio)
    return ((str(audio),), None) if isinstance(audio, str | os.PathLike) else None


def _stat(path: str) -> tuple[str, int, int]:
    """A file's path, size and time of change."""
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns
