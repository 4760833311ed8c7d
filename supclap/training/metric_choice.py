"""`metric_for_best_model` is checked before the first step, not at the first evaluation, perhaps hours later."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import TrainingArguments

from supclap.data.scenes import SceneMixer
from supclap.errors import SettingsError, did_you_mean
from supclap.evaluation.retrieval import pooled_retrieval_metrics


ZERO_SHOT = "zero_shot/accuracy"
LOWER_IS_BETTER = ("loss", "median_rank")


def evaluated_metrics(rows: Sequence[dict] | Any) -> list[str]:
    """Names, without the prefix `eval_`, of the metrics of these rows by which a checkpoint can be chosen."""
    given = pooled_retrieval_metrics(torch.eye(2), torch.eye(2), torch.arange(2), pool_size=2)
    names = ["loss", *(name for name in given if "/" in name)]  # the others are counts, equal at every step
    return [*names, ZERO_SHOT] if _may_have_labels(rows) else names


def _may_have_labels(rows: Sequence[dict] | Any) -> bool:
    if isinstance(rows, SceneMixer):
        return False
    if not isinstance(rows, list):
        return True  # reading it may decode all of the audio
    labels = {row.get("label") for row in rows}
    return len(labels) > 1 and None not in labels


def check_best_metric(args: TrainingArguments, rows: Sequence[dict] | Any) -> None:
    """Checks that evaluation gives the metric by which the best checkpoint is chosen, and sets which way is better.

    The parent holds each metric whose name does not end with `loss` for better when it is greater.

    Raises:
        SettingsError: There is no such metric (the nearest one, or what is missing, is named), or no evaluation.
    """
    if args.load_best_model_at_end and args.eval_strategy == "no":
        raise SettingsError(
            "load_best_model_at_end needs evaluation in training: set eval_strategy and save_strategy to steps or epoch, "
            "or leave it out."
        )
    if args.metric_for_best_model is not None:
        args.greater_is_better = not args.metric_for_best_model.endswith(LOWER_IS_BETTER)
    if args.metric_for_best_model is None or args.eval_strategy == "no" or rows is None or isinstance(rows, dict):
        return
    asked = args.metric_for_best_model.removeprefix("eval_")
    known = evaluated_metrics(rows)
    if asked in known:
        return
    if asked == ZERO_SHOT:
        hint = "it needs a label of every clip evaluated, and two different ones: set label_column. Scenes have none."
    else:
        hint = did_you_mean(asked, known, "evaluation gives")
    raise SettingsError(f"metric_for_best_model {args.metric_for_best_model!r} is not evaluated here; {hint}")
