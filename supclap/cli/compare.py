"""`supclap compare A B`: is A better than B, query by query?"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from supclap.evaluation.compare import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "folder with results of `supclap evaluate` or of a training run; several seeds separated by commas"
    parser.add_argument("a", metavar="A", help=about)
    parser.add_argument("b", metavar="B", help="the same of the other system")
    parser.add_argument("--resamples", type=int, default=2000, help="bootstrap resamples and sign flips (2000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of both (0)")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="form on stdout")
    parser.add_argument("--output", type=Path, help="JSON file to write the comparison to")


def run(arguments: argparse.Namespace) -> None:
    from supclap.evaluation.compare import compare_runs
    from supclap.evaluation.results import read_choice
    from supclap.files import RESULTS, write_json

    systems = {"a": arguments.a.split(","), "b": arguments.b.split(",")}
    comparisons, notes = compare_runs(*systems.values(), arguments.resamples, arguments.seed)
    chosen_on = {system: [read_choice(Path(run) / RESULTS) for run in runs] for system, runs in systems.items()}
    content = {
        **systems,
        "chosen_on": chosen_on,
        "comparisons": [asdict(one) for one in comparisons],
        "notes": notes,
    }
    if arguments.output is not None:
        write_json(arguments.output, content)
    if arguments.format == "json":
        print(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        print(comparison_table(comparisons, notes, chosen_on, markdown=arguments.format == "markdown"))


def comparison_table(
    comparisons: Sequence["Comparison"],
    notes: Sequence[str],
    chosen_on: Mapping[str, Sequence[str | None]],
    markdown: bool = False,
) -> str:
    """The comparisons as a table for people, in percent and percentage points.

    Args:
        comparisons: What [`~supclap.evaluation.compare.compare_runs`] returns.
        notes: The notes that it returns beside them.
        chosen_on: For `a` and `b` how the checkpoint of each run was chosen.
        markdown: Whether the table is in Markdown.
    """
    from supclap.evaluation.results import CHOSEN_ON
    from supclap.evaluation.tables import markdown_rows, text_rows

    rows = [["task", "metric", "A", "B", "A - B", "95 % interval", "p (clips)", "p (runs)", "n"]]
    for one in comparisons:
        rows.append(
            [
                one.task,
                one.metric,
                _with_spread(one.a, one.runs_a),
                _with_spread(one.b, one.runs_b),
                f"{100 * one.difference:+.2f}",
                f"[{100 * one.low:+.2f}, {100 * one.high:+.2f}]",
                f"{one.p_clips:.4f}",
                "-" if one.p_runs is None else f"{one.p_runs:.3f}",
                str(one.n),
            ]
        )
    runs = (len(comparisons[0].runs_a), len(comparisons[0].runs_b))
    about = [
        f"A: {runs[0]} run(s), B: {runs[1]} run(s). Interval: 95 % bootstrap over "
        f"{'clips and runs' if max(runs) > 1 else 'clips'}.",
        "p (clips): sign-flip permutation over clips, of these runs (for mAP: bootstrap); p (runs): exact permutation over runs.",
        *(
            f"{system.upper()}: {', '.join(CHOSEN_ON[choice] for choice in dict.fromkeys(choices))}"
            for system, choices in chosen_on.items()
        ),
        *notes,
    ]
    if markdown:
        return "\n".join([*(f"{line}  " for line in about), "", markdown_rows(rows, n_left=2)]) + "\n"
    return "\n".join([*about, text_rows(rows, n_left=2)])


def _with_spread(mean: float, runs: Sequence[float]) -> str:
    spread = "" if len(runs) == 1 else f" ± {100 * statistics.stdev(runs):.2f}"
    return f"{100 * mean:.2f}{spread}"
