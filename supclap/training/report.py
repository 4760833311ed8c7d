"""The end of a run: evaluation on the test split, written down with the model's card and printed on one screen."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from supclap.data.manifest import build_manifest
from supclap.data.rows import removed_of, select
from supclap.errors import EvaluationError
from supclap.evaluation.encoders import fingerprint_supclap
from supclap.evaluation.inputs import without_audio
from supclap.evaluation.languages import captions_of, languages_of
from supclap.evaluation.results import CHOSEN_ON, CONFUSION, PER_CLASS, QUERIES, entry_of
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import Suite, Task
from supclap.evaluation.tables import format_table
from supclap.files import DRIFT, MANIFEST, RECIPE, RESULTS, RUN, TRAINING_CURVES, read_json_object
from supclap.publishing.model_card import write_card
from supclap.publishing.run_record import record_run
from supclap.training.callbacks.guard_rails import NONFINITE_BATCHES, GuardRailsCallback
from supclap.training.callbacks.reports import time_so_far
from supclap.training.model import CRITERION_WEIGHTS
from supclap.training.trainer import SupClapTrainer


RETRIEVAL, ZERO_SHOT = "retrieval", "zero_shot"


def evaluate_and_report(
    trainer: SupClapTrainer, splits: Mapping[str, Sequence[dict]], test_data: Sequence[dict] | None
) -> dict[str, Any]:
    """Evaluates the trained model on the test split, writes its card and reports it.

    Args:
        trainer: The trainer after training, when the model is saved.
        splits: Rows of all splits.
        test_data: Rows or scenes for retrieval; no test when `None`.

    Returns:
        What `results.json` holds, see [`supclap.evaluation.results`]. Its tasks are `retrieval` and, where the rows of
        the test split have at least two labels, `zero_shot`.

    Raises:
        EvaluationError: The test data cannot be scored. There is no `results.json` then.
    """
    folder = Path(trainer.args.output_dir)
    try:
        tasks = [] if test_data is None else _test_tasks(trainer, splits["test"], test_data)
        results = _evaluate(trainer, tasks)
    except (OSError, TypeError, ValueError) as error:
        raise EvaluationError(
            f"the model was trained and is saved in {folder}, but it could not be evaluated: {error} Mend the test data and "
            f"start the run again, or score it with `supclap evaluate {folder} --suite YOUR_SUITE.yaml`."
        ) from error
    if not trainer.is_world_process_zero():
        return results
    manifest = trainer.manifest or build_manifest(splits, content_hashes=False)
    spent = time_so_far(trainer.state)
    record_run(folder, manifest, **spent, last_step=results["steps"], processes=trainer.args.world_size)
    try:
        card = write_card(folder, trainer.hub_model_id if trainer.args.push_to_hub else None)
    except (ValueError, OSError) as error:  # the model is there; a card can be written later
        card = f"not written: {error}"
        print(f"warning: no card: {error} `supclap card {folder}` writes it.", file=sys.stderr)
    print("\n".join([*_scores(results), *_warnings(trainer), *_written(trainer), f"{'card':11}  {card}"]))
    return results


def _test_tasks(trainer: SupClapTrainer, rows: Sequence[dict], test_data: Sequence[dict]) -> list[Task]:
    """Retrieval of the test data, and classification of those recordings of the test split that have a label."""
    recipe = Path(trainer.args.output_dir) / RECIPE
    data = read_json_object(recipe).get("data_dir") if recipe.is_file() else None
    name = Path(data).name if data else "test data of the run"
    languages = languages_of(captions_of(without_audio(test_data)))
    pool_size = trainer.args.eval_pool_size
    several = languages if len(languages) > 1 else []
    tasks = [Task(RETRIEVAL, "retrieval", rows=test_data, data_dir=name, languages=several, pool_size=pool_size)]
    labels = [row.get("label") for row in without_audio(rows)]
    if len(set(labels) - {None, ""}) > 1:
        labelled = select(rows, [index for index, label in enumerate(labels) if label], removed_of(rows))
        templates = list(trainer.args.zero_shot_templates)
        tasks.append(Task(ZERO_SHOT, "zero_shot", rows=labelled, data_dir=name, templates=templates))
    return tasks


def _evaluate(trainer: SupClapTrainer, tasks: Sequence[Task]) -> dict[str, Any]:
    """Runs the tasks with the model in memory. All processes embed, the first one writes."""
    folder, first = Path(trainer.args.output_dir), trainer.is_world_process_zero()
    # the results may be published, so they name the folder without its path
    encoder = trainer.encoder(folder.name, fingerprint_supclap(folder) if first else "", with_contents=True)
    return evaluate_suite(
        encoder,
        Suite("training", tuple(tasks)),
        folder if first else None,
        chosen_on=trainer.args.chosen_on,
        report=lambda line: None,
        progress=first and not trainer.args.disable_tqdm,
        of_run={"seed": trainer.args.seed, "steps": trainer.state.global_step},
    )


def _scores(results: Mapping[str, Any]) -> Iterator[str]:
    yield f"\nSupCLAP, {results['steps']} steps, seed {results['seed']}; {CHOSEN_ON[results['chosen_on']]}"
    if retrieval := entry_of(results, RETRIEVAL):
        pools = f"in pools of {retrieval['pool_size']} clips" if retrieval["pool_size"] else "in one pool"
        yield f"Retrieval on the test split, {retrieval['n_clips']} clips {pools}, 95 % intervals over clips:"
        if languages := retrieval["record"].get("languages"):
            yield f"Unweighted mean over the languages {', '.join(languages)}, each on its own:"
        yield format_table(retrieval["metrics"])
    if zero_shot := entry_of(results, ZERO_SHOT):
        yield f"Zero-shot classification of the test clips, {zero_shot['n_labels']} classes:"
        yield format_table(zero_shot["metrics"])


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
        "queries": folder / QUERIES,
        "per class": folder / PER_CLASS,
        "confusion": folder / CONFUSION,
        "drift": folder / DRIFT,
        "left out": folder / NONFINITE_BATCHES,
        "tensorboard": folder / "runs",
    }
    return [f"{name:11}  {path}" for name, path in entries.items() if path and Path(path).exists()]
