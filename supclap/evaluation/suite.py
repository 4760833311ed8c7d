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
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from supclap.errors import DataError, DataNotFoundError, SuiteError, did_you_mean
from supclap.evaluation.retrieval import DEFAULT_PROTOCOL, PROTOCOLS
from supclap.evaluation.zero_shot import DEFAULT_TEMPLATES


KINDS = ("retrieval", "zero_shot", "mteb")
BUILT_IN = Path(__file__).parent / "suites"
# options of a corpus that are load_corpus's own
LOADER_OPTIONS = ("skip_bad", "exclude_leaks_of", "leak_lists")


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
    if task.corpus == "hub":
        return f"the data set {task.data_dir!r}, of the Hub or a folder"
    return f"your {task.corpus or 'table'} {task.table or ''}".rstrip()


@dataclass(frozen=True)
class Task:
    """One entry of a suite. Its rows are those of a `corpus` that `supclap.data` knows or of a `table` of yours, or given.

    Attributes:
        name: What tables and files call it; unique in its suite.
        kind: `retrieval`; `zero_shot`, by `label` or `labels` of the rows; or `mteb`, a task of that library.
        corpus: Name of a corpus.
        table: CSV, JSON-lines or Parquet file in `data_dir`, relative to it.
        data_dir: Folder of the data, relative to the root of all data; the name of the corpus when omitted. Of the
            corpus `hub` also the id of a data set of the Hub.
        split: Split of a corpus, or several; a fold is a split.
        options: Further arguments of the corpus's loader.
        where: Keeps those rows of a table whose columns have one of the values listed.
        audio_column: Column of a table with the file, relative to the table.
        caption_columns: Columns of a table with captions; a classification needs none.
        label_column: Column of a table with the label, or a list of any number of labels, which is scored by mAP.
        languages: Retrieval once for each of these languages, with the captions in it, and the mean over them.
        pool_size: Retrieval within pools of so many clips, as in
            [`~supclap.evaluation.retrieval.retrieval_ranks`]; among all clips when omitted.
        protocol: Of a retrieval, `text` (equal texts are one item) or `index` (each caption belongs to one clip only); see
            [`supclap.evaluation.retrieval`].
        language: Language of labels and templates, for multilingual encoders.
        templates: Prompts of a label; their embeddings are averaged.
        labels: The classes, of which a label of the rows may be the index; those that occur in the rows, in order of
            the alphabet, when omitted.
        spelling: How a prompt spells a label, where not as it stands with spaces for underscores.
        expected_clips: Size of the official set, said beside the number of clips found.
        expected_labels: Its number of classes.
        mteb_task: Name of a task of mteb.
        rows: The rows themselves, in place of a corpus or table; not for a file. `data_dir` then says what they are.
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
    pool_size: int | None = None
    protocol: str = DEFAULT_PROTOCOL
    language: str | None = None
    templates: list = field(default_factory=lambda: list(DEFAULT_TEMPLATES))
    labels: list = field(default_factory=list)
    spelling: dict = field(default_factory=dict)
    expected_clips: int | None = None
    expected_labels: int | None = None
    mteb_task: str | None = None
    rows: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}.")
        sources = {"corpus": self.corpus, "table": self.table, "mteb_task": self.mteb_task, "rows": self.rows}
        given = [name for name, value in sources.items() if value is not None]
        allowed = ["mteb_task"] if self.kind == "mteb" else ["corpus", "table"]
        if len(given) != 1 or given[0] not in (*allowed, "rows"):
            raise ValueError(f"a task of kind {self.kind} needs {' or '.join(allowed)}, got {given or 'neither'}.")
        if self.table and self.kind == "retrieval" and not self.caption_columns:
            raise ValueError("caption_columns names the columns of the table with captions; it is missing.")
        if self.table and self.kind == "zero_shot" and not self.label_column:
            raise ValueError("label_column names the column of the table with the label; it is missing.")
        if self.pool_size is not None and (self.kind != "retrieval" or self.pool_size < 1):
            raise ValueError(f"pool_size is a number of clips in a retrieval, at least 1; got {self.pool_size}.")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}.")
        if self.protocol != DEFAULT_PROTOCOL and self.kind != "retrieval":
            raise ValueError(f"protocol is one of a retrieval; a task of kind {self.kind} has none.")
        for template in self.templates:
            if not isinstance(template, str) or "{}" not in template:
                raise ValueError(f"templates: {template!r} lacks {{}}, where the label goes.")

    @property
    def data(self) -> str | None:
        """What results call the data."""
        return self.corpus or self.table or self.data_dir


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
    name = str(content.get("name", path.stem))
    if name in ("", ".", "..") or any(part in name for part in "/\\:"):
        raise SuiteError(f"{path}: the name {name!r} must be usable as the name of a folder, which results go to.")
    return Suite(name, tasks, content.get("description", ""), path.parent)


def _task(entry: Any, where: str) -> Task:
    fields = {item.name for item in dataclasses.fields(Task)} - {"rows"}
    if not isinstance(entry, dict) or not {"name", "kind"} <= entry.keys():
        raise SuiteError(f"{where}: expected a mapping with at least `name` and `kind`, got {entry!r}.")
    hints = typing.get_type_hints(Task)
    for key, value in entry.items():
        if key not in fields:
            raise SuiteError(f"{where}: unknown key {key!r}; {did_you_mean(key, sorted(fields))}")
        allowed = typing.get_args(hints[key]) if isinstance(hints[key], types.UnionType) else (hints[key],)
        if not isinstance(value, allowed) or isinstance(value, bool):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise SuiteError(f"{where}: {key} must be {names}, got {value!r}.")
    if not entry["name"] or any(part in entry["name"] for part in "/\\:"):
        raise SuiteError(f"{where}: the name {entry['name']!r} must be usable as a file name.")
    try:
        task = Task(**entry)
        _check_corpus(task)
    except ValueError as error:
        raise SuiteError(f"{where} ({entry['name']}): {error}") from None
    return task


def _check_corpus(task: Task) -> None:
    """Refuses what is no corpus, option or split of it, whether or not its data are here."""
    from supclap.data.corpora import corpus_loader, split_name

    if task.corpus is None:
        if task.options:
            raise ValueError("options are those of a corpus; a table has none.")
        return
    corpus_loader(task.corpus, {key: value for key, value in task.options.items() if key not in LOADER_OPTIONS})
    for split in _splits(task):
        split_name(task.corpus, split)
    if task.where:
        raise ValueError("where chooses rows of a table; of a corpus name the split.")
    if task.corpus == "hub" and not task.data_dir:
        raise ValueError("data_dir is missing: the id of a data set of the Hub (owner/name), or its folder.")


def _splits(task: Task) -> list:
    return task.split if isinstance(task.split, list) else [task.split]


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
        DataNotFoundError: The folder, or a file of it, is not there.
        ValueError: The data are there and unusable.
    """
    from supclap.data.inspection import drop_undecodable

    if task.rows is not None:
        return task.rows
    folder = _folder(task, root)
    if task.corpus == "hub" and not folder.exists():
        folder = Path(task.data_dir)  # an id of the Hub
    elif not folder.exists():
        raise DataNotFoundError(f"data not found at {folder}")
    if task.table is not None:
        rows = _table_rows(task, folder / task.table, skip_bad)
        return drop_undecodable(rows, task.name, skip_bad) if skip_bad else rows
    if load_corpus is None:
        from supclap.data.corpora import load_corpus
    try:
        options = task.options | ({"skip_bad": True} if skip_bad else {})
        rows = load_corpus(task.corpus, folder, split=task.split, **options)
    except FileNotFoundError as error:
        raise DataNotFoundError(f"data not found at {folder}: {error}") from error
    except DataError as error:
        if task.corpus == "hub" and isinstance(error.__cause__, OSError):  # no network, no such repository
            raise DataNotFoundError(str(error).splitlines()[0]) from error
        raise
    if not len(rows):
        raise ValueError(f"{task.corpus} at {folder} has no rows in the split {task.split!r}.")
    return drop_undecodable(rows, task.name, skip_bad) if skip_bad else rows


