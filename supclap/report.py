"""The end of a run: evaluation on the test split, written down and printed on one screen."""

import json
from pathlib import Path

import numpy as np
from transformers.trainer_utils import get_last_checkpoint

from supclap.callbacks import CURVES
from supclap.guard import NONFINITE_BATCHES, GuardRailsCallback
from supclap.recipe import RECIPE_FILE
from supclap.trainer import SupClapTrainer
from supclap.training_model import CRITERION_WEIGHTS


RESULTS = "results.json"


def evaluate_and_report(trainer: SupClapTrainer, splits: dict, test_data) -> dict:
    """Evaluates the trained model on the test split and reports it.

    Args:
        trainer: The trainer after training.
        splits: Rows of all splits.
        test_data: Rows or scenes for retrieval; no test when `None`.

    Returns:
        `retrieval` (metrics with 95 % intervals) and `zero_shot` (accuracy, with its interval), as in `results.json`.
    """
    from supclap.evaluation.intervals import bootstrap_interval, format_table
    from supclap.evaluation.zero_shot import zero_shot_classification

    results: dict = {"seed": trainer.args.seed, "steps": trainer.state.global_step}
    clap = trainer.accelerator.unwrap_model(trainer.model).clap.eval()
    if test_data is not None:
        results["retrieval"] = trainer.retrieval(test_data)
        results["pool_size"] = trainer.args.eval_pool_size
        results["n_clips"] = len(test_data)
        labelled = [row for row in splits["test"] if row.get("label")]
        if labelled:
            templates = list(trainer.args.zero_shot_templates)
            labels = sorted({row["label"] for row in labelled})
            score = zero_shot_classification(clap, trainer.processing_class, labelled, labels, templates)
            correct = np.arange(score["n"]) < round(score["accuracy"] * score["n"])  # in any order
            low, high = bootstrap_interval(correct, np.arange(score["n"]))
            results["zero_shot"] = {
                "accuracy": {"value": score["accuracy"], "low": low, "high": high, "n": score["n"]},
                "n_labels": len(labels),
                "templates": templates,
                "per_class": score["per_class"],
            }
    if not trainer.is_world_process_zero():
        return results
    folder = Path(trainer.args.output_dir)
    (folder / RESULTS).write_text(json.dumps(results, indent=1), encoding="utf-8")
    lines = [f"\nSupCLAP, {results['steps']} steps, seed {results['seed']}"]
    if "retrieval" in results:
        pools = f"in pools of {results['pool_size']} clips" if results["pool_size"] else "in one pool"
        lines += [f"Retrieval on the test split, {results['n_clips']} clips {pools}, 95 % intervals over clips:"]
        lines += [format_table(results["retrieval"])]
    if "zero_shot" in results:
        lines += [f"Zero-shot classification of the test clips, {results['zero_shot']['n_labels']} classes:"]
        lines += [format_table({"accuracy": results["zero_shot"]["accuracy"]})]
    print("\n".join([*lines, *_warnings(trainer), *_written(trainer)]))
    return results


def _warnings(trainer: SupClapTrainer) -> list[str]:
    guards = [call for call in trainer.callback_handler.callbacks if isinstance(call, GuardRailsCallback)]
    skipped = max((entry.get("skipped_steps", 0) for entry in trainer.state.log_history), default=0)
    lines = [f"warning      {message}" for guard in guards for message in guard.warned.values()]
    return lines + ([f"warning      {skipped} steps with NaN or infinite values were left out"] if skipped else [])


def _written(trainer: SupClapTrainer) -> list[str]:
    """A line for each thing that the run wrote, with its path."""
    folder = Path(trainer.args.output_dir)
    best, last = trainer.state.best_model_checkpoint, get_last_checkpoint(str(folder))
    entries = {
        "model": folder,
        "radius": folder / CRITERION_WEIGHTS,
        "results": folder / RESULTS,
        "curves": folder / CURVES,
        "recipe": folder / RECIPE_FILE,
        "best": best,
        "last": last,
        "left out": folder / NONFINITE_BATCHES,
        "tensorboard": folder / "runs",
    }
    return [f"{name:11}  {path}" for name, path in entries.items() if path and Path(path).exists()]
