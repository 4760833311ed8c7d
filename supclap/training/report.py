"""The end of a run: evaluation on the test split, written down with the model's card and printed on one screen."""

import sys
from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from supclap.data.manifest import build_manifest
from supclap.evaluation.queries import FOLDER, save_queries
from supclap.files import DRIFT, MANIFEST, RECIPE, RESULTS, RUN, TRAINING_CURVES
from supclap.publishing.model_card import write_card
from supclap.publishing.run_record import record_run
from supclap.training.callbacks.guard_rails import NONFINITE_BATCHES, GuardRailsCallback
from supclap.training.callbacks.training_time import time_so_far
from supclap.training.model import CRITERION_WEIGHTS
from supclap.training.trainer import SupClapTrainer


def evaluate_and_report(trainer: SupClapTrainer, splits: dict, test_data) -> dict:
    """Evaluates the trained model on the test split, writes its card and reports it.

    Args:
        trainer: The trainer after training.
        splits: Rows of all splits.
        test_data: Rows or scenes for retrieval; no test when `None`.

    Returns:
        `retrieval` (metrics with 95 % intervals; of captions in several `languages` the mean over them, and
        `retrieval_by_language`) and `zero_shot` (accuracy, with its interval), as in `results.json`.
    """
    import numpy as np

    from supclap.evaluation.intervals import format_table, value_with_interval
    from supclap.evaluation.runner import write_json
    from supclap.evaluation.tables import CHOSEN_ON
    from supclap.evaluation.zero_shot import zero_shot_classification

    results: dict = {
        "seed": trainer.args.seed,
        "steps": trainer.state.global_step,
        "chosen_on": trainer.args.chosen_on,
    }
    queries = {}
    if test_data is not None:
        scores = trainer.retrieval(test_data)
        results["retrieval"], results["languages"] = scores.metrics, list(scores.by_language)
        several = len(scores.by_language) > 1
        if several:
            results["retrieval_by_language"] = scores.by_language
        for language, arrays in scores.queries.items():
            queries[f"retrieval[{language}]" if several else "retrieval"] = arrays
        results["n_clips"] = len(test_data)
        pool = trainer.args.eval_pool_size
        results["pool_size"] = pool if pool and pool < len(test_data) else None
        labelled = [row for row in splits["test"] if row.get("label")]
        labels = sorted({row["label"] for row in labelled})
        if len(labels) > 1:
            templates = list(trainer.args.zero_shot_templates)
            score = zero_shot_classification(trainer.embedder(), trainer.processing_class, labelled, labels, templates)
            queries["zero_shot"] = {
                "clip_ids": np.asarray([str(row["id"]) for row in labelled]),
                "labels": np.asarray(labels),
                "targets": np.asarray([labels.index(row["label"]) for row in labelled]),
                "predicted": score["predicted"],
            }
            results["zero_shot"] = {
                "accuracy": value_with_interval(score["correct"], np.arange(score["n"])),
                "n_labels": len(labels),
                "templates": templates,
                "per_class": score["per_class"],
            }
    if not trainer.is_world_process_zero():
        return results
    folder = Path(trainer.args.output_dir)
    for task, arrays in queries.items():
        save_queries(folder / FOLDER / f"{task}.npz", arrays)
    write_json(folder / RESULTS, results)
    manifest = trainer.manifest or build_manifest(splits, content_hashes=False)
    spent = time_so_far(trainer.state)
    record_run(folder, manifest, **spent, last_step=results["steps"], processes=trainer.args.world_size)
    try:
        card = write_card(folder, trainer.hub_model_id if trainer.args.push_to_hub else None)
    except (ValueError, OSError) as error:  # the model is there; a card can be written later
        card = f"not written: {error}"
        print(f"warning: no card: {error} `supclap card {folder}` writes it.", file=sys.stderr)
    lines = [f"\nSupCLAP, {results['steps']} steps, seed {results['seed']}; {CHOSEN_ON[results['chosen_on']]}"]
    if "retrieval" in results:
        pools = f"in pools of {results['pool_size']} clips" if results["pool_size"] else "in one pool"
        lines += [f"Retrieval on the test split, {results['n_clips']} clips {pools}, 95 % intervals over clips:"]
        if len(results["languages"]) > 1:
            lines += [f"Unweighted mean over the languages {', '.join(results['languages'])}, each on its own:"]
        lines += [format_table(results["retrieval"])]
    if "zero_shot" in results:
        lines += [f"Zero-shot classification of the test clips, {results['zero_shot']['n_labels']} classes:"]
        lines += [format_table({"accuracy": results["zero_shot"]["accuracy"]})]
    print("\n".join([*lines, *_warnings(trainer), *_written(trainer), f"{'card':11}  {card}"]))
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
        "curves": folder / TRAINING_CURVES,
        "recipe": folder / RECIPE,
        "best": best,
        "last": last,
        "data": folder / MANIFEST,
        "run": folder / RUN,
        "queries": folder / FOLDER,
        "drift": folder / DRIFT,
        "left out": folder / NONFINITE_BATCHES,
        "tensorboard": folder / "runs",
    }
    return [f"{name:11}  {path}" for name, path in entries.items() if path and Path(path).exists()]
