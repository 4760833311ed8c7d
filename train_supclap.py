"""Trains a SupCLAP model from a recipe: `accelerate launch train_supclap.py configs/x.yaml [--key value ...]`.

Run again after a kill, the same command goes on from the last checkpoint. At the end it evaluates the model on the
test split, saves it to `output_dir` as a standard checkpoint and says where everything is. Asked to end (SIGTERM, Ctrl-C),
it writes a checkpoint and exits with status 75, leaving the file `preempted` in `output_dir`.
"""

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from supclap.errors import RecipeError, SupClapError, in_one_line
from supclap.recipes.parser import parse_recipe
from supclap.training.callbacks.preemption import PreemptionCallback


FLAGS = ("--dry-run", "--resume-with-changes")


def main(argv: list[str] | None = None, criterion: Callable[..., object] | None = None) -> dict:
    """Trains, evaluates and saves.

    Args:
        argv: The recipe and its overrides; the process's own arguments when omitted. With `--dry-run` among them,
            the plan of the run is printed and nothing is written; with `--resume-with-changes` a run goes on with other
            learning rates, weight decay, clipping or precision; with `-h` or `--help`, it tells how to use it.
        criterion: Makes an objective of your own from the training arguments.

    Returns:
        The results that are also written to `results.json`.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if hasattr(sys.stdout, "reconfigure"):  # a notebook has another kind
        sys.stdout.reconfigure(line_buffering=True)  # in a log file, progress when it is made, and errors behind it
    if {"-h", "--help"} & set(argv):
        from supclap.recipes.help import USAGE, all_keys

        print(USAGE if "-h" in argv else USAGE + "\n" + all_keys())
        return {}
    with PreemptionCallback() as preemption:
        return _run(argv, preemption, criterion)


def _run(argv: list[str], preemption: PreemptionCallback, criterion: Callable[..., object] | None) -> dict:
    # either spelling, as of keys
    dry_run, accept_changes = (flag in [word.replace("_", "-") for word in argv] for flag in FLAGS)
    model_args, data_args, training_args = parse_recipe([word for word in argv if word.replace("_", "-") not in FLAGS])
    preemption.start(None if dry_run else training_args.output_dir)

    from transformers import ProgressCallback, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    from supclap.data.audio_hashes import AUDIO_HASHES
    from supclap.data.manifest import build_manifest
    from supclap.data.splits import load_splits
    from supclap.recipes import build as recipe
    from supclap.training import resume as resuming
    from supclap.training import runtime as process
    from supclap.training.callbacks.guard_rails import GuardRailsCallback
    from supclap.training.callbacks.progress import ShortProgressCallback, TrainingCurvesCallback, TrainingTimeCallback
    from supclap.training.checkpoints import check_whole
    from supclap.training.dry_run import plan
    from supclap.training.report import evaluate_and_report
    from supclap.training.trainer import SupClapTrainer

    recipe.check_trackers(training_args.report_to)
    process.quiet_libraries()
    process.use_all_cores(training_args.dataloader_num_workers)
    process.keep_freed_memory()
    if data_args.streaming:
        recipe.check_stream_arguments(training_args)
    splits = load_splits(data_args)
    output_dir = training_args.output_dir
    resuming.check_recipe(output_dir, model_args, data_args, training_args, False, accept_changes)
    if dry_run:
        training_args.output_dir, training_args.report_to = tempfile.mkdtemp(), []
        training_args.push_to_hub = False
        atexit.register(shutil.rmtree, training_args.output_dir)
    resuming.check_writable(output_dir, make=not dry_run)
    set_seed(training_args.seed)
    processor = recipe.build_processor(model_args)
    model = recipe.build_model(model_args)
    rate = processor.feature_extractor.sampling_rate
    place = (training_args.process_index, training_args.world_size)
    train_data = recipe.build_training_data(splits["train"], data_args, training_args.seed, rate, *place)
    recipe.check_batch_size(train_data, training_args)
    collator = recipe.build_collator(processor, data_args, training_args.seed, training_args.positives)
    evaluation = {
        split: recipe.build_evaluation_data(splits[split], getattr(data_args, key), rate, key)
        for split, key in (("validation", "validation_scenes"), ("test", "test_scenes"))
        if split in splits
    }
    last_checkpoint = get_last_checkpoint(training_args.output_dir)
    if last_checkpoint is not None:
        check_whole(last_checkpoint)
    if last_checkpoint is None and recipe.has_random_audio_encoder(model_args):
        batches = data_args.input_statistics_batches
        # the same clips on every rank, also of a stream
        clips = recipe.build_training_data(splits["train"], data_args, training_args.seed, rate)
        batch_size = training_args.train_batch_size * training_args.world_size
        recipe.fit_input_statistics(model, clips, collator, batches, batch_size)

    guard_rails = GuardRailsCallback(model.config.logit_scale_max)
    manifest = None
    if training_args.should_save:
        manifest = build_manifest(
            splits, data_args.content_hashes and not dry_run, Path(training_args.output_dir) / AUDIO_HASHES
        )
        if last_checkpoint is not None:
            resuming.check_same_data(last_checkpoint, manifest)
    try:
        trainer = SupClapTrainer(
            model=model,
            args=training_args,
            processing_class=processor,
            data_collator=collator,
            train_dataset=train_data,
            eval_dataset=evaluation.get(training_args.choose_checkpoint_on),
            callbacks=[
                preemption,
                guard_rails,
                TrainingTimeCallback(),
                *([] if dry_run else [TrainingCurvesCallback()]),
            ],
            manifest=manifest,
            criterion=criterion and criterion(training_args),
        )
    except ValueError as error:  # settings that do not go together
        raise RecipeError(str(error)) from error
    progress = ShortProgressCallback()
    if not training_args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(progress)
    if dry_run:
        counts = {
            "train": None if data_args.streaming else len(train_data),
            **{split: len(data) for split, data in evaluation.items()},
        }
        text = plan(trainer, counts)
        if trainer.is_world_process_zero():
            print(text)
        return {}
    # only now, so that a start that failed can be mended in the same folder
    resuming.check_recipe(output_dir, model_args, data_args, training_args, True, accept_changes)
    try:
        trainer.train(resume_from_checkpoint=last_checkpoint)
    finally:
        progress.close()
    preemption.end_training(trainer.state.global_step)
    trainer.save_model()
    results = evaluate_and_report(trainer, splits, evaluation.get("test"))
    if training_args.push_to_hub:
        try:
            trainer.push_to_hub()
        except (OSError, ValueError) as error:
            folder, repo = training_args.output_dir, trainer.hub_model_id
            sys.exit(
                f"error: not uploaded: {error} The model is in {folder}; `supclap push {folder} {repo}` tries again."
            )
    return results


if __name__ == "__main__":
    try:
        main()
    except (SupClapError, OSError) as error:
        sys.exit(f"error: {in_one_line(error)}")
    except KeyboardInterrupt:
        sys.exit(130)
