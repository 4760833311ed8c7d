"""Looks at the audio of clips: whether it can be read, how long and how loud it is, and a hash of its content."""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from processing_supclap.audio_supclap import check_sampling_rate, load_waveform, to_float, to_mono
from processing_supclap.decoding_supclap import decode
from supclap.errors import DataError, name_some

from .cropping import SEEKABLE
from .rows import LazyRows, Rows, encoded_audio, removed_of, select


SILENT_PEAK = 1e-4  # -80 dBFS
FULL_SCALE = 0.9999
CLIPPED_RUN = 3  # so many samples at full scale in a row are clipping; a single one is none
CLIPPED_SHARE = 1e-4
HASH_BYTES = 16


@dataclass(frozen=True)
class ClipFacts:
    """What one clip's audio is like.

    Args:
        error: Why it cannot be used; the rest is zero then.
        audio_hash: Hash of the decoded samples; files that differ in their tags alone have the same.
        duration: Seconds.
        sampling_rate: Hz.
        channels: Number of channels.
        peak: Largest absolute sample; full scale is 1.
        zeros: Share of samples that are exactly zero.
        clipped: Share of samples in runs at full scale.
    """

    error: str | None = None
    audio_hash: str = ""
    duration: float = 0.0
    sampling_rate: int = 0
    channels: int = 0
    peak: float = 0.0
    zeros: float = 0.0
    clipped: float = 0.0

    @property
    def is_silent(self) -> bool:
        return self.error is None and self.peak < SILENT_PEAK

    @property
    def is_clipped(self) -> bool:
        return self.clipped > CLIPPED_SHARE


def content_hash(audio: Any) -> str:
    """Hash of a clip's content, wherever it lies: the bytes of its file, or its samples with their type, shape and rate.

    The hash is BLAKE2b of 16 bytes, in hex. That of a file is of its bytes alone, as other programs compute it.

    Raises:
        OSError: The file cannot be read.
        TypeError: An object whose content cannot be read without decoding it.
    """
    hasher = hashlib.blake2b(digest_size=HASH_BYTES)
    if isinstance(audio, Mapping):
        held = [key for key in ("bytes", "array", "raw", "path") if audio.get(key) is not None]
        if not held:
            raise TypeError(f"A clip as a dictionary needs bytes, path or array; got the keys {sorted(audio)}.")
        rate = f"@{audio.get('sampling_rate')}" if held[0] in ("array", "raw") else ""
        return content_hash(audio[held[0]]) + rate
    if isinstance(audio, str | os.PathLike):
        with open(audio, "rb") as file:
            return hashlib.file_digest(file, lambda: hasher).hexdigest()
    if isinstance(audio, bytes | bytearray | memoryview):
        hasher.update(audio)
    elif isinstance(audio, np.ndarray | list | tuple) or hasattr(audio, "cpu"):
        array = np.ascontiguousarray(audio.cpu() if hasattr(audio, "cpu") else audio)
        hasher.update(f"{array.dtype}{array.shape}".encode())
        hasher.update(array.tobytes())
    else:
        raise TypeError(
            f"A clip of type {type(audio).__name__} has no content to hash: give a path, bytes or samples."
        )
    return hasher.hexdigest()


def inspect_clip(audio, name: str) -> ClipFacts:
    """Decodes a clip in full and looks at it; whatever is wrong with it is in `error`."""
    if encoded_audio(audio) is None:
        return ClipFacts(error=f"{name} has no audio.")
    try:
        rate, samples = _decode(audio, name)
        samples = to_float(samples, name)
        mono = to_mono(samples, name, 1)
    except (OSError, ValueError, TypeError, ImportError) as error:
        return ClipFacts(error=str(error) if name in str(error) else f"{name}: {error}")
    if _is_short(len(mono), rate):
        return ClipFacts(error=f"{name}: too short, {1000 * len(mono) / rate:.1f} ms.")
    loud = np.abs(samples).max(axis=1) >= FULL_SCALE
    return ClipFacts(
        # rounded to 16 bits, so that decoders of different versions agree
        audio_hash=content_hash(np.int16(np.clip(np.round(samples * 32768), -32768, 32767))) + f"@{rate}",
        duration=len(mono) / rate,
        sampling_rate=rate,
        channels=samples.shape[1],
        peak=float(np.abs(samples).max()),
        zeros=float(np.mean(mono == 0)),
        clipped=_run_share(loud),
    )


