"""Reads a recipe: a YAML file plus `--key value` words, each value checked by the annotation of its field.

`argparse` splits the command line, PyYAML reads the files (as YAML 1.2) and pydantic converts and checks the values. The
larger parsers do not fit what a recipe is. `HfArgumentParser` has no null, no ranges, no lists or mappings
on the command line and drops `Annotated`; OmegaConf knows no `Literal` and merges mappings, where a recipe replaces those
of its base; jsonargparse would do, with pydantic for the ranges as here, but each of its errors fills several lines and
it reads `no` as false, so that its messages and its YAML would have to be replaced: what is left of it is `argparse`.
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Sequence
from enum import EnumType
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from supclap.data.arguments import DataArguments
from supclap.data.field_types import checked
from supclap.errors import RecipeError, SettingsError, did_you_mean, name_some
from supclap.files import parse_yaml
from supclap.recipes.arguments import SECTIONS, ModelArguments
from supclap.training.arguments import SupClapTrainingArguments


class Key(NamedTuple):
    """A key of a recipe: the section that it belongs into, and what its values may be."""

    section: str
    kind: Any


@cache
def keys() -> dict[str, Key]:
    """Every key of a recipe, by its name; names are unique over all sections."""
    found = {}
    for section, arguments in SECTIONS.items():
        hints = typing.get_type_hints(arguments, include_extras=True)
        for item in dataclasses.fields(arguments):
            if item.init:
                found[item.name] = Key(section, _annotation(item, hints[item.name]))
    return found


def _annotation(item: dataclasses.Field, kind: Any) -> Any:
    """The annotation of a field. `TrainingArguments` says choices in the metadata, or as `SomeEnum | str`."""
    if choices := item.metadata.get("choices"):
        chosen = Literal[tuple(choices)]
        return chosen | None if type(None) in _options(kind) else chosen
    return next((option for option in _options(kind) if isinstance(option, EnumType)), kind)


def _options(kind: Any) -> tuple:
    """The types of a union, or the one type."""
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    return typing.get_args(kind) if is_union else (kind,)


def _read(word: str, kind: Any) -> Any:
    """The value of a word of the command line: as it stands where a text is asked for, else as YAML says."""
    if word == "null" and type(None) in _options(kind):
        return None
    plain = {option.__origin__ if typing.get_origin(option) is Annotated else option for option in _options(kind)}
    return word if plain <= {str, type(None)} else parse_yaml(word)


def recipes_folder() -> Path:
    """The folder of the recipes that come with the package: of the wheel, or `configs/` of a checkout."""
    installed = Path(str(files("supclap.recipes"))) / "configs"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "configs"


def bundled_recipes() -> list[str]:
    """Names of the recipes that come with the package, such as `quickstart` and `paper/clotho_infonce`."""
    folder = recipes_folder()
    found = [path for pattern in ("*.yaml", "study/*.yaml", "paper/*.yaml") for path in sorted(folder.glob(pattern))]
    return [path.relative_to(folder).with_suffix("").as_posix() for path in found]


def find_recipe(name: str) -> Path:
    """The file of a recipe: the path as it stands where there is one, else the bundled recipe of that name.

    Raises:
        RecipeError: There is neither; the bundled recipes are named.
    """
    path = Path(name)
    if path.is_file():
        return path
    if name in bundled_recipes():
        return recipes_folder() / f"{name}.yaml"
    raise RecipeError(f"no recipe at {name!r}, nor one of that name in configs/: {name_some(bundled_recipes())}.")


def _with_bases(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[Path, dict]]:
    """The file and what it is based on, each with its sections, in the order in which they apply."""
    if not path.is_file():
        raise RecipeError(f"no recipe at {str(path)!r}, a base of {above[-1]}.")
    if path.resolve() in [file.resolve() for file in above]:
        raise RecipeError(f"recipes are based on each other: {' -> '.join(map(str, [*above, path]))}.")
    try:
        recipe = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except ValueError as error:
        raise RecipeError(f"{path} is not YAML: {error}") from None
    if not isinstance(recipe, dict):
        raise RecipeError(f"{path}: expected the sections {', '.join(SECTIONS)}, got {type(recipe).__name__}.")
    bases = recipe.pop("base", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise RecipeError(f"{path}: base must be a file or a list of files, got {bases!r}.")
    found = [file for base in bases for file in _with_bases(path.parent / base, (*above, path))]
    return [*found, (path, recipe)]


def _settings(path: Path, recipe: dict) -> dict[str, Any]:
    """The keys of one file with their values, out of their sections."""
    settings = {}
    for section, content in recipe.items():
        if section not in SECTIONS:
            raise _unknown_key(section, [*SECTIONS, "base"], str(path))
        if not isinstance(content or {}, dict):
            raise RecipeError(f"{path}: section {section!r} must be a mapping of keys, got {content!r}.")
        for key, value in (content or {}).items():
            if key in keys() and keys()[key].section != section:
                raise RecipeError(
                    f"{path}: {key!r} belongs into the section {keys()[key].section!r}, not {section!r}."
                )
            settings[key] = _checked(key, value, f"{path}, section {section}")
    return settings


class _CommandLine(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"command line: {message}; a value that begins with a hyphen is written --key=-value.")


def _overrides(words: Sequence[str]) -> dict[str, Any]:
    """The keys of the command line with their values."""
    command_line = _CommandLine(add_help=False, allow_abbrev=False)
    for key in keys():
        spellings = dict.fromkeys([f"--{key}", f"--{key.replace('_', '-')}"])
        command_line.add_argument(*spellings, dest=key, default=argparse.SUPPRESS, metavar="VALUE")
    overrides, rest = command_line.parse_known_args(words)
    for word in rest:
        if not word.startswith("--"):
            raise RecipeError(f"command line: expected --key value, got {word!r}.")
        raise _unknown_key(word[2:].partition("=")[0], [*keys(), "dry-run"], "command line")
    settings = {}
    for key, word in vars(overrides).items():
        try:
            value = _read(word, keys()[key].kind)
        except ValueError as error:
            raise RecipeError(f"command line: {key} {word!r} is not YAML: {error}") from None
        settings[key] = _checked(key, value, "command line")
    return settings


def _unknown_key(key: str, known: Sequence[str], where: str) -> RecipeError:
    return RecipeError(f"{where}: unknown key {key!r}; {did_you_mean(key, known)}")


def _checked(key: str, value: Any, where: str) -> Any:
    if key not in keys():
        raise _unknown_key(key, list(keys()), where)
    try:
        return checked(key, value, keys()[key].kind)
    except SettingsError as error:
        raise RecipeError(f"{where}: {error}") from None


def parse_recipe(argv: Sequence[str]) -> tuple[ModelArguments, DataArguments, SupClapTrainingArguments]:
    """Reads `RECIPE [--key value …]`.

    RECIPE is a file or the name of a bundled recipe. A file has the sections `model`, `data` and `training`; the keys
    are unique over all sections, so an override needs no section. A value on the command line is read as YAML, but for
    a key that takes a text, whose word is taken as it stands. `base` names other recipes, relative to the file, that
    this one changes: of several files that set a key the last one counts, and the file itself comes after its bases.

    Raises:
        RecipeError: A file is missing, not a mapping or its own base, a key is unknown (the nearest right one is
            named) or in the wrong section, or a value is not what the annotation of its field allows.
    """
    if not argv or argv[0].startswith("--"):
        raise RecipeError("usage: supclap train RECIPE [--key value …]; recipes are in configs/, -h tells more.")
    path = find_recipe(argv[0])
    settings: dict[str, Any] = {}
    for file, recipe in _with_bases(path):
        settings |= _settings(file, recipe)
    overrides = _overrides(argv[1:])
    if path != Path(argv[0]) and "data_dir" not in overrides:
        _check_data_is_here(argv[0], settings.get("data_dir"))
    settings |= overrides
    return tuple(_build(section, settings, path) for section in SECTIONS)


def _check_data_is_here(name: str, folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise RecipeError(
            f"{name}: its data_dir {folder!r} is not here, and the installed package holds the recipe alone. Start it in "
            f"a clone of the project, which has {folder}, or name a folder of your own with --data_dir."
        )


def _build(section: str, settings: dict[str, Any], path: Path) -> Any:
    own = {key: value for key, value in settings.items() if keys()[key].section == section}
    try:
        return SECTIONS[section](**own)
    except (TypeError, ValueError, ImportError) as error:
        raise RecipeError(f"{path}: {error}") from error
