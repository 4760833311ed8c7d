"""The rows of a recipe: from tables of your own, from a corpus, or from a mixture of corpora for training.

[`load_splits`] is the way of a recipe's data to rows, in this order: the splits are found (`find_splits`), rows that
cannot be used are refused or left out (`UncheckedRows.checked`), then training rows that validation, test or a leak
list holds (`_without_leaks`), and last those whose audio does not open (`drop_undecodable`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.errors import DataError

from .columns import ColumnMapping, one_or_more
from .corpora import can_stream, default_splits, find_corpus
from .inspection import drop_undecodable
from .leaks import exclude_leaks, leaks_of, leave_out
from .mixture import CorpusMixture
from .rows import UncheckedRows, removed_of, without_audio
from .streaming import RowStream, stream_corpus, stream_rows
from .tables import clip_id, columns_of, read_table, table_rows


if TYPE_CHECKING:
    from .arguments import DataArguments


EVALUATED = ("validation", "test")
TABLE_KEYS = ("train_file", "validation_file", "test_file", "split_column", "audio_column", "caption_columns")
TABLE_KEYS += ("label_column", "group_column", "label_captions")
PART_KEYS = ("corpus", "data_dir", "splits", "weight", "options")


def load_splits(args: "DataArguments") -> dict[str, Sequence[dict] | RowStream]:
    """The rows of `train`, `validation` and `test`, as far as the arguments name them.

    Training rows of a recording that also occurs in validation or test are dropped and counted, and so are those on
    the leak lists of `exclude_leaks_of`. Audio that cannot be opened is an error, or with `skip_bad` left out. With
    `streaming`, `train` is a [`RowStream`], whose audio is not opened before it is trained on.

    Raises:
        DataError: The arguments do not fit together, or the data cannot be used; the message says what to change.
    """
    if args.streaming:
        _check_stream(args)
    checked = {split: rows.checked(args.skip_bad) for split, rows in find_splits(args).items()}
    train = checked.pop("train", None)
    train = _training_rows(args, train, held_out=_recordings(checked.values()))
    return {"train": train} | {split: drop_undecodable(rows, split, args.skip_bad) for split, rows in checked.items()}


def find_splits(args: "DataArguments") -> dict[str, UncheckedRows]:
    """All rows that the arguments name, by split, unusable and leaking ones included.

    There is no `train` where training takes a mixture of corpora, or a stream of clips that are not listed before.
    """
    return _find_in_tables(args) if args.corpus is None else _find_in_corpus(args)


def find_corpora(args: "DataArguments") -> dict[str, UncheckedRows]:
    """All rows of the corpora of a mixture, in full, by name; two of one kind are told apart by their number."""
    found = {}
    for number, part in enumerate(args.corpora):
        if not isinstance(part, dict) or not {"corpus", "data_dir"} <= set(part) or set(part) - set(PART_KEYS):
            raise DataError(
                f"corpora, entry {number}: needs corpus and data_dir, may have {PART_KEYS[2:]}; got {part}."
            )
        chosen = part.get("splits") or default_splits(part["corpus"], part["data_dir"]).get("train") or ["train"]
        name = part["corpus"] if part["corpus"] not in found else f"{part['corpus']}-{number}"
        found[name] = find_corpus(part["corpus"], part["data_dir"], chosen, **(part.get("options") or {}))
    if not found:
        raise DataError("corpora is an empty list: name at least one corpus to train on.")
    return found


def _training_rows(
    args: "DataArguments", train: Sequence[dict] | None, held_out: set
) -> Sequence[dict] | RowStream | CorpusMixture:
    """What is trained on: the rows of `train`, or a stream, or a mixture, without what is held out or leaks."""
    if args.corpora is not None:
        checked = {name: rows.checked(args.skip_bad) for name, rows in find_corpora(args).items()}
        clean = {name: _without_leaks(args, rows, name, held_out) for name, rows in checked.items()}
        return _mixture(args, {name: drop_undecodable(rows, name, args.skip_bad) for name, rows in clean.items()})
    if train is None:
        return _stream_of_corpus(args, held_out)
    train = _without_leaks(args, train, "train", held_out)
    if args.streaming:
        return stream_rows(train, Path(args.data_dir).resolve().name)
    return drop_undecodable(train, "train", args.skip_bad)


def _mixture(args: "DataArguments", parts: Mapping[str, Sequence[dict]]) -> CorpusMixture:
    weights = {name: part.get("weight") for name, part in zip(parts, args.corpora, strict=True)}
    if any(weight is None for weight in weights.values()) and any(weights.values()):
        raise DataError("corpora: give each a weight, or none of them.")
    return CorpusMixture(parts, weights if any(weights.values()) else None, args.epoch_size)


# ---- Tables and corpora ----


def _find_in_tables(args: "DataArguments") -> dict[str, UncheckedRows]:
    if args.data_dir is None:
        raise DataError("data_dir is not set: name the folder of the clips, e.g. --data_dir path/to/clips.")
    folder = Path(args.data_dir)
    if not folder.is_dir():
        raise DataError(f"data_dir {str(folder)!r} is not a folder.")
    found: dict[str, UncheckedRows] = {}
    tables: dict[str, list[dict]] = {}  # one file may hold several splits
    for split in ("train", *EVALUATED):
        file = getattr(args, f"{split}_file")
        if file is None:
            continue
        path = folder / file
        if file not in tables:
            tables[file] = read_table(path)
        table = _records_of_split(args, split, tables[file], path) if args.split_column else tables[file]
        if args.group_column and args.group_column not in columns_of(table):
            raise DataError(
                f"{path} has no column {args.group_column!r}; its columns are {sorted(columns_of(table))}."
            )
        found[split] = UncheckedRows(_rows_of_table(args, table, path), str(path), str(path.parent))
    if "train" not in found and args.corpora is None:
        raise DataError("train_file is not set: name the table of the training clips.")
    return found


def _records_of_split(args: "DataArguments", split: str, table: list[dict], path: Path) -> list[dict]:
    """The records of a table that belong to a split by its `split_column`."""
    if args.split_column not in columns_of(table):
        raise DataError(f"{path} has no column {args.split_column!r}; its columns are {sorted(columns_of(table))}.")
    wanted = {str(value) for value in one_or_more(getattr(args, f"{split}_splits") or [])}
    there = sorted({str(record.get(args.split_column)) for record in table})
    table = [record for record in table if str(record.get(args.split_column)) in wanted]
    if not table:
        raise DataError(
            f"{path}: no row has {args.split_column} in {sorted(wanted)}, named by {split}_splits; there are "
            f"{there}. For no {split}, set {split}_file to null."
        )
    return table


def _rows_of_table(args: "DataArguments", table: list[dict], path: Path) -> Iterator[dict]:
    """Rows of a table by the columns of the recipe, with captions by label and recordings where it asks for them."""
    by_label = args.label_captions is not None
    captions_of_label = {str(label): captions for label, captions in (args.label_captions or {}).items()}
    mapping = ColumnMapping(args.audio_column, [] if by_label else args.caption_columns, args.label_column)
    records = {clip_id(record, mapping, number): record for number, record in enumerate(table)}
    for index, row in enumerate(table_rows(table, path, mapping)):
        if by_label:
            label = row.get("label")
            if label is not None and label not in captions_of_label:
                raise DataError(f"{path}, row {index}: label {label!r} has no entry in label_captions.")
            # the captions are the class's, so clips of a class are no negatives; without a class there are none
            row |= {"captions": one_or_more(captions_of_label.get(label, ())), "group": label}
        if args.group_column:
            recording = records[row["id"]].get(args.group_column)
            # a blank cell says nothing; as a value it would make all blank clips one recording
            row["recording"] = None if recording is None or not str(recording).strip() else recording
        yield row


def _find_in_corpus(args: "DataArguments") -> dict[str, UncheckedRows]:
    _refuse_table_keys(args)
    if args.data_dir is None:
        raise DataError(f"data_dir is not set: name the folder of {args.corpus}.")
    names = default_splits(args.corpus, args.data_dir)
    found = {}
    # what a mixture or a stream trains on is not found here
    train_is_elsewhere = args.corpora is not None or (args.streaming and can_stream(args.corpus))
    for split in EVALUATED if train_is_elsewhere else ("train", *EVALUATED):
        chosen = getattr(args, f"{split}_splits") or names.get(split)
        if chosen:
            found[split] = find_corpus(args.corpus, args.data_dir, chosen, **(args.corpus_options or {}))
    if "train" not in found and not train_is_elsewhere:
        raise DataError(f"train_splits is not set: name the splits of {args.corpus} to train on, e.g. [1, 2, 3].")
    return found


def _refuse_table_keys(args: "DataArguments") -> None:
    """Keys of a table do nothing next to a corpus, so that the run would not be what the recipe says."""
    defaults = type(args)()
    given = [key for key in TABLE_KEYS if getattr(args, key) not in (None, getattr(defaults, key))]
    if given:
        raise DataError(
            f"corpus is set ({args.corpus}), and so {'is' if len(given) == 1 else 'are'} {', '.join(given)}, which a "
            "table has and a corpus has not. Put what the corpus knows of it into corpus_options, and take the key out "
            "of the recipe."
        )


# ---- Leaks ----


def _recordings(splits: Iterable[Sequence[dict]]) -> set:
    """The recordings that the clips of some splits were cut from."""
    found = {without_audio(rows, index).get("recording") for rows in splits for index in range(len(rows))}
    return found - {None, ""}


def _without_leaks(args: "DataArguments", rows: Sequence[dict], name: str, held_out: set) -> Sequence[dict]:
    """Rows whose recording is neither held out for evaluation nor on a leak list."""
    n_removed = len(removed_of(rows))
    every = "Every training clip is cut from a recording of validation or test"
    rows = leave_out(rows, dict.fromkeys(held_out, "is in validation or test"), every)
    if leaks := removed_of(rows)[n_removed:]:
        named = ", ".join(item["id"] for item in leaks[:20])
        print(f"dropped {len(leaks)} training clips whose recording is in validation or test: {named}")
    if not args.exclude_leaks_of:
        return rows
    return exclude_leaks(rows, args.exclude_leaks_of, args.leak_lists or args.data_dir, name)


# ---- Streams ----


def _check_stream(args: "DataArguments") -> None:
    """Raises a [`DataError`] for keys that need all clips at hand."""
    needs = {"corpora": "draws from several corpora", "scenes": "mixes any two clips", "epoch_size": "is of a mixture"}
    for key, why in needs.items():
        if getattr(args, key) is not None:
            raise DataError(
                f"streaming reads the clips of one source one after the other, and {key} {why}: leave one out."
            )


def _stream_of_corpus(args: "DataArguments", held_out: set) -> RowStream:
    """The training clips of a corpus that is not listed before."""
    chosen = one_or_more(args.train_splits or default_splits(args.corpus, args.data_dir)["train"])
    if len(chosen) > 1:
        raise DataError(f"{args.corpus}: name one split, not {', '.join(map(str, chosen))}.")
    left_out = held_out | set(leaks_of(args.exclude_leaks_of or (), args.leak_lists or args.data_dir))
    options, must_know = args.corpus_options or {}, bool(args.exclude_leaks_of)
    return stream_corpus(args.corpus, Path(args.data_dir), str(chosen[0]), options, left_out, must_know)
