"""`supclap evaluate`: scores checkpoints on a suite of tasks."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supclap.errors import SettingsError
from supclap.files import RESULTS


if TYPE_CHECKING:
    from supclap.evaluation.encoders import Encoder

SUITES = Path(__file__).parent.parent / "evaluation" / "suites"
OUTPUT = Path("outputs/evaluation")
CACHE = "embeddings.sqlite"
NO_DATA = 2  # the exit status when no task has its data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    about = "folder or Hub id, or MODULE:FACTORY=WHAT for an adapter called with WHAT; several give one table"
    add("checkpoints", nargs="+", metavar="CHECKPOINT", help=about)
    suites = ", ".join(sorted(file.stem for file in SUITES.glob("*.yaml")))
    add("--suite", default="paper", help=f"{suites}, or a YAML file of yours")
    add("--data-dir", type=Path, help="where the data folders of the tasks lie (data; of your own suite its folder)")
    add("--output-dir", type=Path, default=OUTPUT, help=f"where results go, in folders by model and suite ({OUTPUT})")
    add("--cache", type=Path, help=f"file of embeddings computed before (OUTPUT_DIR/{CACHE})")
    add("--encoder", metavar="MODULE:FACTORY", help="adapter of all checkpoints, called with each")
    add("--batch-size", type=int, default=32, help="clips a forward pass (32)")
    add("--device", help="cpu, cuda, ...; an accelerator where there is one")
    add(
        "--chosen-on",
        choices=("validation", "test", "last"),
        help="how the checkpoint was chosen, where it has no record",
    )
    add("--require-all", action="store_true", help="exit with status 1 when the data of a task are missing")
    add("--skip-bad", action="store_true", help="leave out clips without usable audio; counted in the results")
    forms = ("text", "markdown", "models", "csv", "json")
    add(
        "--format",
        choices=forms,
        default="text",
        help="form of the table on stdout; models: Markdown, one row a model",
    )


def run(arguments: argparse.Namespace) -> int:
    from supclap.evaluation import tables
    from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
    from supclap.evaluation.results import DONE, FAILED, NOT_RUN
    from supclap.evaluation.runner import evaluate_suite
    from supclap.evaluation.suite import BUILT_IN, check_tables, load_suite

    if arguments.batch_size < 1:
        raise SettingsError(f"--batch-size must be at least 1, got {arguments.batch_size}.")
    if arguments.device is not None:
        check_device(arguments.device)
    suite = load_suite(arguments.suite)
    root = arguments.data_dir or (Path("data") if suite.folder == BUILT_IN else suite.folder)
    check_tables(suite, root)
    # A checkpoint that cannot be opened is an error before another one is scored, which may take hours.
    for checkpoint in arguments.checkpoints[1:]:
        open_encoder(checkpoint, arguments.encoder, arguments.device)
        recorded_choice(checkpoint)
    cache = EmbeddingCache(arguments.cache or arguments.output_dir / CACHE)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    summaries, files = [], []
    for checkpoint in arguments.checkpoints:
        report(f"{checkpoint}, suite {suite.name}")
        encoder = open_encoder(checkpoint, arguments.encoder, arguments.device)
        chosen_on = recorded_choice(checkpoint) or arguments.chosen_on
        folder = arguments.output_dir / folder_name(checkpoint) / suite.name
        summary = evaluate_suite(
            CachedEncoder(encoder, cache, arguments.batch_size),
            suite,
            folder,
            root,
            chosen_on,
            skip_bad=arguments.skip_bad,
            report=report,
            progress=True,
        )
        if not summaries and all(entry["status"] == NOT_RUN for entry in summary["results"]):
            report(f"error: nothing was scored: no task of the suite {suite.name} has its data.\n{missing([summary])}")
            return NO_DATA
        files += tables.write_tables([summary], folder)
        summaries.append(summary)
        del encoder  # the next encoder may need its memory
    if len(summaries) > 1:
        files += tables.write_tables(summaries, arguments.output_dir / f"comparison-{suite.name}")
    forms = {
        "text": tables.text_table,
        "markdown": tables.markdown_table,
        "models": tables.models_table,
        "csv": tables.csv_table,
        "json": lambda results: json.dumps(results, indent=1, ensure_ascii=False),
    }
    print(forms[arguments.format](summaries))
    report("\n".join(f"written  {file}" for file in files))
    if not_run := missing(summaries):
        report(f"note: tasks without their data were left out.\n{not_run}")
    states = {entry["status"] for summary in summaries for entry in summary["results"]}
    return int(FAILED in states or (arguments.require_all and states != {DONE}))


def missing(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A line for each task that was not run. It says where its data were looked for, and where to get them."""
    from supclap.evaluation.results import NOT_RUN
    from supclap.evaluation.tables import task_title

    entries = [entry for summary in summaries for entry in summary["results"] if entry["status"] == NOT_RUN]
    lines = [f"{task_title(entry)}: {NOT_RUN}: {entry['reason']}. To get: {entry['get']}" for entry in entries]
    return "\n".join(dict.fromkeys(lines))


def check_device(name: str) -> None:
    """Refuses a device that PyTorch does not know, or that this machine does not have."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"--device {name!r} cannot be used: {reason} Give cpu, or leave it out.") from None


def open_encoder(checkpoint: str, factory: str | None, device: str | None) -> "Encoder":
    """Opens a checkpoint by its name on the command line.

    An adapter is named `module:factory=what`, or by the option `--encoder`, whose `factory` then opens every checkpoint.
    """
    from supclap.evaluation.encoders import load_custom_encoder, load_encoder

    adapter, _, name = checkpoint.partition("=")
    if ":" in adapter and name:
        return load_custom_encoder(adapter, name)
    return load_custom_encoder(factory, checkpoint) if factory else load_encoder(checkpoint, device)


def folder_name(checkpoint: str) -> str:
    """The name of a checkpoint's folder of results: `outputs/run` becomes `outputs--run`."""
    return "--".join(part for part in Path(checkpoint.replace(":", ".")).parts if part not in ("/", ".", ".."))


def recorded_choice(checkpoint: str) -> str | None:
    """How a checkpoint was chosen, as its training run wrote it into the folder of the checkpoint; `None` without a record.

    The folder of a Hub id is that of its download.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from supclap.evaluation.results import read_choice

    path: Path | str | None = Path(checkpoint) / RESULTS
    if not Path(checkpoint).is_dir():
        try:
            path = try_to_load_from_cache(checkpoint, RESULTS)
        except HFValidationError:  # the name that an adapter takes need be no Hub id
            return None
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        return None
    return read_choice(path)
