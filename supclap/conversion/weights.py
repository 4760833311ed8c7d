"""Reads published weights from files, and loads them into modules without a key left over."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import TypeVar

import torch

from supclap.errors import ConversionError
from supclap.files import read_json_object


Module = TypeVar("Module", bound=torch.nn.Module)
# The file of weights in a folder is the first of these that is there.
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt", "pytorch_model.pt")
_INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Training scripts save the weights beside other things, under one of these names.
_WRAPPERS = ("model", "state_dict")
# The end of a message about a size that the command line has no option for.
IN_PYTHON = "the loaders of supclap.conversion take the numbers of heads and layers as arguments."


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """Reads the weights of a `.safetensors`, `.pt` or `.bin` file, or of a folder with one, or with an index and its parts.

    Pickled files are read without running code from them (`weights_only`).
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        found = [path / name for name in (*_INDEX_FILES, *_WEIGHT_FILES) if (path / name).is_file()]
        if not found:
            raise FileNotFoundError(f"No weights in the folder {str(path)!r}; expected {', '.join(_WEIGHT_FILES)}.")
        files = _parts(found[0]) if found[0].name in _INDEX_FILES else found[:1]
    elif not path.is_file():
        raise FileNotFoundError(
            f"No checkpoint at {str(path)!r}; expected a folder or a .safetensors, .pt or .bin file."
        )
    return {key: value for file in files for key, value in _read_file(file).items()}


