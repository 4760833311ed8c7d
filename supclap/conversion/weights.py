"""Published weights from files, and into modules without a key left over."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch


# Names of weights in a folder, in the order of preference.
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt", "pytorch_model.pt")
_INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Where training scripts put the weights among other things.
_WRAPPERS = ("model", "state_dict")
IN_PYTHON = "the loaders of supclap.conversion take the numbers of heads and layers as arguments."


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
                parts = _parts(path / name)
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


def _parts(index: Path) -> set[str]:
    """The files that the index of a checkpoint in parts names."""
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{index} is no index of weights ({error!r}). Get it again.") from error


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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{str(path)!r} cannot be read as weights: {reason}") from error
    for wrapper in _WRAPPERS:
        if isinstance(weights, dict) and isinstance(weights.get(wrapper), dict):
            weights = weights[wrapper]
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise ValueError(f"{str(path)!r} holds no plain dictionary of named tensors.")
    return weights


def renamed(name: str, pairs: Iterable[tuple[str, str]], back: bool = False) -> str:
    """A name with the first of each pair replaced by the second, or the other way round; other names as they are."""
    for first, second in pairs:
        name = name.replace(second, first) if back else name.replace(first, second)
    return name


@dataclass
class NamedWeights:
    """Published weights by our names, which errors call by those of their file.

    Attributes:
        tensors: By our names.
        source: What errors call the file.
        in_file: The name in the file of one of our names, also of a weight that the file lacks.
    """

    tensors: dict[str, torch.Tensor]
    source: str
    in_file: Callable[[str], str]

    @classmethod
    def renamed(
        cls,
        published: dict[str, torch.Tensor],
        source: str | Path,
        ours: Callable[[str], str],
        in_file: Callable[[str], str],
    ) -> "NamedWeights":
        """Weights under the names that `ours` gives.

        Raises:
            ValueError: Two of the file's names are one of ours.
        """
        names: dict[str, str] = {}
        for name in published:
            if (other := names.setdefault(ours(name), name)) != name:
                raise ValueError(f"{str(source)!r} has both {other} and {name}, which are one weight; remove one.")
        return cls({name: published[file] for name, file in names.items()}, str(source), in_file)

    def add(self, built: dict[str, torch.Tensor]) -> None:
        """Adds weights that were made from others of the file, by our names.

        Raises:
            ValueError: The file has a weight of such a name itself.
        """
        if twice := sorted(self.tensors.keys() & built.keys()):
            raise ValueError(f"{self.source!r}: unexpected {', '.join(map(self.in_file, twice))}.")
        self.tensors.update(built)

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Shape of a weight that sizes are read from.

        Raises:
            ValueError: It is missing, empty, or has another number of dimensions.
        """
        if name not in self.tensors:
            raise ValueError(f"{self.source!r} is not of this kind: it lacks {self.in_file(name)}.")
        shape = tuple(self.tensors[name].shape)
        if len(shape) != dimensions or 0 in shape:
            raise ValueError(f"{self.source!r}: {self.in_file(name)} has shape {shape} instead of {dimensions} sizes.")
        return shape

    def check_layers(self, prefix: str, number: int) -> None:
        """Raises a `ValueError` that names the layers `{prefix}N` which are missing from `number` or beyond it."""
        numbered = [re.match(rf"{re.escape(prefix)}(\d+)\.", name) for name in self.tensors]
        found = {int(match[1]) for match in numbered if match}
        wrong = [f"missing {self.in_file(f'{prefix}{layer}')}" for layer in sorted(set(range(number)) - found)]
        wrong += [f"unexpected {self.in_file(f'{prefix}{layer}')}" for layer in sorted(found - set(range(number)))]
        if wrong:
            raise ValueError(
                f"{self.source!r} should have {number} layers: {', '.join(wrong)}. Get the whole file again; for a model "
                f"of another depth, {IN_PYTHON}"
            )

    def load_into(self, module: torch.nn.Module, optional: Iterable[str] = ()) -> None:
        """Loads all weights into all of `module`, in the module's own types.

        Args:
            module: Gets the weights.
            optional: Our names that may be missing, of constants that the module computes.

        Raises:
            ValueError: A key is missing, unexpected, has another shape, or holds NaN or infinity; the message names
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
            raise ValueError(f"{self.source!r} does not fit {type(module).__name__}: {'; '.join(sorted(problems))}.")
        module.load_state_dict(self.tensors, strict=False)
        # after loading: a value may leave the range of the module's type
        if broken := sorted(self.in_file(name) for name, value in own.items() if not value.isfinite().all()):
            raise ValueError(f"{self.source!r}: {', '.join(broken)} should be finite and holds NaN or infinity.")


def take_number(weights: dict[str, torch.Tensor], name: str, source: str | Path) -> float:
    """Removes a weight that is a single finite number, and gives it.

    Raises:
        ValueError: It is missing, or no such number.
    """
    if name not in weights:
        raise ValueError(f"{str(source)!r} is not of this kind: it lacks {name}.")
    value = weights.pop(name)
    if value.numel() != 1 or not value.isfinite().all():
        shown = value.item() if value.numel() == 1 else f"of shape {tuple(value.shape)}"
        raise ValueError(f"{str(source)!r}: {name} should be one finite number and is {shown}.")
    return float(value)


def heads_of(width: int, given: int | None, source: str) -> int:
    """The number of attention heads, which weights do not tell: the one given, else as published, heads of 64.

    Raises:
        ValueError: The width does not divide into so many.
    """
    if given is None and width % 64:
        raise ValueError(f"{source!r}: published heads have a width of 64, and {width} is no multiple; {IN_PYTHON}")
    heads = width // 64 if given is None else given
    if heads < 1 or width % heads:
        raise ValueError(f"{source!r}: the width {width} does not divide into {heads} attention heads.")
    return heads
