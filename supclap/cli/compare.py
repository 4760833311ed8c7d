"""`supclap compare A B`: is A better than B, query by query?"""

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "folder with results of `supclap evaluate` or of a training run; several seeds separated by commas"
    parser.add_argument("a", metavar="A", help=about)
    parser.add_argument("b", metavar="B", help="the same of the other system")
    parser.add_argument("--resamples", type=int, default=2000, help="bootstrap resamples and sign flips (2000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of both (0)")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="form on stdout")
    parser.add_argument("--output", type=Path, help="JSON file to write the comparison to")


def run(arguments: argparse.Namespace) -> None:
    from supclap.evaluation.compare import checkpoint_choice, compare_runs, comparison_table, to_json
    from supclap.evaluation.runner import write_json

    runs_a, runs_b = (value.split(",") for value in (arguments.a, arguments.b))
    comparisons, notes = compare_runs(runs_a, runs_b, arguments.resamples, arguments.seed)
    chosen_on = {"a": [checkpoint_choice(run) for run in runs_a], "b": [checkpoint_choice(run) for run in runs_b]}
    content = {"a": runs_a, "b": runs_b, "chosen_on": chosen_on, **to_json(comparisons, notes)}
    if arguments.output is not None:
        write_json(arguments.output, content)
    if arguments.format == "json":
        print(json.dumps(content, indent=1))
    else:
        print(comparison_table(comparisons, notes, chosen_on, markdown=arguments.format == "markdown"))
