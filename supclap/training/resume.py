"""Checks whether a run may begin in a folder, or go on there: only with the settings and the data that it began with."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from supclap.data.arguments import DataArguments
from supclap.errors import RecipeError
from supclap.files import MANIFEST, RECIPE
from supclap.training.arguments import SupClapTrainingArguments, own_fields


# Settings of the Trainer that change the losses of a run, beside the fields that we annotate.
_OF_THE_TRAINER = {
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "optim",
    "optim_args",
    "adam_epsilon",
    "fp16",
    "train_sampling_strategy",
}
# Settings that do not change them, and may be others when it goes on.
_FREE_ON_RESUME = {
    "per_device_eval_batch_size",
    "eval_steps",
    "dataloader_num_workers",
    "output_dir",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "disable_tqdm",
    "report_to",
    "hub_strategy",
    "dataloader_pin_memory",
    "skip_nonfinite_steps",
    "drift",
    "drift_steps",
    "drift_probe_size",
}


# Settings that may change when the user asks for it: the state of a checkpoint fits the new values too.
_CHANGEABLE = {
    "learning_rate",
    "text_learning_rate",
    "radius_learning_rate",
    "muon_learning_rate",
    "weight_decay",
    "max_grad_norm",
    "bf16",
    "fp16",
}


def check_recipe(
    output_dir: str | Path,
    model: Any,
    data: DataArguments,
    training: SupClapTrainingArguments,
    accept_changes: bool = False,
) -> dict[str, Any]:
    """Refuses to go on with a run that began with another recipe.

    Args:
        model: The `model` section of the recipe, a dataclass.
        data: Its `data` section.
        training: Its `training` section.
        accept_changes: Whether to go on with other learning rates, weight decay, clipping or precision than before.

    Returns:
        The settings of this run, to be written as its `recipe.json`.

    Raises:
        RecipeError: `output_dir` holds a run with other settings; each is named with both values.
    """
    if training.ignore_data_skip:
        raise RecipeError(
            "ignore_data_skip true would train a resumed run on clips that it has seen in place of the next ones: leave "
            "it out."
        )
    kept = (own_fields().keys() | _OF_THE_TRAINER) - _FREE_ON_RESUME
    current = {
        **dataclasses.asdict(model),
        **dataclasses.asdict(data),
        **{key: value for key, value in training.to_dict().items() if key in kept},
        "world_size": training.world_size,  # decides which pairs share a batch
    }
    if data.streaming:
        current["dataloader_num_workers"] = training.dataloader_num_workers  # each reads a share of the stream
    current = json.loads(json.dumps(current))
    path = Path(output_dir) / RECIPE
    if path.exists():
        try:
            previous = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecipeError(
                f"{path} is damaged ({error}). Delete it to go on with the settings of this command, which have to be "
                "those that the run began with."
            ) from None
        # The place of the data may be another for each job: `check_same_data` compares the clips, but cannot those of a stream.
        places = set() if data.streaming else {"data_dir"}
        changed = {
            key: f"{key}: {previous.get(key)!r} there, {current.get(key)!r} now"
            for key in sorted((previous.keys() | current.keys()) - places)
            if previous.get(key) != current.get(key)
        }
        # Whether a rate is null decides which parameters form a group of the optimizer, whose state is saved by group.
        changeable = {key for key in changed.keys() & _CHANGEABLE if None not in (previous.get(key), current.get(key))}
        fixed = [told for key, told in changed.items() if key not in changeable or not accept_changes]
        if fixed:
            also = "" if changed.keys() - changeable else ", or add --resume-with-changes to go on with the new ones"
            raise RecipeError(
                f"{output_dir} holds a run with other settings ({'; '.join(fixed)}). Set another --output_dir to "
                f"start anew, or the old settings to go on{also}."
            )
    return current


def check_same_data(checkpoint: str | Path, manifest: dict) -> None:
    """Raises a [`RecipeError`] when the clips or captions of a split are not those that a checkpoint was trained with.

    Facts that neither manifest has, such as the clips of a stream, are not compared.
    """
    path = Path(checkpoint) / MANIFEST
    if not path.exists():
        return
    previous = json.loads(path.read_text(encoding="utf-8"))["splits"]
    current = json.loads(json.dumps(manifest))["splits"]
    changed = [
        split
        for split in sorted(previous.keys() | current.keys())
        if any(previous.get(split, {}).get(key) != current.get(split, {}).get(key) for key in ("revision", "clips"))
    ]
    if changed:
        raise RecipeError(
            f"the clips or captions of {', '.join(changed)} are not those that {checkpoint} was trained with, which "
            f"{MANIFEST} in it lists. Restore them to go on, or set another --output_dir to start anew."
        )


def check_writable(output_dir: str | Path, make: bool = True) -> None:
    """Raises a [`RecipeError`] when nothing can be written to the folder of a run.

    Args:
        make: Whether to make it. Otherwise the nearest existing folder above it is tried.
    """
    try:
        folder = Path(output_dir)
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise RecipeError(f"output_dir {str(output_dir)!r} cannot be written: {error}. Name another one.") from error
