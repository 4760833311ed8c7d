"""Suites: which tasks an evaluation runs, read from a YAML file and checked.

The built-in suites are the files in `suites/`; your own has the same form:

```yaml
name: mine
tasks:
  - {name: street, kind: retrieval, table: test.csv, caption_columns: [caption]}
  - {name: esc50, kind: zero_shot, corpus: esc50, data_dir: ESC-50, templates: ["the sound of {}"]}
```
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supclap.evaluation.zero_shot import DEFAULT_TEMPLATES


KINDS = ("retrieval", "zero_shot", "mteb")
BUILT_IN = Path(__file__).parent / "suites"


class SuiteError(ValueError):
    """A suite that cannot be run; the message names the file, the task and the key."""


class DataNotFound(FileNotFoundError):
    """The data of a task are not on this machine; the message says where they were looked for."""


# where their authors publish the corpora
PUBLISHED = {
    "audiocaps": "https://github.com/cdjkim/audiocaps (captions; the clips are cut from YouTube)",
    "audioset": "https://research.google.com/audioset/download.html (lists; the clips are cut from YouTube)",
    "clotho": "https://zenodo.org/records/4783391",
    "esc10": "https://github.com/karolpiczak/ESC-50",
    "esc50": "https://github.com/karolpiczak/ESC-50",
    "fsd50k": "https://zenodo.org/records/4060432",
    "macs": "https://zenodo.org/records/5114771",
    "urbansound8k": "https://urbansounddataset.weebly.com/urbansound8k.html",
    "vggsound": "https://www.robots.ox.ac.uk/~vgg/data/vggsound/ (lists; the clips are cut from YouTube)",
    "wavcaps": "https://huggingface.co/datasets/cvssp/WavCaps",
}


def how_to_get(task: "Task") -> str:
    """What to download for a task whose data are missing, in a few words."""
    if task.kind == "mteb":
        return "mteb downloads it where the Hub can be reached"
    if task.corpus in PUBLISHED:
        return f"{task.corpus}: {PUBLISHED[task.corpus]}"
    return f"your {task.corpus or 'table'} {task.table or ''}".rstrip()


@dataclass(frozen=True)
class Task:
    """One entry of a suite. Where its rows come from: a `corpus` that `supclap.data` knows, or a `table` of your own.

    Attributes:
        name: What tables and files call it; unique in its suite.
        kind: `retrieval`; `zero_shot`, by `label` or `labels` of the rows; or `mteb`, a task of that library.
        corpus: Name of a corpus.
        table: CSV, JSON-lines or Parquet file in `data_dir`, relative to it.
        data_dir: Folder of the data, relative to the root of all data; the name of the corpus when omitted.
        split: Split of a corpus, or several; a fold is a split.
        options: Further arguments of the corpus's loader.
        where: Keeps those rows of a table whose columns have one of the values listed.
        audio_column: Column of a table with the file, relative to the table.
        caption_columns: Columns of a table with captions; a classification needs none.
        label_column: Column of a table with the label.
        languages: Retrieval once for each of these languages, with the captions in it, and the mean over them.
        language: Language of labels and templates, for multilingual encoders.
        templates: Prompts of a label; their embeddings are averaged.
        labels: The classes; those that occur in the rows, in order of the alphabet, when omitted.
        spelling: How a prompt spells a label, where not as it stands with spaces for underscores.
        expected_clips: Size of the official set, said beside the number of clips found.
        expected_labels: Its number of classes.
        mteb_task: Name of a task of mteb.
    """

    name: str
    kind: str
    corpus: str | None = None
    table: str | None = None
    data_dir: str | None = None
    split: str | int | list = "test"
    options: dict = field(default_factory=dict)
    where: dict = field(default_factory=dict)
    audio_column: str = "file_name"
    caption_columns: list = field(default_factory=list)
    label_column: str | None = None
    languages: list = field(default_factory=list)
    language: str | None = None
    templates: list = field(default_factory=lambda: list(DEFAULT_TEMPLATES))
    labels: list = field(default_factory=list)
    spelling: dict = field(default_factory=dict)
    expected_clips: int | None = None
    expected_labels: int | None = None
    mteb_task: str | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}.")
        sources = {"corpus": self.corpus, "table": self.table, "mteb_task": self.mteb_task}
        given = [name for name, value in sources.items() if value is not None]
        allowed = ["mteb_task"] if self.kind == "mteb" else ["corpus", "table"]
        if len(given) != 1 or given[0] not in allowed:
            raise ValueError(f"a task of kind {self.kind} needs {' or '.join(allowed)}, got {given or 'neither'}.")
        if self.table and self.kind == "retrieval" and not self.caption_columns:
            raise ValueError("caption_columns names the columns of the table with captions; it is missing.")
        if self.table and self.kind == "zero_shot" and not self.label_column:
            raise ValueError("label_column names the column of the table with the label; it is missing.")
        for template in self.templates:
            if not isinstance(template, str) or "{}" not in template:
                raise ValueError(f"templates: {template!r} lacks {{}}, where the label goes.")


@dataclass(frozen=True)
class Suite:
    """Tasks and their name; `folder` is where relative paths of a suite of yours start."""

    name: str
    tasks: tuple[Task, ...]
    description: str = ""
    folder: Path = Path()


def built_in_suites() -> list[str]:
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def load_suite(name: str | Path) -> Suite:
    """Reads a suite.

    Args:
        name: Name of a built-in suite, or the path of a YAML file.

    Raises:
        SuiteError: There is no such suite, or an entry of it is wrong.
    """
    import yaml

    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = BUILT_IN / f"{name}.yaml"
    if not path.is_file():
        raise SuiteError(f"no suite {str(name)!r}: it is no file, and built in are {', '.join(built_in_suites())}.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise SuiteError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("tasks"), list) or not content["tasks"]:
        raise SuiteError(f"{path}: expected `name` and `tasks`, a list with at least one task.")
    unknown = set(content) - {"name", "description", "tasks"}
    if unknown:
        raise SuiteError(f"{path}: unknown key {sorted(unknown)[0]!r}; known are name, description and tasks.")
    tasks = tuple(_task(entry, f"{path}, task {number}") for number, entry in enumerate(content["tasks"], start=1))
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SuiteError(f"{path}: two tasks are called {twice[0]!r}; results are filed by name.")
    return Suite(str(content.get("name", path.stem)), tasks, content.get("description", ""), path.parent)


def _task(entry: Any, where: str) -> Task:
    fields = {item.name for item in dataclasses.fields(Task)}
    if not isinstance(entry, dict) or not {"name", "kind"} <= entry.keys():
        raise SuiteError(f"{where}: expected a mapping with at least `name` and `kind`, got {entry!r}.")
    hints = typing.get_type_hints(Task)
    for key, value in entry.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(fields))}."
            raise SuiteError(f"{where}: unknown key {key!r}; {hint}")
        allowed = typing.get_args(hints[key]) if isinstance(hints[key], types.UnionType) else (hints[key],)
        if not isinstance(value, allowed) or isinstance(value, bool):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise SuiteError(f"{where}: {key} must be {names}, got {value!r}.")
    if not entry["name"] or any(part in entry["name"] for part in "/\\:"):
        raise SuiteError(f"{where}: the name {entry['name']!r} must be usable as a file name.")
    try:
        return Task(**entry)
    except ValueError as error:
        raise SuiteError(f"{where} ({entry['name']}): {error}") from None


def load_rows(
    task: Task, root: Path, load_corpus: Callable[..., Sequence[dict]] | None = None, skip_bad: bool = False
) -> Sequence[dict]:
    """The rows of a task, in the row format.

    Args:
        task: The task, of any kind but `mteb`.
        root: Where relative folders start.
        load_corpus: Called as `load_corpus(name, data_dir, split=..., **options)`; that of `supclap.data.corpora` when
            omitted.
        skip_bad: Whether to leave rows without usable audio out, which decodes all of it; `removed` of the rows lists them.

    Raises:
        DataNotFound: The folder, or a file of it, is not there.
        ValueError: The data are there and unusable.
    """
    from supclap.data.inspection import drop_undecodable

    folder = root / (task.data_dir or task.corpus or ".")
    if not folder.exists():
        raise DataNotFound(f"data not found at {folder}")
    if task.table is not None:
        rows = _table_rows(task, folder / task.table, skip_bad)
        return drop_undecodable(rows, task.name, skip_bad) if skip_bad else rows
    if load_corpus is None:
        from supclap.data.corpora import load_corpus
    try:
        skip = {"skip_bad": True} if skip_bad else {}
        rows = load_corpus(task.corpus, folder, split=task.split, **skip, **task.options)
    except FileNotFoundError as error:
        raise DataNotFound(f"data not found at {folder}: {error}") from error
    if not len(rows):
        raise ValueError(f"{task.corpus} at {folder} has no rows in the split {task.split!r}.")
    return drop_undecodable(rows, task.name, skip_bad) if skip_bad else rows


def _table_rows(task: Task, path: Path, skip_bad: bool) -> list[dict]:
    from supclap.config import DataArguments
    from supclap.data.sources import read_table, to_rows

    if not path.is_file():
        raise DataNotFound(f"data not found at {path}")
    table = read_table(path)
    for column, values in task.where.items():
        if column not in table[0]:
            raise ValueError(f"{path} has no column {column!r}; its columns are {sorted(table[0])}.")
        wanted = {str(value) for value in (values if isinstance(values, list) else [values])}
        table = [record for record in table if str(record[column]) in wanted]
        if not table:
            raise ValueError(f"{path}: no row has {column} in {sorted(wanted)}.")
    arguments = DataArguments(
        data_dir=str(path.parent),
        audio_column=task.audio_column,
        caption_columns=task.caption_columns or [task.label_column],
        label_column=task.label_column,
        skip_bad=skip_bad,
    )
    rows = to_rows(table, path.parent, arguments, str(path))
    records = {str(record.get("id") or record[task.audio_column]): record for record in table}
    for row in rows:
        record = records[str(row["id"])]
        row |= {key: record[key] for key in ("fold", "language") if record.get(key) and key not in row}
    return rows