def _decode(audio, name: str) -> tuple[int, np.ndarray]:
    """The rate in Hz and the samples `(samples, channels)` of a clip, at its own rate."""
    file = encoded_audio(audio)
    if isinstance(file, str | Path | bytes | bytearray | memoryview):
        samples, rate = decode(file, name)
        return rate, samples
    rate = check_sampling_rate(audio.get("sampling_rate") if isinstance(audio, Mapping) else None, name)
    return rate, load_waveform(audio, target_sampling_rate=rate, name=name).numpy()[:, None]


def _run_share(loud: np.ndarray) -> float:
    """Share of samples in runs of at least `CLIPPED_RUN`."""
    if not loud.any():
        return 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], loud.view(np.int8), [0]])))
    runs = edges[1::2] - edges[::2]
    return float(runs[runs >= CLIPPED_RUN].sum() / len(loud))


def _can_open(audio, name: str) -> ClipFacts:
    """Looks at the head and the end of the file or bytes, and decodes only what seems wrong there."""
    file = encoded_audio(audio)
    if isinstance(file, bytes | bytearray | memoryview):
        file = io.BytesIO(file)
    if isinstance(file, str | Path | io.BytesIO) and _seems_whole(file):
        return ClipFacts()
    return inspect_clip(audio, name)


def _seems_whole(file: str | Path | io.BytesIO) -> bool:
    """Whether the head of a sound file is in order, and its last sample is where the head says it is."""
    import soundfile

    try:
        with soundfile.SoundFile(file if isinstance(file, io.BytesIO) else str(file)) as sound:
            if sound.frames <= 0 or _is_short(sound.frames, sound.samplerate):
                return False
            if sound.format not in SEEKABLE:
                return True
            sound.seek(sound.frames - 1)
            return len(sound.read(1)) == 1
    except (RuntimeError, OSError, TypeError):
        return False


def _is_short(samples: int, rate: int) -> bool:
    return samples * 100 < rate  # one mel hop is 10 ms


def map_rows(function, rows: Sequence[dict], progress: str | None = None, workers: int | None = None) -> Iterator:
    """`function(row)` of each row, in order, on all cores: what it does is reading, decoding and NumPy, which run side
    by side in threads. Few rows are under way at a time, so memory does not grow with their number.

    There is a progress bar of the name `progress` where it is given, and there are `workers` threads.
    """
    from tqdm import tqdm

    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        pending = []
        with tqdm(total=len(rows), desc=progress, unit="clip", disable=progress is None) as bar:
            for index in range(len(rows)):
                pending.append(pool.submit(lambda i: function(rows[i]), index))
                if len(pending) > 4 * workers:
                    yield pending.pop(0).result()
                    bar.update()
            for future in pending:
                yield future.result()
                bar.update()


def without_folder(reason: str, audio: Any) -> str:
    """A reason that names a clip's file by its name alone, for lists that are published: folders are private."""
    path = audio.get("path") if isinstance(audio, dict) else audio
    folder = os.path.dirname(path) if isinstance(path, str | Path) else ""
    return reason.replace(f"{folder}{os.sep}", "") if folder else reason


def drop_undecodable(rows: Sequence[dict], where: str, skip_bad: bool) -> Rows | LazyRows | Sequence[dict]:
    """Rows whose audio opens and does not break off, or with `skip_bad` those whose audio decodes from end to end.

    Raises:
        DataError: Audio that cannot be used, unless `skip_bad`; the first 20 are named, and the count.
    """
    look = inspect_clip if skip_bad else _can_open
    progress = f"reading {where}" if skip_bad else None
    facts = map_rows(lambda row: look(row.get("audio"), f"clip {row['id']!r}"), rows, progress)
    bad = [(index, fact.error) for index, fact in enumerate(facts) if fact.error]
    if not bad:
        return rows
    if not skip_bad or len(bad) == len(rows):
        named = name_some([f"row {index}: {error.rstrip('.')}" for index, error in bad])
        raise DataError(
            f"{where}: the audio of {len(bad)} of {len(rows)} clips cannot be used: {named}. Repair them, or leave them "
            "out with skip_bad: true; they are then counted and listed in the manifest."
        )
    wrong = dict(bad)
    removed = removed_of(rows)
    for index, error in bad:
        row = rows[index]
        removed.append({"id": row["id"], "reason": without_folder(error, row.get("audio"))})
    return select(rows, [index for index in range(len(rows)) if index not in wrong], removed)
