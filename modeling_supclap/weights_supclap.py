"""Weights are read from the safetensors files of a checkpoint's own folder, and from no other file.

A pickle can run code when it is opened. Transformers opens no pickle where it is asked for safetensors, with one
exception: the index of a checkpoint in several files, and a field of its configuration, name any file they like, also
one outside the folder. So these names are checked before the weights are loaded.
"""

import json
from pathlib import Path
from typing import Any

from transformers.utils import cached_file


# The options of `from_pretrained` that say where the files of a checkpoint are.
LOCATION = ("cache_dir", "proxies", "token", "revision", "local_files_only", "subfolder", "_commit_hash")


def check_weight_files(checkpoint: str | Path, variant: str | None = None, **options) -> None:
    """Raises an error for a checkpoint that names weights which are no safetensors files of its own folder.

    The arguments are those of `from_pretrained`.
    """
    location = {key: options[key] for key in LOCATION if key in options}
    index = f"model.safetensors.index.{variant}.json" if variant else "model.safetensors.index.json"
    chosen = _read_json(checkpoint, "config.json", location).get("transformers_weights")
    if chosen is not None:  # this file takes the place of the weights, or of the index, under the usual name
        _check_name(
            checkpoint, chosen, "transformers_weights in config.json", (".safetensors", ".safetensors.index.json")
        )
        index = chosen if chosen.endswith(".json") else None
    if index is not None:
        for name in sorted(set(_read_json(checkpoint, index, location).get("weight_map", {}).values())):
            _check_name(checkpoint, name, index, (".safetensors",))


def _check_name(checkpoint: str | Path, name: str, where: str, endings: tuple[str, ...]) -> None:
    if Path(name).name != name or "\\" in name or not name.endswith(endings):
        raise ValueError(
            f"{checkpoint}: {where} names {name!r}, which is no safetensors file of that folder. Load the model where "
            "you trust it, and save it again."
        )


def _read_json(checkpoint: str | Path, name: str, location: dict[str, Any]) -> dict[str, Any]:
    """Returns the object in a JSON file of a checkpoint, or an empty one where there is no such file."""
    quiet = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
    try:
        path = cached_file(checkpoint, name, **location, **quiet)
    except OSError:  # neither a folder nor a Hub id, which loading the weights will say
        path = None
    return {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


class SafetensorsOnly:
    """Makes `from_pretrained` of a model class load safetensors alone, also where the caller asks for other files."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        if pretrained_model_name_or_path is not None:
            check_weight_files(pretrained_model_name_or_path, **kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **{**kwargs, "use_safetensors": True})


__all__ = ["SafetensorsOnly", "check_weight_files"]
