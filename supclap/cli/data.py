"""The command `supclap data`: `check` reports on a data set, `prepare` writes it as shards."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="read all of a data set and report what is in it and wrong with it")
    prepare = actions.add_parser("prepare", help="write a data set as shards of resampled audio")
    for action in (check, prepare):
        action.add_argument("path", help="recipe (.yaml), table, or folder of a corpus, of shards or of clips")
        action.add_argument("--corpus", help="what the folder holds, by name: audiocaps, clotho, esc50, …")
        action.add_argument("--split", action="append", dest="splits", help="a split; may be repeated")
        action.add_argument(
            "--option",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="an option of the corpus or the columns, read as YAML, e.g. caption_columns=[caption]",
        )
        action.add_argument("--workers", type=int, help="threads; all cores when omitted")
        action.add_argument("--quiet", action="store_true", help="no progress bar")
    check.add_argument("--json", metavar="FILE", help="write the report as JSON, to the screen with -")
    prepare.add_argument("output", help="folder of the shards")
    prepare.add_argument(
        "--format",
        choices=("webdataset", "parquet"),
        default="webdataset",
        help="tar files for corpus: webdataset, or Parquet files for corpus: hub",
    )
    prepare.add_argument(
        "--codec",
        choices=("flac", "opus"),
        default="flac",
        help="flac loses nothing of 16-bit audio; opus of 64 kbit/s takes less than half the space",
    )
    prepare.add_argument("--sampling-rate", type=int, default=16000, help="rate of the shards in Hz")
    prepare.add_argument("--clips-per-shard", type=int, default=1000)
    prepare.add_argument("--skip-bad", action="store_true", help="leave clips that cannot be used out, and list them")


def run(arguments: argparse.Namespace) -> int:
    """Runs the action.

    Returns:
        0; 1 where `check` found clips that training would refuse.
    """
    options = dict(_option(text) for text in arguments.option)
    if arguments.action == "check":
        return _check(arguments, options)
    return _prepare(arguments, options)


def _option(text: str) -> tuple[str, Any]:
    import yaml

    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--option needs KEY=VALUE, got {text!r}.")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(
            f"--option {text!r}: {value!r} is not YAML; a list is [a, b], a text with signs 'a: b'."
        ) from None


def _check(arguments: argparse.Namespace, options: dict) -> int:
    from supclap.data.check import check_splits, format_report
    from supclap.files import write_json

    if arguments.json not in (None, "-"):
        # before all audio is read, which may take hours
        try:
            open(arguments.json, "a").close()
        except OSError as error:
            raise ValueError(
                f"--json: {arguments.json!r} cannot be written ({error.strerror}). Name a file in a folder that is there."
            ) from None
    splits = _open(arguments, options, keep_bad=True)
    report = check_splits(splits, progress=not arguments.quiet and arguments.json != "-", workers=arguments.workers)
    if arguments.json == "-":
        json.dump(report, sys.stdout, ensure_ascii=False, indent=1)
        print()
    else:
        print(format_report(report))
        if arguments.json:
            write_json(arguments.json, report)
    return int(report["n_refused"] > 0)


def _open(arguments: argparse.Namespace, options: dict, **treatment: bool) -> dict[str, Sequence[dict]]:
    """The rows of each split of a recipe, or of whatever else lies at the path."""
    from supclap.data.open_rows import open_recipe, open_rows
    from supclap.errors import DataError

    if Path(arguments.path).suffix not in (".yaml", ".yml"):
        return open_rows(arguments.path, arguments.corpus, arguments.splits, options, **treatment)
    from supclap.recipes.parser import parse_recipe

    if arguments.corpus or options:
        raise DataError(
            f"{arguments.path}: a recipe names its corpora and their options itself; leave --corpus and --option out."
        )
    return open_recipe(parse_recipe([arguments.path])[1], arguments.splits, **treatment)


def _prepare(arguments: argparse.Namespace, options: dict) -> int:
    from supclap.data.shards import check_settings, prepare

    # before all of a large corpus is looked at
    check_settings(arguments.sampling_rate, arguments.clips_per_shard, arguments.format, arguments.codec)
    for name, rows in _open(arguments, options, skip_bad=arguments.skip_bad).items():
        report = prepare(
            rows,
            arguments.output,
            name,
            sampling_rate=arguments.sampling_rate,
            clips_per_shard=arguments.clips_per_shard,
            skip_bad=arguments.skip_bad,
            progress=not arguments.quiet,
            workers=arguments.workers,
            form=arguments.format,
            codec=arguments.codec,
        )
        size = sum(shard["bytes"] for shard in report["shards"])
        print(
            f"{name}: {report['n_clips']} clips, {report['hours']:.2f} h, {len(report['shards'])} shards, "
            f"{size / 2**20:.1f} MiB; {len(report['removed'])} left out; {arguments.output}/{name}.json"
        )
    return 0