def _folder(task: Task, root: Path) -> Path:
    return root / (task.data_dir or task.corpus or ".")


def load_rows_of_languages(
    task: Task, root: Path, load_corpus: Callable[..., Sequence[dict]] | None = None, skip_bad: bool = False
) -> tuple[Sequence[dict], dict[str, str]]:
    """As [`load_rows`], but of a task in several languages those that are there, and why each of the others is not.

    Raises:
        DataNotFoundError: No language is there.
        ValueError: The data are there and unusable.
    """
    try:
        return load_rows(task, root, load_corpus, skip_bad), {}
    except DataNotFoundError:
        languages = task.options.get("languages", [])
        if len(languages) < 2:
            raise
    absent = {}
    for language in languages:
        try:
            load_rows(_in_languages(task, [language]), root, load_corpus)
        except DataNotFoundError as error:
            absent[language] = str(error)
        except ValueError:
            pass  # it is there, and what is wrong with it is said below
    there = [language for language in languages if language not in absent]
    if not there:
        raise DataNotFoundError(absent[languages[0]])
    return load_rows(_in_languages(task, there), root, load_corpus, skip_bad), absent


def _in_languages(task: Task, languages: list) -> Task:
    return replace(task, options=task.options | {"languages": languages})


def check_tables(suite: Suite, root: Path) -> None:
    """Looks up the columns that tasks name in those tables that are there, before anything is embedded.

    Raises:
        SuiteError: A table lacks a column, or has no row that `where` keeps; the message names the task.
    """
    from supclap.data.tables import read_table

    for task in suite.tasks:
        path = _folder(task, root) / (task.table or "")
        if task.table and path.is_file():
            with suppress(DataError):  # a torn table fails its own task only
                _select_records(task, read_table(path), path)


