"""The manifest tells what a model was trained and scored on: ids, content hashes, sources, licences, and what was left
out and why."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from supclap.files import MANIFEST, write_json

from .audio_hashes import AudioHashes
from .inspection import map_rows
from .mixture import CorpusMixture
from .rows import caption_languages, removed_of, without_audio
from .streaming import RowStream


FORMAT = "supclap-data-manifest"
NOT_HASHED = "the audio was not hashed"


def build_manifest(
    splits: Mapping[str, Sequence[dict] | RowStream],
    content_hashes: bool = True,
    known_hashes: str | Path | None = None,
) -> dict:
    """The manifest of splits of rows.

    Args:
        splits: Rows of each split, or a mixture of corpora, whose clips are listed once each. A stream is not read:
            where its rows are not listed, neither they nor their number are known.
        content_hashes: Whether to hash the audio, which reads all of it once.
        known_hashes: File that keeps the hashes; audio that has not changed since is not read again.

    Returns:
        For each split: `n_clips`, `n_captions`, `hours` (`None` unless every row has a `duration`), `sources`,
        `licences` and `languages` with their counts, `authors`, `revision` (a hash of ids and captions), `removed`
        (`id`, `reason`), for a mixture `mixture` (rows of an epoch by corpus), and `clips`, a list of `[id, hash]`. Of
        a stream also `streamed`, which says that its audio was not hashed; what is not known of it is `None`.
    """
    with AudioHashes(known_hashes if content_hashes else None) as hashes:
        described = {
            name: _describe_stream(rows)
            if isinstance(rows, RowStream)
            else _describe(rows, hashes if content_hashes else None)
            for name, rows in splits.items()
        }
    return {
        "format": FORMAT,
        "version": 1,
        "hash": "BLAKE2b-128 of the file" if content_hashes else None,
        "splits": described,
    }


def _describe_stream(stream: RowStream) -> dict:
    if stream.listed is not None:
        return _describe(stream.listed, None) | {"streamed": NOT_HASHED}
    unknown = dict.fromkeys(("n_clips", "n_captions", "hours", "revision"))
    stated = {"sources": {stream.name: None}, "licences": {stream.licence or "not stated": None}}
    return _describe([], None) | unknown | stated | {"streamed": NOT_HASHED}


def _describe(rows: Sequence[dict], hashes: AudioHashes | None) -> dict:
    parts = list(rows.parts.values()) if isinstance(rows, CorpusMixture) else [rows]
    counts: dict[str, Counter] = {key: Counter() for key in ("sources", "licences", "languages")}
    clips, n_captions, durations, authors = [], 0, [], set()
    revision = hashlib.sha256()

    def look(part: Sequence[dict], index: int) -> tuple[dict, str | None]:
        return without_audio(part, index), None if hashes is None else hashes.of(part, index)

    for part in parts:
        for row, digest in map_rows(partial(look, part), range(len(part))):
            clips.append([row["id"], digest])
            n_captions += len(row["captions"])
            revision.update(json.dumps([row["id"], list(row["captions"])], ensure_ascii=False).encode())
            durations.append(row.get("duration"))
            if row.get("author"):
                authors.add(str(row["author"]))
            counts["sources"][source_of(row)] += 1
            counts["licences"][row.get("licence") or "not stated"] += 1
            counts["languages"].update(code or "not stated" for code in caption_languages(row))
    removed = removed_of(rows)
    known = all(duration not in (None, "") for duration in durations)
    described = {"n_clips": len(clips), "n_captions": n_captions, "n_removed": len(removed)}
    described |= {
        "hours": sum(map(float, durations)) / 3600 if known else None,
        "authors": sorted(authors),
        "revision": revision.hexdigest()[:16],
    }
    described |= {key: dict(counter.most_common()) for key, counter in counts.items()}
    if isinstance(rows, CorpusMixture):
        described["mixture"] = dict(rows.shares)
    return described | {"removed": removed, "clips": clips}


def source_of(row: dict) -> str:
    """Where a clip comes from, without what names the clip itself: `youtube`, `freesound`, or the host of an address."""
    source = str(row.get("source") or "not stated")
    return urlsplit(source).netloc if "://" in source.partition(" ")[0] else source.partition(":")[0]


def summarise(manifest: Mapping) -> dict[str, dict]:
    """Each split of a manifest without its lists of clips and of what was left out."""
    return {
        name: {key: value for key, value in split.items() if key not in ("clips", "removed")}
        for name, split in manifest["splits"].items()
    }


def save_manifest(manifest: dict, folder: str | Path) -> Path:
    """Writes `data_manifest.json` into the folder, whole or not at all."""
    path = Path(folder) / MANIFEST
    write_json(path, manifest, indent=None)
    return path
