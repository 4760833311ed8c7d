"""Does SVR do anything here? The paper's ablation and the controls that would explain a gain without it, over seeds.

    python benchmarks/svr_study.py configs/quickstart.yaml --seeds 0 1 2 3 4
    python benchmarks/svr_study.py configs/esc10.yaml --rows infonce bi-dynamic zero-radius -- --data_dir path/to/esc10

Arguments after `--` override keys of the recipe in all rows. A run that is finished is not run again, so that a study can
be stopped and gone on with. Prints, and writes to `table.md`, the mean over seeds of each row with its 95 % interval (t),
the paired difference to the plain loss of the same objective with its own, and the mean of the drift. Rows share their
seeds, so that data and initial weights are the same, and only the paired differences say which rows differ.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scipy import stats

from supclap.drift import DRIFT_FILE, read_drift


ROOT = Path(__file__).parent.parent
METRICS = ("text_to_audio/recall@1", "audio_to_text/recall@1", "text_to_audio/recall@10", "audio_to_text/recall@10")
DRIFT = ("cos_gradient_tangent", "cos_step_tangent", "push_ratio")

ABLATION = {
    "plain": {"svr": None},
    **{
        f"{direction}-{svr}": {"svr": svr, "svr_direction": direction}
        for direction in ("uni", "bi")
        for svr in ("static", "dynamic")
    },
    **{
        f"{direction}-dynamic-no-constraint": {"svr": "dynamic", "svr_direction": direction, "constraint_weight": 0.0}
        for direction in ("uni", "bi")
    },
}
SIGLIP = {"objective": "siglip", "logit_scale_init_value": 2.302585092994046, "logit_bias_init_value": -10.0}
ROWS: dict[str, dict] = {
    **{name.replace("plain", "infonce"): {"objective": "infonce", **row} for name, row in ABLATION.items()},
    "siglip": {**SIGLIP, **ABLATION["plain"]},
    **{f"siglip-{name}": {**SIGLIP, **row} for name, row in ABLATION.items() if name != "plain"},
    # a second contrastive loss of the texts and of the audios, and no support vector
    "zero-radius": {"svr": "static", "radius_init": 0.0, "radius_learning_rate": 0.0},
    # support vectors that only weigh the negatives anew
    "detached-direction": {"svr": "static", "detach_direction": True},
    # more pull, which leaves less of the push in the sum
    "double-pull": {"svr": None, "pull_weight": 2.0},
    # the claim itself: the push keeps its parallel part, and less of the perpendicular one; a factor of 1 is `infonce`
    **{f"perpendicular-{factor:g}": {"svr": None, "perpendicular_push": factor} for factor in (0.0, 0.25, 0.5, 0.75)},
}


def launch(argv: list[str]) -> None:
    """Trains in a process of its own."""
    command = [sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "train_supclap.py"), *argv]
    subprocess.run(command, check=True)


def run(
    recipe: Path, row: str, seed: int, folder: Path, overrides: list[str], train: Callable[[list[str]], object]
) -> dict[str, float]:
    """Trains one seed of a row, if that was not done, and returns its metrics in percent and its drift."""
    output = folder / f"{row}-seed{seed}"
    if not (output / "results.json").exists():
        settings = ROWS[row] | {"drift": True, "seed": seed}
        argv = [str(recipe), *(part for key, value in settings.items() for part in (f"--{key}", json.dumps(value)))]
        train([*argv, *overrides, "--output_dir", str(output)])
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    values = {name: 100 * results["retrieval"][name]["value"] for name in METRICS}
    if "zero_shot" in results:
        values["zero-shot accuracy"] = 100 * results["zero_shot"]["accuracy"]["value"]
    entries = read_drift(output / DRIFT_FILE) if (output / DRIFT_FILE).exists() else []
    for name in DRIFT:
        measured = [entry[name] for entry in entries if name in entry]
        if measured:
            values[name] = statistics.mean(measured)
    return values


def with_interval(values: list[float]) -> str:
    """Mean and half width of its 95 % t-interval; no width for a single value."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3g}"
    width = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3g} ± {width:.2g}"


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """A Markdown table: for each row and value its mean, and the paired difference to the plain loss of its objective."""
    names = list(dict.fromkeys(name for seeds in results.values() for values in seeds for name in values))
    lines = ["| row | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for row, seeds in results.items():
        plain = results.get("siglip" if row.startswith("siglip") else "infonce")
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
    train: Callable[[list[str]], object] = launch,
) -> str:
    """Runs what is missing, seed by seed so that a stopped study has whole seeds, and returns the table."""
    results: dict[str, list[dict[str, float]]] = {row: [] for row in rows}
    for seed in seeds:
        for row in rows:
            results[row].append(run(recipe, row, seed, folder, overrides, train))
    text = f"{recipe.name}, seeds {', '.join(map(str, seeds))}; mean ± 95 % interval, Δ paired to the plain loss\n\n"
    text += table(results)
    part = folder / "table.part"
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(folder / "table.md")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("overrides", nargs="*", help="after --: keys of the recipe and their values")
    arguments = parser.parse_args()
    folder = ROOT / "outputs" / "study" / arguments.recipe.stem
    folder.mkdir(parents=True, exist_ok=True)
    print(study(arguments.recipe, arguments.rows, arguments.seeds, folder, arguments.overrides))


if __name__ == "__main__":
    main()