def _select_records(task: Task, table: list[dict], path: Path) -> list[dict]:
    """The records that `where` keeps.

    Raises:
        SuiteError: See [`check_tables`].
    """
    from supclap.data.tables import columns_of

    columns = columns_of(table)
    where = f"task {task.name}: {path}"
    for column in [task.audio_column, *task.caption_columns, task.label_column, *task.where]:
        if column is not None and column not in columns:
            raise SuiteError(f"{where} has no column {column!r}; its columns are {sorted(columns)}.")
    for column, values in task.where.items():
        wanted = {str(value) for value in (values if isinstance(values, list) else [values])}
        there = sorted({str(record.get(column)) for record in table})
        table = [record for record in table if str(record.get(column)) in wanted]
        if not table:
            raise SuiteError(f"{where}: no row has {column} in {sorted(wanted)}; there are {', '.join(there[:20])}.")
    return table


def _table_rows(task: Task, path: Path, skip_bad: bool) -> Sequence[dict]:
    from supclap.data.columns import ColumnMapping
    from supclap.data.rows import accept_rows
    from supclap.data.tables import clip_id, read_table, table_rows

    if not path.is_file():
        raise DataNotFoundError(f"data not found at {path}")
    table = _select_records(task, read_table(path), path)
    columns = ColumnMapping(task.audio_column, task.caption_columns)
    records: dict[str, dict] = {}
    for number, record in enumerate(table):
        records.setdefault(clip_id(record, columns, number), record)
    rows = table_rows(table, path, columns)

    def complete() -> Iterator[dict]:
        for row in rows:
            if records[row["id"]].get("fold") not in (None, ""):
                row["fold"] = records[row["id"]]["fold"]
            yield row

    completed = complete() if task.kind == "retrieval" else _labelled(complete(), task, records, str(path))
    return accept_rows(completed, str(path), str(path.parent), skip_bad)


def _labelled(rows: Iterator[dict], task: Task, records: Mapping[str, dict], where: str) -> Iterator[dict]:
    """Rows with the `label` of their records; with `labels` where any of them is a list.

    Raises:
        DataError: A row has no label.
    """
    from supclap.data.labels import LABEL_TEMPLATE, label_caption, label_of

    cells = {clip: _label_cell(record.get(task.label_column)) for clip, record in records.items()}
    has_several = any(isinstance(cell, list) for cell in cells.values())
    names = set(map(str, task.labels))

    def target(value: Any) -> str | int | None:
        label = label_of(value)
        return value if type(value) is int and names and label not in names else label

    for row in rows:
        cell = cells[row["id"]]
        values = [target(value) for value in (cell if isinstance(cell, list) else [cell])]
        if None in values:
            raise DataError(
                f"{where}, row {row['id']!r}: {task.label_column} is {cell!r}, which is no label. Give it one, or leave "
                "such rows out with `where`."
            )
        # the classes are no captions; a caption there must be, for rows are accepted by it
        row["captions"] = label_caption(LABEL_TEMPLATE, list(map(str, values)) or ["no class"])
        row |= {"labels": values} if has_several else {"label": values[0]}
        yield row


def _label_cell(cell: Any) -> Any:
    """A cell, or the list that it holds; CSV holds one as JSON."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with suppress(json.JSONDecodeError):
            return json.loads(cell)
    return list(cell) if isinstance(cell, tuple) else cell
