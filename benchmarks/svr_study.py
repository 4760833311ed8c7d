"""Does SVR do anything here? The paper's ablation and the controls that would explain a gain without it, over seeds.

    python benchmarks/svr_study.py configs/study/quickstart.yaml --seeds 0 1 2 3 4
    python benchmarks/svr_study.py configs/study/esc10.yaml --rows infonce infonce_bi_dynamic -- --data_dir path/to/esc10

A row is a file in `configs/study/rows`, put on top of the recipe; its key `controls`, if it has one, holds arguments of
`study_controls.ControlledLoss`. Arguments after `--` override keys in all rows. Runs
follow each other in this process, seed by seed, so that a study that is stopped has whole seeds; the same command goes on
with it, as a run that is finished is not run again. Of a finished run only the figures are kept.

After each seed this prints, and writes to `table.md`, the mean over seeds of each row with its 95 % interval (t), the
paired difference to the plain loss of the same objective with its own, and the mean of the drift over a run. Rows share
their seeds, so that data and initial weights are the same, and only the paired differences say which rows differ.
"""

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import yaml
from scipy import stats

from supclap.evaluation.results import entry_of, read_results
from supclap.files import DRIFT, RECIPE, RESULTS, RUN, write_whole


ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
from study_controls import ControlledLoss  # noqa: E402

from supclap.cli.train import train  # noqa: E402
from supclap.training.callbacks.drift import read_drift  # noqa: E402
from supclap.training.objective import build_criterion  # noqa: E402


ROWS = {path.stem: path for path in sorted((ROOT / "configs/study/rows").glob("*.yaml"))}
RETRIEVAL = ("text_to_audio/recall@1", "audio_to_text/recall@1", "text_to_audio/recall@10", "audio_to_text/recall@10")
ZERO_SHOT = "zero-shot accuracy"
DRIFT_METRICS = ("cos_gradient_tangent", "cos_step_tangent", "push_global", "radius_p50")
KEPT = (RESULTS, DRIFT, RECIPE, RUN)


def train_row(argv: list[str], controls: dict) -> None:
    """Trains a recipe with the controls of a row; without any, with the objective of the library."""
    criterion = partial(build_criterion, loss=ControlledLoss, **controls) if controls else None
    train(argv, criterion)


def row_on_recipe(recipe: Path, row: str, path: Path) -> dict:
    """Writes the recipe of a row to `path`, on top of `recipe`, and returns the row's controls."""
    content = yaml.safe_load(ROWS[row].read_text(encoding="utf-8"))
    controls, bases = content.pop("controls", {}), content.pop("base")
    bases = [ROWS[row].parent / base for base in ([bases] if isinstance(bases, str) else bases)]
    content["base"] = [str(base.resolve()) for base in (recipe, *bases)]
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return controls


def run(
    recipe: Path,
    row: str,
    seed: int,
    folder: Path,
    overrides: list[str],
    train: Callable[[list[str], dict], object] = train_row,
) -> dict[str, float]:
    """Trains one seed of a row, if that was not done, and returns its metrics in percent and its drift."""
    output = folder / f"{row}-seed{seed}"
    if not (output / RESULTS).exists():
        both = folder / f"{row}.yaml"
        controls = row_on_recipe(recipe, row, both)
        train([str(both), "--drift", "true", "--seed", str(seed), *overrides, "--output_dir", str(output)], controls)
        drop_weights(output)
    results = read_results(output / RESULTS)
    retrieval, zero_shot = entry_of(results, "retrieval"), entry_of(results, "zero_shot")
    values = {name: 100 * retrieval["metrics"][name]["value"] for name in RETRIEVAL}
    if zero_shot is not None:
        values[ZERO_SHOT] = 100 * zero_shot["metrics"]["accuracy"]["value"]
    entries = read_drift(output / DRIFT) if (output / DRIFT).exists() else []
    for name in DRIFT_METRICS:
        measured = [entry[name] for entry in entries if name in entry]
        if measured:
            values[name] = statistics.mean(measured)
    return values


def drop_weights(output: Path) -> None:
    """Leaves the figures of a finished run, and what it was run with."""
    for path in output.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()


def with_interval(values: list[float]) -> str:
    """Mean and half width of its 95 % t-interval; no width for a single value."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3g}"
    width = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3g} ± {width:.2g}"


def table(results: dict[str, list[dict[str, float]]], names: Sequence[str]) -> str:
    """A Markdown table: for each row and name its mean, and the paired difference to the plain loss of its objective."""
    lines = ["| row | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for row, seeds in results.items():
        plain = results.get(row.split("_")[0])
        cells = []
        for name in names:
            if not all(name in values for values in seeds):
                cells.append("")
                continue
            cell = with_interval([values[name] for values in seeds])
            if plain is not None and plain is not seeds and all(name in values for values in plain):
                pairs = zip(seeds, plain, strict=True)
                cell += f" (Δ {with_interval([values[name] - base[name] for values, base in pairs])})"
            cells.append(cell)
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def study(
    recipe: Path,
    rows: list[str],
    seeds: list[int],
    folder: Path,
    overrides: list[str],
    train: Callable[[list[str], dict], object] = train_row,
) -> str:
    """Runs what is missing, and returns the table."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, float]]] = {row: [] for row in rows}
    for number, seed in enumerate(seeds, 1):
        for row in rows:
            results[row].append(run(recipe, row, seed, folder, overrides, train))
        done = ", ".join(map(str, seeds[:number]))
        tables = [table(results, names) for names in ((*RETRIEVAL, ZERO_SHOT), DRIFT_METRICS)]
        text = f"{recipe.name}, seeds {done}; mean ± 95 % interval, Δ paired to the plain loss"
        text = "\n\n".join([text, *tables])
        write_whole(folder / "table.md", text + "\n")
        print(text, flush=True)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=Path, help="folder of the runs; outputs/study/RECIPE when omitted")
    parser.epilog = "After --: keys of the recipe and their values."
    # argparse gives a list of positionals no second chance after an option
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, overrides = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    folder = arguments.output or ROOT / "outputs" / "study" / arguments.recipe.stem
    study(arguments.recipe, arguments.rows, arguments.seeds, folder, overrides)


if __name__ == "__main__":
    main()
