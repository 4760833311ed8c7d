"""`supclap evaluate`: scores checkpoints on a suite of tasks."""

import argparse
import json
import sys
from pathlib import Path


SUITES = Path(__file__).parent.parent / "evaluation" / "suites"
OUTPUT = Path("outputs/evaluation")
CACHE = "embeddings.sqlite"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="CHECKPOINT", help="folder or Hub id; several give one table")
    suites = ", ".join(sorted(file.stem for file in SUITES.glob("*.yaml")))
    add("--suite", default="paper", help=f"{suites}, or a YAML file of yours")
    add("--data-dir", type=Path, help="where the data folders of the tasks lie (data; of your own suite its folder)")
    add("--output-dir", type=Path, default=OUTPUT, help=f"where results go, in folders by model and suite ({OUTPUT})")
    add("--cache", type=Path, help=f"file of embeddings computed before (OUTPUT_DIR/{CACHE})")
    add("--encoder", metavar="MODULE:FACTORY", help="adapter of another kind of model, called with CHECKPOINT")
    add("--batch-size", type=int, default=32, help="clips a forward pass (32)")
    add("--device", help="cpu, cuda, ...; an accelerator where there is one")
    add(
        "--chosen-on",
        choices=("validation", "test", "last"),
        help="how the checkpoint was chosen, where it has no record",
    )
    add("--require-all", action="store_true", help="exit with status 1 when the data of a task are missing")
    add("--skip-bad", action="store_true", help="leave out clips without usable audio; counted in the results")
    add("--format", choices=("text", "markdown", "csv", "json"), default="text", help="form of the table on stdout")


def run(arguments: argparse.Namespace) -> int:
    from supclap.evaluation import tables
    from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
    from supclap.evaluation.encoders import load_custom_encoder, load_encoder
    from supclap.evaluation.runner import DONE, FAILED, evaluate_suite
    from supclap.evaluation.suite import BUILT_IN, load_suite

    if arguments.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {arguments.batch_size}.")
    suite = load_suite(arguments.suite)
    root = arguments.data_dir or (Path("data") if suite.folder == BUILT_IN else suite.folder)
    cache = EmbeddingCache(arguments.cache or arguments.output_dir / CACHE)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    summaries, files = [], []
    for checkpoint in arguments.checkpoints:
        report(f"{checkpoint}, suite {suite.name}")
        if arguments.encoder:
            encoder = load_custom_encoder(arguments.encoder, checkpoint)
        else:
            encoder = load_encoder(checkpoint, arguments.device)
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
        )
        files += tables.write_tables([summary], folder)
        summaries.append(summary)
        del encoder  # the next one may need its memory
    if len(summaries) > 1:
        files += tables.write_tables(summaries, arguments.output_dir / f"comparison-{suite.name}")
    forms = {
        "text": tables.text_table,
        "markdown": tables.markdown_table,
        "csv": tables.csv_table,
        "json": lambda results: json.dumps(results, indent=1, ensure_ascii=False),
    }
    print(forms[arguments.format](summaries))
    report("\n".join(f"written  {file}" for file in files))
    states = [entry["status"] for summary in summaries for entry in summary["results"]]
    incomplete = FAILED in states or DONE not in states or (arguments.require_all and set(states) != {DONE})
    return int(incomplete)


def folder_name(checkpoint: str) -> str:
    """`outputs/run` as `outputs--run`: one folder name for each checkpoint."""
    return "--".join(part for part in Path(checkpoint).parts if part not in ("/", ".", ".."))


def recorded_choice(checkpoint: str) -> str | None:
    """What the training run wrote about how its checkpoint was chosen, in its folder or that of a downloaded Hub id."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    path: Path | str | None = Path(checkpoint) / "results.json"
    if not Path(checkpoint).is_dir():
        try:
            path = try_to_load_from_cache(checkpoint, "results.json")
        except HFValidationError:  # what an adapter takes need be no Hub id
            return None
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8")).get("chosen_on")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not what a training run writes: {error}") from error
