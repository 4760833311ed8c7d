"""A run from its recipe to the saved, evaluated and described model: what `supclap train` does, step by step."""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from transformers import ProgressCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint

from supclap.data.arguments import DataArguments
from supclap.data.audio_hashes import AUDIO_HASHES
from supclap.data.manifest import build_manifest
from supclap.data.splits import load_splits
from supclap.errors import PushError
from supclap.files import RECIPE, write_json
from supclap.losses import SupClapLoss
from supclap.recipes import build
from supclap.recipes.arguments import ModelArguments
from supclap.training import resume, runtime
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.callbacks.guard_rails import GuardRailsCallback
from supclap.training.callbacks.preemption import PreemptionCallback
from supclap.training.callbacks.reports import ShortProgressCallback, TrainingCurvesCallback, TrainingTimeCallback
from supclap.training.checkpoints import check_whole
from supclap.training.dry_run import plan
from supclap.training.report import evaluate_and_report
from supclap.training.trainer import SupClapTrainer


def train_recipe(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: SupClapTrainingArguments,
    preemption: PreemptionCallback,
    dry_run: bool = False,
    accept_changes: bool = False,
    criterion: Callable[[SupClapTrainingArguments], SupClapLoss] | None = None,
) -> dict:
    """Trains, evaluates, saves and describes a model.

    Args:
        model_args: The section `model` of a recipe.
        data_args: The section `data`.
        args: The section `training`.
        preemption: What ends the run when it is asked to end.
        dry_run: Print the plan of the run instead, and write nothing.
        accept_changes: Go on with other learning rates, weight decay, clipping or precision than the run began with.
        criterion: Makes an objective of your own from the training arguments.

    Returns:
        The results that are also written to `results.json`; nothing after a dry run.

    Raises:
        SupClapError: The settings, the data or the folder do not allow the run.
    """
    output_dir = args.output_dir
    preemption.start(None if dry_run else output_dir)
    build.check_trackers(args.report_to)
    runtime.quiet_libraries()
    runtime.use_all_cores(args.dataloader_num_workers)
    runtime.keep_freed_memory()

    # Data, and whether the folder allows the run
    if data_args.streaming:
        build.check_stream_arguments(args)
    splits = load_splits(data_args)
    recipe = resume.check_recipe(output_dir, model_args, data_args, args, accept_changes)
    if dry_run:
        _write_elsewhere(args)
    resume.check_writable(output_dir, make=not dry_run)

    # Model and batches
    set_seed(args.seed)
    processor = build.build_processor(model_args)
    model = build.build_model(model_args)
    rate = processor.feature_extractor.sampling_rate
    clips = build.build_training_data(splits["train"], data_args, args.seed, rate, args.process_index, args.world_size)
    build.check_batch_size(clips, args)
    collator = build.build_collator(processor, data_args, args.seed, args.positives)
    evaluated = {
        split: build.build_evaluation_data(splits[split], getattr(data_args, key), rate, key)
        for split, key in (("validation", "validation_scenes"), ("test", "test_scenes"))
        if split in splits
    }

    # The checkpoint to go on from, or the beginning
    checkpoint = get_last_checkpoint(args.output_dir)
    if checkpoint is not None:
        check_whole(checkpoint)
    elif build.has_random_audio_encoder(model_args):
        # A stream gives each rank clips of its own; the statistics have to be the same on all of them.
        same_on_all = build.build_training_data(splits["train"], data_args, args.seed, rate)
        batch_size = args.train_batch_size * args.world_size
        build.fit_input_statistics(model, same_on_all, collator, data_args.input_statistics_batches, batch_size)
    manifest = None
    if args.should_save:
        hashes = Path(args.output_dir) / AUDIO_HASHES
        manifest = build_manifest(splits, data_args.content_hashes and not dry_run, hashes)
        if checkpoint is not None:
            resume.check_same_data(checkpoint, manifest)

    trainer = SupClapTrainer(
        model,
        args,
        data_collator=collator,
        train_dataset=clips,
        eval_dataset=evaluated.get(args.choose_checkpoint_on),
        processing_class=processor,
        criterion=None if criterion is None else criterion(args),
        manifest=manifest,
        callbacks=[preemption, GuardRailsCallback(model.config.logit_scale_max), TrainingTimeCallback()],
    )
    progress = ShortProgressCallback()
    if not args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(progress)
    if dry_run:
        counts = {"train": None if data_args.streaming else len(clips)}
        text = plan(trainer, counts | {split: len(data) for split, data in evaluated.items()})
        if trainer.is_world_process_zero():
            print(text)
        return {}

    trainer.add_callback(TrainingCurvesCallback())
    # The recipe is written only now, so that a start that failed can be mended in the same folder.
    write_json(Path(output_dir) / RECIPE, recipe)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        progress.close()
    preemption.end_training(trainer.state.global_step)
    trainer.save_model()
    results = evaluate_and_report(trainer, splits, evaluated.get("test"))
    if args.push_to_hub:
        _push(trainer)
    return results


def _write_elsewhere(args: SupClapTrainingArguments) -> None:
    """Lets a dry run write to a folder that goes with the process, and report to nobody."""
    args.output_dir, args.report_to, args.push_to_hub = tempfile.mkdtemp(), [], False
    atexit.register(shutil.rmtree, args.output_dir)


def _push(trainer: SupClapTrainer) -> None:
    try:
        trainer.push_to_hub()
    except (OSError, ValueError) as error:
        folder, repo = trainer.args.output_dir, trainer.hub_model_id
        raise PushError(
            f"not uploaded: {error} The model is in {folder}; `supclap push {folder} {repo}` tries again."
        ) from error
