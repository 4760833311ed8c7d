"""Runs a recipe with several seeds and prints the mean of its results: the figures of the README.

    python benchmarks/seeds.py configs/quickstart.yaml --seeds 0 1 2
    python benchmarks/seeds.py configs/quickstart.yaml --seeds 0 1 2 --name quickstart-infonce -- --svr null
    python benchmarks/seeds.py configs/esc10.yaml --seeds 0 1 2 -- --data_dir path/to/esc10

Arguments after `--` override keys of the recipe. A run goes to `outputs/NAME-seedN`; one that is there with the same
overrides is not run again, one with others is refused. The interval of each value is
the mean over the seeds of the 95 % bootstrap interval over clips; the spread over seeds stands beside it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from supclap.evaluation.results import entry_of, read_results


ROOT = Path(__file__).parent.parent


def run(recipe: Path, seed: int, output: Path, overrides: list[str]) -> dict:
    """Trains one seed with `accelerate launch` and returns its results and the minutes it took."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "train_supclap.py"), str(recipe)]
    command += ["--seed", str(seed), "--output_dir", str(output), *overrides]
    subprocess.run(command, check=True)
    results = read_results(output / "results.json")
    results |= {"minutes": (time.perf_counter() - started) / 60, "overrides": overrides}
    (output / "seed.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


def _metrics(results: dict) -> dict[str, dict]:
    """The metrics of a run that have an interval, so not the median ranks."""
    retrieval, zero_shot = entry_of(results, "retrieval"), entry_of(results, "zero_shot")
    metrics = {name: value for name, value in retrieval["metrics"].items() if value["low"] is not None}
    return metrics if zero_shot is None else {**metrics, "zero-shot accuracy": zero_shot["metrics"]["accuracy"]}


def summarise(results: list[dict]) -> str:
    """A table of the mean over seeds of every metric, in percent."""
    metrics = [_metrics(result) for result in results]
    lines = [f"{'metric':<26} {'mean':>6}  {'interval':>15}  {'per seed':<24} n"]
    for name in metrics[0]:
        per_seed = [one[name] for one in metrics]
        mean, low, high = (100 * statistics.mean(value[key] for value in per_seed) for key in ("value", "low", "high"))
        values = " ".join(f"{100 * value['value']:.1f}" for value in per_seed)
        lines.append(f"{name:<26} {mean:6.1f}  [{low:5.1f}, {high:5.1f}]  {values:<24} {per_seed[0]['n']}")
    lines.append("minutes " + " ".join(f"{result['minutes']:.1f}" for result in results))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--name", help="of the folders under outputs/; the recipe's when omitted")
    parser.epilog = "After --: keys of the recipe and their values."
    # argparse gives a list of positionals no second chance after an option
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, overrides = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    results = []
    for seed in arguments.seeds:
        output = ROOT / "outputs" / f"{arguments.name or arguments.recipe.stem}-seed{seed}"
        done = output / "seed.json"
        if done.exists():
            results.append(read_results(done))
            if results[-1]["overrides"] != overrides:
                sys.exit(f"{output} was run with {results[-1]['overrides']} after --: choose another --name.")
        else:
            results.append(run(arguments.recipe, seed, output, overrides))
    print(summarise(results))


if __name__ == "__main__":
    main()