def _parts(index: Path) -> list[Path]:
    """Returns the files that the index of a checkpoint in parts names, all of which lie beside it."""
    try:
        parts = sorted(set(read_json_object(index)["weight_map"].values()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConversionError(f"{index} is no index of weights ({error!r}). Get it again.") from error
    outside = [part for part in parts if Path(part).name != part]
    if outside:
        raise ConversionError(f"{index} names {outside[0]!r}, a file outside its folder.")
    return [index.with_name(part) for part in parts]


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # torch's own message advises to open it in the way that runs code
        raise ConversionError(
            f"{str(path)!r} cannot be read as weights: it is damaged, or holds more than tensors, which is not opened "
            "because it can run code. Take a file of tensors alone, best as safetensors."
        ) from error
    except Exception as error:  # a damaged file has other errors in each format
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConversionError(f"{str(path)!r} cannot be read as weights: {reason}") from error
    for wrapper in _WRAPPERS:
        if isinstance(weights, dict) and isinstance(weights.get(wrapper), dict):
            weights = weights[wrapper]
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise ConversionError(f"{str(path)!r} holds no plain dictionary of named tensors.")
    return weights


class NamedWeights:
    """Published weights by our names. Error messages call each by its name in the file.

    A name in the file becomes ours by removing a prefix, where it is there, and by replacing parts of it. The way back
    also gives the name that a weight would have which the file lacks.

    Args:
        published: The weights by their names in the file; `tensors` has them by our names.
        source: What errors call the file.
        prefix: What stands before the names in the file.
        parts: Pairs of a part of a name in the file and what takes its place.
    """

    def __init__(
        self,
        published: dict[str, torch.Tensor],
        source: str | Path,
        prefix: str = "",
        parts: Sequence[tuple[str, str]] = (),
    ):
        self.source, self.prefix, self.parts = str(source), prefix, parts
        self.names: dict[str, str] = {}
        for name in published:
            ours = name.removeprefix(prefix)
            for theirs, our in parts:
                ours = ours.replace(theirs, our)
            if (other := self.names.setdefault(ours, name)) != name:
                raise ConversionError(
                    f"{self.source!r} has both {other} and {name}, which are one weight; remove one."
                )
        self.tensors = {name: published[file] for name, file in self.names.items()}

    def in_file(self, name: str) -> str:
        """Returns the name in the file of one of our names."""
        if name in self.names:
            return self.names[name]
        for theirs, ours in self.parts:
            name = name.replace(ours, theirs)
        return self.prefix + name

    def add(self, built: dict[str, torch.Tensor]) -> None:
        """Adds weights by our names that were made from other weights, unless the file has such a name itself."""
        if twice := sorted(self.tensors.keys() & built.keys()):
            raise ConversionError(f"{self.source!r}: unexpected {', '.join(map(self.in_file, twice))}.")
        self.tensors.update(built)

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Returns the shape of a weight that tells sizes of the model, or raises an error where it cannot tell them."""
        if name not in self.tensors:
            raise ConversionError(f"{self.source!r} is not of this kind: it lacks {self.in_file(name)}.")
        shape = tuple(self.tensors[name].shape)
        if len(shape) != dimensions or 0 in shape:
            raise ConversionError(
                f"{self.source!r}: {self.in_file(name)} has shape {shape} instead of {dimensions} sizes."
            )
        return shape

    def check_layers(self, prefix: str, number: int) -> None:
        """Raises an error that names each layer `{prefix}N` which is missing, or which lies beyond the `number` of layers."""
        numbered = [re.match(rf"{re.escape(prefix)}(\d+)\.", name) for name in self.tensors]
        found = {int(match[1]) for match in numbered if match}
        wrong = [f"missing {self.in_file(f'{prefix}{layer}')}" for layer in sorted(set(range(number)) - found)]
        wrong += [f"unexpected {self.in_file(f'{prefix}{layer}')}" for layer in sorted(found - set(range(number)))]
        if wrong:
            raise ConversionError(
                f"{self.source!r} should have {number} layers: {', '.join(wrong)}. Get the whole file again; for a model "
                f"of another depth, {IN_PYTHON}"
            )

    def load_into(self, module: Module, optional: Iterable[str] = ()) -> Module:
        """Loads all weights into all of `module`, in the module's own types, and returns it in evaluation mode.

        Args:
            module: The module.
            optional: Our names of weights that may be missing: constants that the module computes.

        Raises:
            ConversionError: A key is missing, unexpected, has another shape, or holds NaN or infinity; the message names
                each.
        """
        own = module.state_dict()
        problems = [f"missing {self.in_file(name)}" for name in own.keys() - self.tensors.keys() - set(optional)]
        problems += [f"unexpected {self.in_file(name)}" for name in self.tensors.keys() - own.keys()]
        problems += [
            f"{self.in_file(name)} has shape {tuple(self.tensors[name].shape)} instead of {tuple(own[name].shape)}"
            for name in own.keys() & self.tensors.keys()
            if own[name].shape != self.tensors[name].shape
        ]
        if problems:
            raise ConversionError(
                f"{self.source!r} does not fit {type(module).__name__}: {'; '.join(sorted(problems))}."
            )
        module.load_state_dict(self.tensors, strict=False)
        # This is checked after loading, because a value may lie outside the range of the module's type.
        if broken := sorted(self.in_file(name) for name, value in own.items() if not value.isfinite().all()):
            raise ConversionError(f"{self.source!r}: {', '.join(broken)} should be finite and holds NaN or infinity.")
        return module.eval()


def take_number(weights: dict[str, torch.Tensor], name: str, source: str | Path) -> float:
    """Removes a weight, which has to be a single finite number, and returns it."""
    if name not in weights:
        raise ConversionError(f"{str(source)!r} is not of this kind: it lacks {name}.")
    value = weights.pop(name)
    if value.numel() != 1 or not value.isfinite().all():
        shown = value.item() if value.numel() == 1 else f"of shape {tuple(value.shape)}"
        raise ConversionError(f"{str(source)!r}: {name} should be one finite number and is {shown}.")
    return float(value)


def heads_of(width: int, given: int | None, source: str) -> int:
    """Returns the number of attention heads, which weights do not tell: the given one, else that of heads 64 wide."""
    if given is None and width % 64:
        raise ConversionError(
            f"{source!r}: published heads have a width of 64, and {width} is no multiple; {IN_PYTHON}"
        )
    heads = width // 64 if given is None else given
    if heads < 1 or width % heads:
        raise ConversionError(f"{source!r}: the width {width} does not divide into {heads} attention heads.")
    return heads
