"""What a run leaves on record beside its weights. It is written when the run ends, and read for the card.

`run.json` holds data, parts, machine, time and versions. The recipe, the results and the emissions have files of their own.
"""

import csv
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from supclap.data.manifest import summarise
from supclap.errors import CheckpointError, DataError
from supclap.files import CONFIG, PROCESSOR, RECIPE, RESULTS, RUN, read_json_object, write_json
from supclap.publishing.licenses import part_licenses


PACKAGES = ("torch", "transformers", "accelerate", "datasets", "torchaudio")
EMISSIONS = "emissions.csv"  # codecarbon gives it this name


# ---- Written when a run ends ----


def record_run(
    folder: str | Path,
    manifest: Mapping,
    seconds: float,
    first_step: int,
    last_step: int,
    processes: int = 1,
) -> None:
    """Writes `run.json` into the folder of a trained model.

    The licenses of the pretrained parts are looked up now. Later the folders that the recipe names may not be there, or
    may hold something else.

    Args:
        folder: The folder with the model and its recipe.
        manifest: What it was trained and scored on; see [`~supclap.data.manifest.build_manifest`].
        seconds: The wall time of training and validation.
        first_step: The step from which this time was counted.
        last_step: The last step of training.
        processes: The number of processes that trained.
    """
    recipe, config = (_read(Path(folder) / name) for name in (RECIPE, CONFIG))
    record = {
        "data": summarise(manifest),
        "licences": part_licenses(recipe, config) if config else {},  # saved runs have this spelling
        "machine": _describe_machine(processes),
        "seconds": seconds,
        "first_step": first_step,
        "last_step": last_step,
    }
    write_json(Path(folder) / RUN, record)


def _describe_machine(processes: int) -> dict[str, Any]:
    """The processor or accelerators, their number, and the versions of the libraries that trained."""
    import torch

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": _processor_name(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
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


# ---- Read for the card ----


@dataclass
class Facts:
    """The files of a checkpoint that its card is written from. Those that are missing are empty.

    Attributes:
        folder: The folder of the checkpoint.
        config: The configuration of the model.
        processor: The configuration of the processor.
        recipe: The settings that training ran with.
        results: The scores of the test data; see [`~supclap.evaluation.runner.evaluate_suite`].
        run: What [`record_run`] wrote.
        emissions: kg of CO2 equivalents that codecarbon measured, one number for each process of the run.
    """

    folder: Path
    config: dict[str, Any]
    processor: dict[str, Any]
    recipe: dict[str, Any]
    results: dict[str, Any]
    run: dict[str, Any]
    emissions: list[float]

    @classmethod
    def read(cls, folder: str | Path) -> "Facts":
        """Reads the files.

        Raises:
            CheckpointError: The folder holds no checkpoint.
            DataError: It holds another model, or one of the files is damaged.
        """
        folder = Path(folder)
        for name in (CONFIG, PROCESSOR):
            if not (folder / name).is_file():
                raise CheckpointError(
                    f"{folder} has no {name}, so it is no whole checkpoint. Name a folder that a training run, "
                    "`supclap convert`, or save_pretrained of model and processor wrote."
                )
        config, *others = (_read(folder / name) for name in (CONFIG, PROCESSOR, RECIPE, RESULTS, RUN))
        if config.get("model_type") != "supclap":
            raise DataError(f"{folder} holds a {config.get('model_type')!r} model, not 'supclap'.")
        facts = cls(folder, config, *others, _read_emissions(folder / EMISSIONS))
        _rename_old_keys(facts.recipe)
        return facts

    @property
    def data_name(self) -> str:
        return Path(self.recipe["data_dir"]).name if self.recipe.get("data_dir") else "unnamed data"


def _rename_old_keys(recipe: dict[str, Any]) -> None:
    """Gives the recipe of a run before version 0.1 the keys of today, so that its card says what it started from."""
    if "model" in recipe:
        recipe["checkpoint"] = recipe.pop("model")
    if str(recipe.get("audio_model")).startswith("ced-"):  # the size of an encoder with random weights
        recipe["audio_model"] = f"random:{recipe['audio_model']}"


class _Fields(dict):
    """An object of a JSON file. To ask for a field that it lacks is an error that names the file."""

    def __init__(self, path: Path, fields: dict[str, Any]):
        super().__init__({key: _named(path, value) for key, value in fields.items()})
        self.path = path

    def __missing__(self, key: str) -> NoReturn:
        raise DataError(f"{self.path} is not whole: {key!r} is missing. Restore or remove it.")


def _named(path: Path, value: Any) -> Any:
    return _Fields(path, value) if isinstance(value, dict) else value


def _read(path: Path) -> dict[str, Any]:
    """The object in a JSON file; it is empty where there is no such file."""
    return _Fields(path, read_json_object(path) if path.is_file() else {})


def _read_emissions(path: Path) -> list[float]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            # The rows of a process add up, so its last row holds all that it emitted.
            last = {row["run_id"]: float(row["emissions"]) for row in csv.DictReader(file)}
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is no whole file of codecarbon ({error!r}). Restore or remove it.") from error
    return list(last.values())
