"""What the card of a checkpoint is written from: the files that a run leaves beside the weights."""

import csv
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from supclap.files import PROCESSOR, RECIPE, RESULTS, RUN


EMISSIONS = "emissions.csv"  # as codecarbon names it


@dataclass
class Facts:
    """The files of a checkpoint that its card is written from; those that are missing are empty."""

    folder: Path
    config: dict
    processor: dict
    recipe: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    run: dict = field(default_factory=dict)
    emissions: list[float] = field(default_factory=list)

    @classmethod
    def read(cls, folder: str | Path) -> "Facts":
        """Reads them.

        Raises:
            FileNotFoundError: The folder holds no checkpoint.
            ValueError: It holds another model, or one of the files is no JSON.
        """
        folder = Path(folder)
        for name in ("config.json", PROCESSOR):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} has no {name}, so it is no whole checkpoint. Name a folder that a training run, "
                    "`supclap convert`, or save_pretrained of model and processor wrote."
                )
        config = read_json(folder / "config.json")
        if config.get("model_type") != "supclap":
            raise ValueError(f"{folder} holds a {config.get('model_type')!r} model, not 'supclap'.")
        others = [read_json(folder / name) for name in (RECIPE, RESULTS, RUN)]
        facts = cls(folder, config, read_json(folder / PROCESSOR), *others, read_emissions(folder / EMISSIONS))
        _rename_old_keys(facts.recipe)
        return facts

    @property
    def data_name(self) -> str:
        return Path(self.recipe["data_dir"]).name if self.recipe.get("data_dir") else "unnamed data"


def _rename_old_keys(recipe: dict) -> None:
    """Gives the recipe of a run before 0.1 the names of today, so that its card says what it started from."""
    if "model" in recipe:
        recipe["checkpoint"] = recipe.pop("model")
    if str(recipe.get("audio_model")).startswith("ced-"):  # random weights then; a folder was written ./ced-base
        recipe["audio_model"] = f"random:{recipe['audio_model']}"


class _Fields(dict):
    """An object of a JSON file; a field that it lacks is an error that names the file."""

    def __init__(self, path: Path, fields: dict):
        super().__init__(fields)
        self.path = path

    def __missing__(self, key: str) -> NoReturn:
        raise ValueError(f"{self.path} is not whole: {key!r} is missing. Restore or remove it.")


def read_json(path: Path) -> dict:
    """The object in a JSON file; empty where there is no such file, a `ValueError` that names it where it is torn."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_hook=partial(_Fields, path))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}. Restore or remove it.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, not an object. Restore or remove it.")
    return content


def read_emissions(path: Path) -> list[float]:
    """kg of CO2 equivalents in codecarbon's file, one number for each process of the run; empty without the file.

    Raises:
        ValueError: The file is none of codecarbon's.
    """
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            # The rows of a process count up, so its last one holds all of it.
            last = {row["run_id"]: float(row["emissions"]) for row in csv.DictReader(file)}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no whole file of codecarbon ({error!r}). Restore or remove it.") from error
    return list(last.values())
