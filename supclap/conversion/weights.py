"""Published weights from files, and into modules without a key left over."""

import json
from collections.abc import Iterable
from pathlib import Path
from pickle import UnpicklingError

import torch


# Names of weights in a folder, in the order of preference.
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt", "pytorch_model.pt")
_INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Where training scripts put the weights among other things.
_WRAPPERS = ("model", "state_dict")


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """Reads the weights of a checkpoint: a `.safetensors`, `.pt` or `.bin` file, or a folder with one, or with parts.

    Pickled files are read without running code from them (`weights_only`).

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ValueError: The file is damaged, or holds something else than named tensors.
    """
    path = Path(path)
    if path.is_dir():
        for name in _INDEX_FILES:
            if (path / name).is_file():
                parts = set(json.loads((path / name).read_text(encoding="utf-8"))["weight_map"].values())
                outside = sorted(part for part in parts if Path(part).name != part)
                if outside:
                    raise ValueError(f"{path / name} names {outside[0]!r}, a file outside its folder.")
                return {key: value for part in sorted(parts) for key, value in _read_file(path / part).items()}
        files = [path / name for name in _WEIGHT_FILES if (path / name).is_file()]
        if not files:
            raise FileNotFoundError(f"No weights in the folder {str(path)!r}; expected {', '.join(_WEIGHT_FILES)}.")
        return _read_file(files[0])
    if not path.is_file():
        raise FileNotFoundError(
            f"No checkpoint at {str(path)!r}; expected a folder or a .safetensors, .pt or .bin file."
        )
    return _read_file(path)


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # torch's advice is to read it in the way that runs code
        raise ValueError(
            f"{str(path)!r} cannot be read as weights: it is damaged, or holds more than tensors, which is not opened "
            "because it can run code. Take a file of tensors alone, best as safetensors."
        ) from error
    except Exception as error:  # each format has errors of its own for a damaged file
        raise ValueError(f"{str(path)!r} cannot be read as weights: {str(error).splitlines()[0]}") from error
    for wrapper in _WRAPPERS:
        if isinstance(weights, dict) and isinstance(weights.get(wrapper), dict):
            weights = weights[wrapper]
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise ValueError(f"{str(path)!r} holds no plain dictionary of named tensors.")
    return weights


def require(weights: dict[str, torch.Tensor], names: Iterable[str], what: str) -> None:
    """Raises a `ValueError` that names the weights among `names` that are missing."""
    absent = [name for name in names if name not in weights]
    if absent:
        raise ValueError(f"{what}: it lacks {', '.join(absent)}.")


def load_strictly(
    module: torch.nn.Module, weights: dict[str, torch.Tensor], source: str | Path, optional: Iterable[str] = ()
) -> None:
    """Loads `weights` into `module`, all of both.

    Args:
        module: Gets the weights, in its own types.
        weights: By the module's names.
        source: What an error calls them.
        optional: Names that `weights` may lack, for constants that the module computes.

    Raises:
        ValueError: A key is missing, unexpected or has another shape; the message names each.
    """
    own = module.state_dict()
    problems = [f"missing {name}" for name in own.keys() - weights.keys() - set(optional)]
    problems += [f"unexpected {name}" for name in weights.keys() - own.keys()]
    problems += [
        f"{name} has shape {tuple(weights[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    if problems:
        raise ValueError(f"{str(source)!r} does not fit {type(module).__name__}: {'; '.join(sorted(problems))}.")
    module.load_state_dict(weights, strict=False)
