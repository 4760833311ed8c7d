"""What a run leaves on record beside its weights: which data and parts, which machine, how long, which versions."""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from supclap.data.manifest import summarise
from supclap.files import RUN, write_json
from supclap.publishing.licenses import part_licenses


PACKAGES = ("torch", "transformers", "accelerate", "datasets", "torchaudio")


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
    manifest: Mapping,
    seconds: float,
    first_step: int,
    last_step: int,
    **machine,
) -> None:
    """Writes `run.json` into the folder of a trained model.

    The licences of the pretrained parts are looked up now: later the recipe's folders may not be there, or their names
    may mean others.

    Args:
        folder: Where the model and its recipe are.
        manifest: What it was trained and scored on; see [`~supclap.data.manifest.build_manifest`].
        seconds: Wall time of training and validation.
        first_step: Step from which it was counted.
        last_step: Last step of training.
        machine: Arguments of [`describe_machine`].
    """
    recipe, config = (_read(Path(folder) / name) for name in ("recipe.json", "config.json"))
    record = {
        "data": summarise(manifest),
        "licences": part_licenses(recipe, config) if config else {},
        "machine": describe_machine(**machine),
        "seconds": seconds,
        "first_step": first_step,
        "last_step": last_step,
    }
    write_json(Path(folder) / RUN, record)


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
