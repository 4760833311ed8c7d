"""`supclap data prepare`: resampled FLAC in WebDataset shards, with resume, checksums and a report.

Each shard is a tar file of `key.flac` (mono, 16 bits) and `key.json` (the row), the two members of a clip side by side,
as WebDataset lays them out. `corpus: webdataset` trains from them.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from processing_supclap.audio_supclap import load_waveform

from .corpora.webdataset import KEPT, REPORT
from .files import DataError, name_some, read_json, without_folder
from .inspection import map_rows
from .rows import removed_of, without_audio


FORMAT_VERSION = 1
SHARD_KEYS = ("name", "bytes", "blake2b", "clips", "seconds", "peak_reduced", "removed")


def prepare(
    rows: Sequence[dict],
    folder: str | Path,
    split: str,
    sampling_rate: int = 16000,
    clips_per_shard: int = 1000,
    skip_bad: bool = False,
    progress: bool = True,
    workers: int | None = None,
) -> dict:
    """Writes rows as shards; a run that was stopped goes on where it was.

    Args:
        rows: Rows in the row format.
        folder: Where `SPLIT-000000.tar`, … and the report `SPLIT.json` go.
        split: Name of the split.
        sampling_rate: Rate of the audio in Hz.
        clips_per_shard: Clips of a shard.
        skip_bad: Whether to leave clips out that cannot be decoded; they are listed in the report.
        progress: Whether to show a progress bar.
        workers: Threads; all cores when omitted.

    Returns:
        The report: `sampling_rate`, `n_clips`, `hours`, `peak_reduced` (clips made quieter because they exceeded full
        scale), `removed`, and `shards` with the `name`, `bytes`, `blake2b`, `clips`, `seconds` and `removed` of each.

    Raises:
        DataError: The folder holds another data set, or clips cannot be decoded; the first 20 are named.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    identity = {
        "format": REPORT,
        "version": FORMAT_VERSION,
        "split": split,
        "sampling_rate": sampling_rate,
        "clips_per_shard": clips_per_shard,
        "rows": _digest(rows),
    }
    _check_folder(folder, split, identity)
    total = (len(rows) + clips_per_shard - 1) // clips_per_shard
    shards, bad = [], []
    for number in range(total):
        path = folder / f"{split}-{number:06d}.tar"
        done = _finished(path, identity)
        if done is None:
            chosen = range(number * clips_per_shard, min((number + 1) * clips_per_shard, len(rows)))
            label = f"{split} {number + 1}/{total}" if progress else None
            done = _write_shard(path, rows, chosen, sampling_rate, label, workers, identity)
        shards.append({key: done[key] for key in SHARD_KEYS})
        bad += done["removed"]
    if bad and (not skip_bad or len(bad) == len(rows)):
        raise DataError(
            f"{split}: {len(bad)} of {len(rows)} clips cannot be used: {name_some([item['reason'] for item in bad])}. "
            "Repair them, or leave them out with --skip-bad; they are then listed in the report. What is done is kept."
        )
    report = identity | {
        "n_clips": sum(shard["clips"] for shard in shards),
        "hours": sum(shard["seconds"] for shard in shards) / 3600,
        "peak_reduced": sum(shard["peak_reduced"] for shard in shards),
        "removed": [*removed_of(rows), *bad],
        "shards": shards,
    }
    _write_json(folder / f"{split}.json", report)
    for shard in shards:
        _note(folder / shard["name"]).unlink(missing_ok=True)
    return report


def _digest(rows: Sequence[dict]) -> str:
    """What tells these rows from others: their ids and captions in order, whatever the place of their files."""
    hasher = hashlib.blake2b(digest_size=16)
    for index in range(len(rows)):
        row = without_audio(rows, index)
        hasher.update(json.dumps([row["id"], row["captions"]], ensure_ascii=False).encode())
    return hasher.hexdigest()


def _note(path: Path) -> Path:
    return path.with_suffix(".done.json")


def _check_folder(folder: Path, split: str, identity: dict) -> None:
    """Refuses to mix shards of different rows or settings."""
    for path in (folder / f"{split}.json", *sorted(folder.glob(f"{split}-*.done.json"))[:1]):
        if not path.is_file():
            continue
        there = read_json(path)
        changed = [key for key, value in identity.items() if there.get(key) != value]
        if changed:
            raise DataError(
                f"{path} is of another run: {', '.join(changed)} differ. Choose another folder, or delete the shards "
                f"{split}-*.tar and that file."
            )


def _finished(path: Path, identity: dict) -> dict | None:
    """What is known of a shard that is whole, by the note beside it or the report of a finished run."""
    report = path.parent / f"{identity['split']}.json"
    known = None
    if _note(path).is_file():
        known = read_json(_note(path))
    elif report.is_file():
        content = read_json(report)
        found = [shard for shard in content["shards"] if shard["name"] == path.name]
        known = found[0] if found and set(SHARD_KEYS) <= set(found[0]) else None
    if known is None or not path.is_file() or path.stat().st_size != known["bytes"]:
        return None
    return known if _file_hash(path) == known["blake2b"] else None


def _write_shard(
    path: Path, rows: Sequence[dict], chosen: range, rate: int, label: str | None, workers: int | None, identity: dict
) -> dict:
    """Writes a shard beside its place and moves it there when it is whole, then a note with its checksum."""
    part = path.with_suffix(f".part{os.getpid()}")
    known = {"name": path.name, "clips": 0, "seconds": 0.0, "peak_reduced": 0, "removed": []}
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for row, data, seconds, reduced, error in map_rows(
            lambda row: _encode(row, rate), _Slice(rows, chosen), label, workers
        ):
            if error:
                known["removed"].append({"id": row["id"], "reason": without_folder(error, row["audio"])})
                continue
            key = f"{chosen.start + known['clips'] + len(known['removed']):08d}"
            details = {name: row[name] for name in (*KEPT, "id", "captions", "language") if row.get(name) is not None}
            details["duration"] = seconds
            _add(tar, f"{key}.flac", data)
            _add(tar, f"{key}.json", json.dumps(details, ensure_ascii=False).encode())
            known["clips"] += 1
            known["seconds"] += seconds
            known["peak_reduced"] += reduced
    known |= {"bytes": part.stat().st_size, "blake2b": _file_hash(part)}
    part.replace(path)
    _write_json(_note(path), identity | known)
    return known


class _Slice(Sequence):
    def __init__(self, rows: Sequence[dict], chosen: range):
        self.rows, self.chosen = rows, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> dict:
        return self.rows[self.chosen[index]]


def _encode(row: dict, rate: int) -> tuple[dict, bytes, float, bool, str | None]:
    """A row, its audio as 16-bit FLAC at the rate, its seconds, whether it was made quieter, and what is wrong."""
    import soundfile

    try:
        waveform = load_waveform(row["audio"], target_sampling_rate=rate, name=f"clip {row['id']!r}").numpy()
    except (OSError, ValueError, TypeError, ImportError) as error:
        return row, b"", 0.0, False, str(error)
    peak = float(np.abs(waveform).max())
    reduced = peak > 1.0
    if reduced:  # a lossy codec or the resampler may overshoot; a change of level does less harm than clipping
        waveform = waveform / peak
    # the scale that soundfile reads by, so that 16-bit audio at this rate stays what it is to the last bit
    samples = np.clip(np.round(32768 * waveform), -32768, 32767).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="FLAC", subtype="PCM_16")
    return row, buffer.getvalue(), len(waveform) / rate, reduced, None


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _write_json(path: Path, content: dict) -> None:
    part = path.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    part.replace(path)
