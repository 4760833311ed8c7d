"""Names of the files that a run leaves, YAML, and files that are written whole or not at all."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from supclap.errors import DataError


# What a training run leaves in its folder.
RECIPE = "recipe.json"  # the settings that it ran with
RESULTS = "results.json"  # the scores of its test data; an evaluation writes the same
RUN = "run.json"  # data, machine, time and versions
MANIFEST = "data_manifest.json"  # which clips and captions it read
DRIFT = "drift.jsonl"
TRAINING_CURVES = "training_curves.png"
CARD = "README.md"

CONFIG = "config.json"
PROCESSOR = "processor_config.json"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`, which takes the place of `path` when the block ends well.

    A reader, and a run that was killed at any moment, finds either the old file (or folder) or the new one, never a part.
    The name holds the process id, so that several processes that write the same file do not disturb each other.
    After an error nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    _remove(part)  # a process that had the same id may have left one
    try:
        yield part
        flush(part)
        os.replace(part, path)
    except BaseException:
        _remove(part)
        raise


def check_is_new(folder: str | Path) -> None:
    """Raises a `FileExistsError` where a folder to be written exists already, unless it is empty."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists already; choose another folder or remove it.")


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file whole or not at all; a text is written as UTF-8."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: str | Path, content: Any, indent: int | None = 1) -> None:
    """Writes JSON whole or not at all."""
    write_whole(path, json.dumps(content, indent=indent, ensure_ascii=False))


def read_json_object(path: str | Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: The file is damaged, or holds something else than an object; the message names it.
        FileNotFoundError: There is no such file.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}. Restore or remove it.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {type(content).__name__}, not an object. Restore or remove it.")
    return content


class _Yaml12Loader(yaml.SafeLoader):
    """YAML whose plain words mean what the core schema of YAML 1.2 says.

    PyYAML reads YAML 1.1, where `no` is false, `010` is 8, `12:30` is 750, `2024-01-01` a date and `1e-4` a text.
    """

    yaml_implicit_resolvers: dict = {}


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Yaml12Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
_Yaml12Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def parse_yaml(text: str) -> Any:
    """What a text in YAML 1.2 holds: `no` is a word, and only `true` and `false` are booleans.

    Raises:
        ValueError: It is not YAML; the message is one line that says where.
    """
    try:
        return yaml.load(text, _Yaml12Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise ValueError(f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}") from None
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def flush(path: Path) -> None:
    """Waits until a file, or a folder with all that it holds, is on the disk.

    Without this, a power cut after the rename may leave an empty file under the new name.
    """
    for each in (*path.rglob("*"), path):
        flush_entry(each)


def flush_entry(path: Path) -> None:
    """Waits until one file, or the list of names in one folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
