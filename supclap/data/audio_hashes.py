"""Hashes of audio computed before, so that a run that starts again does not read all of it again."""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .inspection import HASH_BYTES, content_hash
from .rows import LazyRows


# Begins like what is no part of a checkpoint: it is neither uploaded nor hashed with it.
AUDIO_HASHES = "_audio_hashes.txt"


class AudioHashes:
    """Content hashes by where the audio lies: files with their sizes and times of change, and the place in them.

    The file holds a line for each clip, written when it is hashed, so that a start that is killed has not hashed in
    vain. It names no folder: where the audio lies is itself hashed. A file that is changed without a change of its size
    and time is not noticed.

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
        """The content hash of a row's audio, which is read only where it is not known. For several threads."""
        place = rows.audio_place(index) if isinstance(rows, LazyRows) else _place(rows[index]["audio"])
        if place is None:
            return content_hash(rows[index]["audio"])
        files, inside = place
        key = repr(([self._stat(os.path.abspath(file)) for file in files], inside))
        return self._look_up(
            hashlib.blake2b(key.encode(), digest_size=HASH_BYTES).hexdigest(),
            lambda: content_hash(rows[index]["audio"]),
        )

    def _look_up(self, key: str, compute: Callable[[], str]) -> str:
        if key not in self._known:
            digest = compute()
            with self._lock:
                self._known[key] = digest
                if self._file is not None:
                    self._file.write(f"{key} {digest}\n")
                    self._file.flush()
        return self._known[key]


def _place(audio: Any) -> tuple[tuple[str, ...], None] | None:
    if isinstance(audio, dict) and all(audio.get(key) is None for key in ("bytes", "array", "raw")):
        audio = audio.get("path")
    return ((str(audio),), None) if isinstance(audio, str | os.PathLike) else None


def _stat(path: str) -> tuple[str, int, int]:
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns
