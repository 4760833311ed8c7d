"""What a run leaves on record beside its weights: which data, which machine, how long, which versions."""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


RUN_FILE = "run.json"
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "torchaudio")
# Beyond so many, sources are grouped by what stands before their colon, the corpus or package they come from.
MAX_SOURCES = 20


def describe_split(rows: Sequence[dict]) -> dict:
    """Counts, hours, sources, licences and authors of the rows of a split, as far as the rows carry them.

    Returns:
        `n_clips`, `hours` (`None` unless every row has a `duration` in seconds), `sources` and `licences` (clips of
        each; `"unknown"` where a row names none), `authors` (sorted), and `revision`: a hash of ids and captions that
        changes when one of them does.
    """
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row["id"], list(row["captions"])], ensure_ascii=False).encode())
    durations = [row.get("duration") for row in rows]
    known = all(duration not in (None, "") for duration in durations)
    sources = Counter(str(row.get("source") or "unknown") for row in rows)
    if len(sources) > MAX_SOURCES:
        sources = Counter(str(row.get("source") or "unknown").split(":")[0] for row in rows)
    return {
        "n_clips": len(rows),
        "hours": sum(map(float, durations)) / 3600 if known else None,
        "sources": dict(sources.most_common()),
        "licences": dict(Counter(str(row.get("licence") or "unknown") for row in rows).most_common()),
        "authors": sorted({str(row["author"]) for row in rows if row.get("author")}),
        "revision": digest.hexdigest()[:16],
    }


def describe_machine(processes: int = 1) -> dict:
    """Processor or accelerator, their number, and the versions of the libraries that trained."""
    import torch

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": _processor_name(),
        "accelerators": accelerators,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def record_run(
    folder: str | Path,
    splits: Mapping[str, Sequence[dict]],
    seconds: float,
    first_step: int,
    last_step: int,
    **machine,
) -> None:
    """Writes `run.json` into the folder of a trained model.

    Args:
        folder: Where the model is.
        splits: Rows of each split, in the row format.
        seconds: Wall time of training and validation in this process.
        first_step: Step that this process went on from; 0 unless the run was resumed.
        last_step: Last step of training.
        machine: Arguments of [`describe_machine`].
    """
    record = {
        "data": {name: describe_split(rows) for name, rows in splits.items()},
        "machine": describe_machine(**machine),
        "seconds": seconds,
        "first_step": first_step,
        "last_step": last_step,
    }
    part = Path(folder) / f"{RUN_FILE}.part"
    part.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    part.replace(part.with_suffix(""))
