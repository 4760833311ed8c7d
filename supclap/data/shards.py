"""`supclap data prepare`: resampled audio in shards, with resume, checksums and a report.

A shard is a tar file of WebDataset, which `corpus: webdataset` trains from, or a Parquet file, for `corpus: hub`.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from processing_supclap.audio_supclap import check_sampling_rate, load_waveform
from supclap.errors import DataError, name_some
from supclap.files import replacing, write_json

from .audio_hashes import AUDIO_HASHES, AudioHashes
from .corpora.webdataset import KEPT, REPORT
from .inspection import content_hash, map_rows, without_folder
from .rows import removed_of, without_audio
from .shard_writers import CODECS, FORMS, OPUS_RATES, encode
from .text_files import read_json


FORMAT_VERSION = 2


def prepare(
    rows: Sequence[dict],
    folder: str | Path,
    split: str,
    sampling_rate: int = 16000,
    clips_per_shard: int = 1000,
    skip_bad: bool = False,
    progress: bool = True,
    workers: int | None = None,
    form: str = "webdataset",
    codec: str = "flac",
) -> dict:
    """Writes rows as shards; a run that was stopped goes on where it was.

    A shard is written again where the rows or their audio are no longer what they were, or where a clip that was left
    out can be used now. Audio whose file has the size and time of change it had is not read again.

    Args:
        rows: Rows in the row format.
        folder: Where the shards (`SPLIT-000000.tar`, …, or `data/SPLIT-00000-of-00002.parquet`, …) and the report
            `SPLIT.json` go.
        split: Name of the split.
        sampling_rate: Rate of the audio in Hz.
        clips_per_shard: Clips of a shard.
        skip_bad: Whether to leave clips out that cannot be decoded; they are listed in the report.
        progress: Whether to show a progress bar.
        workers: Threads; all cores when omitted.
        form: `webdataset` or `parquet`.
        codec: `flac` of 16 bits, which loses nothing of 16-bit audio at this rate, or `opus` of 64 kbit/s,
            of which a rewritten shard has another checksum, as its streams are numbered at random.

    Returns:
        The report: `sampling_rate`, `form`, `codec`, `n_clips`, `hours`, `peak_reduced` (clips made quieter because they
        exceeded full scale), `removed`, and `shards` with the `name`, `bytes`, `blake2b`, `clips`, `seconds` and
        `removed` of each, and `content`, a hash of the rows and audio that it was made from.

    Raises:
        DataError: A setting is out of range, the folder holds another data set or is being written by another run, or
            clips cannot be decoded; the first 20 are named.
    """
    from filelock import FileLock, Timeout

    check_settings(sampling_rate, clips_per_shard, form, codec)
    if form == "parquet" and not re.fullmatch(r"\w+(\.\w+)*", split):
        raise DataError(f"{split!r} is no name of a split of `datasets`: use letters, digits and underscores only.")
    if not len(rows):
        raise DataError(f"{split}: there are no rows to write.")
    folder = Path(folder)
    total = -(-len(rows) // clips_per_shard)
    writer, name_of = FORMS[form]
    places = [folder / name_of(split, number, total) for number in range(total)]
    folder.mkdir(parents=True, exist_ok=True)
    identity = {
        "format": REPORT,
        "version": FORMAT_VERSION,
        "split": split,
        "form": form,
        "codec": codec,
        "sampling_rate": sampling_rate,
        "clips_per_shard": clips_per_shard,
        "rows": _hash(without_audio(rows, index)["id"] for index in range(len(rows))),
    }
    try:
        with FileLock(folder / f".{split}.lock", timeout=0), AudioHashes(folder / AUDIO_HASHES) as hashes:
            finished = _finished_shards(folder, identity)
            for left in (*folder.glob(f"{split}.*.part*"), *places[0].parent.glob(f"{split}-*.part*")):
                left.unlink()  # a run that was killed was writing it
            for number, path in enumerate(places):
                chosen = range(number * clips_per_shard, min((number + 1) * clips_per_shard, len(rows)))
                label = f"{split} {number + 1}/{total}" if progress else None
                shard = _Shard(path, rows, chosen, identity, label, workers)
                name, content = path.relative_to(folder).as_posix(), shard.content(hashes)
                if not shard.is_whole(finished.get(name), content):
                    finished[name] = {"name": name, "content": content} | shard.write(writer)
                    write_json(_progress(folder, split), identity | {"shards": list(finished.values())})
            return _report(rows, folder, identity, list(finished.values()), skip_bad)
    except Timeout:
        raise DataError(f"Another run is writing {split} in {str(folder)!r}. Wait for it, or stop it.") from None


def check_settings(sampling_rate: int, clips_per_shard: int, form: str, codec: str) -> None:
    """Raises a [`DataError`] for settings of [`prepare`] that are out of range."""
    for value, known, name in ((form, FORMS, "format"), (codec, CODECS, "codec")):
        if value not in known:
            raise DataError(f"{name} {value!r} is unknown; there are {', '.join(known)}.")
    try:
        check_sampling_rate(sampling_rate, "shards")
    except (TypeError, ValueError) as error:
        raise DataError(str(error)) from None
    if codec == "opus" and sampling_rate not in OPUS_RATES:
        raise DataError(
            f"sampling_rate {sampling_rate} is none of Opus, which has {', '.join(map(str, OPUS_RATES))} Hz. Take one "
            "of them, or the codec flac."
        )
    if clips_per_shard < 1:
        raise DataError(f"clips_per_shard must be at least 1, got {clips_per_shard}.")


def _report(rows: Sequence[dict], folder: Path, identity: dict, shards: list[dict], skip_bad: bool) -> dict:
    """Writes the report of shards that are all there, and returns it."""
    split = identity["split"]
    bad = [item for shard in shards for item in shard["removed"]]
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
    write_json(folder / f"{split}.json", report)
    _progress(folder, split).unlink(missing_ok=True)
    return report


def _progress(folder: Path, split: str) -> Path:
    """The file that tells what an unfinished run has written; a finished run tells it in its report."""
    return folder / f"{split}.progress.json"


def _finished_shards(folder: Path, identity: dict) -> dict[str, dict]:
    """What earlier runs on the same rows and settings have written, by the name of the shard."""
    split, finished = identity["split"], {}
    for path in (folder / f"{split}.json", _progress(folder, split)):
        if not path.is_file():
            continue
        there = read_json(path)
        if not isinstance(there, dict) or there.get("format") != REPORT:
            raise DataError(f"{path} is not a report of `supclap data prepare`. Choose another folder, or delete it.")
        changed = [key for key, value in identity.items() if there.get(key) != value]
        if changed:
            raise DataError(
                f"{path} is of another run: {', '.join(changed)} differ. Choose another folder, or delete the shards "
                f"of {split} and that file."
            )
        finished |= {shard["name"]: shard for shard in there["shards"]}
    return finished


@dataclass
class _Shard:
    """One shard: where it is and what it is made from."""

    path: Path
    rows: Sequence[dict]
    chosen: range
    identity: dict
    label: str | None
    workers: int | None

    def is_whole(self, known: dict | None, content: str) -> bool:
        """Whether the shard is what an earlier run has noted of it, and nothing has to be added or changed."""
        if known is None or known.get("content") != content or not self.path.is_file():
            return False
        if self.path.stat().st_size != known["bytes"] or content_hash(self.path) != known["blake2b"]:
            return False
        # what was missing to decode a clip may have been installed since
        left_out = {item["id"] for item in known["removed"]}
        again = [index for index in self.chosen if without_audio(self.rows, index)["id"] in left_out]
        return all(error for *_, error in map_rows(self._encode, again, workers=self.workers))

    def write(self, writer: Callable) -> dict:
        """Writes the shard, whole or not at all, and tells what it holds."""
        known = {"clips": 0, "seconds": 0.0, "peak_reduced": 0, "removed": []}
        codec = self.identity["codec"]
        with replacing(self.path) as part, closing(writer(part, self.identity["sampling_rate"])) as shard:
            encoded = map_rows(self._encode, self.chosen, self.label, self.workers)
            for index, (audio, seconds, reduced, error) in zip(self.chosen, encoded):
                row = without_audio(self.rows, index)
                if error:
                    known["removed"].append({"id": row["id"], "reason": error})
                    continue
                shard.add(f"{index:08d}.{codec}", audio, _details(row) | {"duration": seconds})
                known["clips"] += 1
                known["seconds"] += seconds
                known["peak_reduced"] += reduced
        return known | {"bytes": self.path.stat().st_size, "blake2b": content_hash(self.path)}

    def content(self, hashes: AudioHashes) -> str:
        """A hash of the rows and their audio, whatever the place of the files."""

        def audio_hash(index: int) -> str:
            try:
                return hashes.of(self.rows, index)
            except (OSError, TypeError) as error:
                return type(error).__name__

        audio = map_rows(audio_hash, self.chosen, workers=self.workers)
        return _hash([_details(without_audio(self.rows, index)), one] for index, one in zip(self.chosen, audio))

    def _encode(self, index: int) -> tuple[bytes, float, bool, str | None]:
        """The audio of a row as a file, its seconds, whether it was made quieter, and what is wrong with it."""
        row, rate = self.rows[index], self.identity["sampling_rate"]
        try:
            waveform = load_waveform(row["audio"], target_sampling_rate=rate, name=f"clip {row['id']!r}").numpy()
        except (OSError, ValueError, TypeError, ImportError) as error:
            return b"", 0.0, False, without_folder(str(error), row["audio"])
        peak = float(np.abs(waveform).max())
        reduced = peak > 1.0
        if reduced:  # a lossy codec or the resampler may overshoot; a change of level does less harm than clipping
            waveform = waveform / peak
        return encode(waveform, rate, self.identity["codec"]), len(waveform) / rate, reduced, None


def _details(row: dict) -> dict:
    """What a shard says of a row."""
    return {name: row[name] for name in (*KEPT, "id", "captions", "language") if row.get(name) is not None}


def _hash(items: Iterable) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for item in items:
        hasher.update(json.dumps(item, ensure_ascii=False).encode() + b"\n")
    return hasher.hexdigest()
