"""The rows of a recipe: from tables of your own, from a corpus, or from a mixture of corpora for training."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.errors import DataError

from .accept import accept_rows, as_they_are
from .corpora import default_splits, load_corpus
from .files import one_or_more
from .inspection import drop_undecodable
from .leaks import exclude_leaks
from .mixture import CorpusMixture
from .rows import Rows, removed_of, select, without_audio
from .stream_sources import UNLISTED, check_stream, stream_corpus, stream_listed
from .streaming import RowStream
from .tables import clip_id, columns_of, read_table, table_rows


if TYPE_CHECKING:
    from supclap.recipes.parser import DataArguments


EVALUATED = ("validation", "test")
TABLE_KEYS = ("train_file", "validation_file", "test_file", "split_column", "audio_column", "caption_columns")
TABLE_KEYS += ("label_column", "group_column", "label_captions")
PART_KEYS = ("corpus", "data_dir", "splits", "weight", "options")


def to_rows(table: list[dict], folder: Path, args: "DataArguments", name: str, keep_bad: bool = False) -> Rows:
    """A table in the row format; with `keep_bad` all rows as they stand.

    Raises:
        DataError: A column is missing, a label has no captions, or a file does not exist; the first 20 are named.
    """
    columns = columns_of(table)
    captions_from_label = args.label_captions is not None
    absent = [column for column in (args.group_column,) if column and column not in columns]
    if absent:
        raise DataError(f"{name} has no column {', '.join(map(repr, absent))}; its columns are {sorted(columns)}.")
    records = {clip_id(record, args.audio_column, number): record for number, record in enumerate(table)}
    label_captions = {str(label): captions for label, captions in (args.label_captions or {}).items()}

    def complete() -> Iterator[dict]:
        caption_columns = [] if captions_from_label else args.caption_columns
        rows = table_rows(table, folder / Path(name).name, args.audio_column, caption_columns, args.label_column)
        for index, row in enumerate(rows):
            if captions_from_label:
                label = row.get("label")
                if label is not None and label not in label_captions:
                    raise DataError(f"{name}, row {index}: label {label!r} has no entry in label_captions.")
                # the captions are the class's, so clips of a class are no negatives; without a class there are none
                row |= {"captions": one_or_more(label_captions.get(label, ())), "group": label}
            if args.group_column:
                recording = records[row["id"]].get(args.group_column)
                # a blank cell says nothing; as a value it would make all blank clips one recording
                row["recording"] = None if recording is None or not str(recording).strip() else recording
            yield row

    return as_they_are(complete()) if keep_bad else accept_rows(complete(), name, str(folder), args.skip_bad)


def load_splits(args: "DataArguments") -> dict[str, Sequence[dict] | RowStream]:
    """The rows of `train`, `validation` and `test`, as far as the arguments name them.

    Training rows of a recording that also occurs in validation or test are dropped and counted, and so are those on
    the leak lists of `exclude_leaks_of`. Audio that cannot be opened is an error, or with `skip_bad` left out. With
    `streaming`, `train` is a [`RowStream`], whose audio is not opened before it is trained on.
    """
    if args.streaming:
        check_stream(args)
    splits = _corpus_splits(args) if args.corpus is not None else _table_splits(args)
    held_out = {
        recording
        for split in EVALUATED
        for index in range(len(splits.get(split, ())))
        if (recording := without_audio(splits[split], index).get("recording")) not in (None, "")
    }
    if "train" in splits or args.corpora is not None:
        parts = {"train": splits["train"]} if args.corpora is None else _parts(args)
    else:
        parts = {"train": stream_corpus(args, held_out)}
    for name, rows in parts.items():
        if isinstance(rows, RowStream):
            continue
        rows = _without(rows, held_out)
        if args.exclude_leaks_of:
            folder = args.leak_lists or args.data_dir
            rows = exclude_leaks(rows, args.exclude_leaks_of, folder, name)
        if args.streaming:
            parts[name] = stream_listed(rows, Path(args.data_dir).resolve().name)
        else:
            parts[name] = drop_undecodable(rows, name, args.skip_bad)
    for split in EVALUATED:
        if split in splits:
            splits[split] = drop_undecodable(splits[split], split, args.skip_bad)
    if args.corpora is None:
        return splits | parts
    weights = {name: part.get("weight") for name, part in zip(parts, args.corpora, strict=True)}
    if any(weight is None for weight in weights.values()) and any(weights.values()):
        raise DataError("corpora: give each a weight, or none of them.")
    mixture = CorpusMixture(parts, weights if any(weights.values()) else None, args.epoch_size)
    return splits | {"train": mixture}


def splits_as_they_are(args: "DataArguments") -> dict[str, Sequence[dict]]:
    """The rows that a recipe starts from, unusable and leaking ones included, for `supclap data check`.

    A corpus of a mixture is a split of its own, in full.
    """
    args = dataclasses.replace(args, streaming=False)
    splits = _corpus_splits(args, keep_bad=True) if args.corpus is not None else _table_splits(args, keep_bad=True)
    if args.corpora is None:
        return splits
    return {**_parts(args, keep_bad=True), **{name: rows for name, rows in splits.items() if name in EVALUATED}}


def _table_splits(args: "DataArguments", keep_bad: bool = False) -> dict[str, Sequence[dict]]:
    if args.data_dir is None:
        raise DataError("data_dir is not set: name the folder of the clips, e.g. --data_dir path/to/clips.")
    folder = Path(args.data_dir)
    if not folder.is_dir():
        raise DataError(f"data_dir {str(folder)!r} is not a folder.")
    splits: dict[str, Sequence[dict]] = {}
    tables: dict[str, list[dict]] = {}
    for split in ("train", *EVALUATED):
        file = getattr(args, f"{split}_file")
        if file is None:
            continue
        path = folder / file
        table = tables.setdefault(file, read_table(path) if file not in tables else [])
        if args.split_column:
            wanted = {str(value) for value in one_or_more(getattr(args, f"{split}_splits") or [])}
            if args.split_column not in columns_of(table):
                raise DataError(
                    f"{path} has no column {args.split_column!r}; its columns are {sorted(columns_of(table))}."
                )
            there = sorted({str(record.get(args.split_column)) for record in table})
            table = [record for record in table if str(record.get(args.split_column)) in wanted]
            if not table:
                raise DataError(
                    f"{path}: no row has {args.split_column} in {sorted(wanted)}, named by {split}_splits; there are "
                    f"{there}. For no {split}, set {split}_file to null."
                )
        splits[split] = to_rows(table, path.parent, args, str(path), keep_bad)
    if "train" not in splits and args.corpora is None:
        raise DataError("train_file is not set: name the table of the training clips.")
    return splits


def _refuse_table_keys(args: "DataArguments") -> None:
    """Keys of a table do nothing next to a corpus, so that the run would not be what the recipe says."""
    keys = {field.name: field for field in dataclasses.fields(args) if field.name in TABLE_KEYS}
    defaults = {
        key: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for key, field in keys.items()
    }
    given = [key for key in TABLE_KEYS if getattr(args, key) not in (None, defaults[key])]
    if given:
        raise DataError(
            f"corpus is set ({args.corpus}), and so {'is' if len(given) == 1 else 'are'} {', '.join(given)}, which a "
            "table has and a corpus has not. Put what the corpus knows of it into corpus_options, and take the key out "
            "of the recipe."
        )


def _corpus_splits(args: "DataArguments", keep_bad: bool = False) -> dict[str, Sequence[dict]]:
    _refuse_table_keys(args)
    if args.data_dir is None:
        raise DataError(f"data_dir is not set: name the folder of {args.corpus}.")
    names = default_splits(args.corpus, args.data_dir)
    splits = {}
    later = args.corpora is not None or (args.streaming and args.corpus in UNLISTED)
    for split in ("train", *EVALUATED):
        chosen = getattr(args, f"{split}_splits") or names.get(split)
        if chosen and not (split == "train" and later):
            options = args.corpus_options or {}
            splits[split] = load_corpus(
                args.corpus, args.data_dir, chosen, args.skip_bad, keep_bad=keep_bad, **options
            )
    if "train" not in splits and not later:
        raise DataError(f"train_splits is not set: name the splits of {args.corpus} to train on, e.g. [1, 2, 3].")
    return splits


def _parts(args: "DataArguments", keep_bad: bool = False) -> dict[str, Sequence[dict]]:
    """The corpora of a mixture by name; two of one kind are told apart by their number."""
    parts = {}
    for number, part in enumerate(args.corpora):
        if not isinstance(part, dict) or not {"corpus", "data_dir"} <= set(part) or set(part) - set(PART_KEYS):
            raise DataError(
                f"corpora, entry {number}: needs corpus and data_dir, may have {PART_KEYS[2:]}; got {part}."
            )
        chosen = part.get("splits") or default_splits(part["corpus"], part["data_dir"]).get("train") or ["train"]
        name = part["corpus"] if part["corpus"] not in parts else f"{part['corpus']}-{number}"
        options = part.get("options") or {}
        parts[name] = load_corpus(
            part["corpus"], part["data_dir"], chosen, args.skip_bad, keep_bad=keep_bad, **options
        )
    if not parts:
        raise DataError("corpora is an empty list: name at least one corpus to train on.")
    return parts


def _without(rows: Sequence[dict], held_out: set) -> Sequence[dict]:
    """Rows whose recording is not held out for evaluation; those left out are noted, and said."""
    kept, leaks = [], []
    for index in range(len(rows)):
        row = without_audio(rows, index)
        if row.get("recording") in held_out:
            leaks.append({"id": row["id"], "reason": f"leak: {row['recording']} is in validation or test"})
        else:
            kept.append(index)
    if not leaks:
        return rows
    named = ", ".join(item["id"] for item in leaks[:20])
    print(f"dropped {len(leaks)} training clips whose recording is in validation or test: {named}")
    if not kept:
        raise DataError("Every training clip is cut from a recording of validation or test; nothing is left.")
    return select(rows, kept, [*removed_of(rows), *leaks])
