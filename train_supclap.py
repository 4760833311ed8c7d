"""Trains a SupCLAP model from a recipe: `accelerate launch train_supclap.py configs/x.yaml [--key value ...]`.

Run again after a kill, the same command goes on from the last checkpoint. At the end it evaluates the model on the
test split, saves it to `output_dir` as a standard checkpoint and says where everything is.
"""

import sys

from supclap.config import RecipeError, parse_recipe
from supclap.data.sources import DataError


def main(argv: list[str] | None = None) -> dict:
    """Trains, evaluates and saves.

    Args:
        argv: The recipe and its overrides; the process's own arguments when omitted.

    Returns:
        The results that are also written to `results.json`.
    """
    model_args, data_args, training_args = parse_recipe(sys.argv[1:] if argv is None else argv)

    from transformers import ProgressCallback, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    from supclap import recipe
    from supclap.callbacks import ShortProgressCallback, TrainingCurvesCallback
    from supclap.data.manifest import build_manifest
    from supclap.data.sources import load_splits
    from supclap.report import evaluate_and_report
    from supclap.trainer import SupClapTrainer

    recipe.quiet_libraries()
    recipe.use_all_cores()
    splits = load_splits(data_args)
    recipe.check_recipe(training_args.output_dir, model_args, data_args, training_args)
    set_seed(training_args.seed)
    processor = recipe.build_processor(model_args)
    model = recipe.build_model(model_args)
    rate = processor.feature_extractor.sampling_rate
    train_data = recipe.build_training_data(splits["train"], data_args, training_args.seed, rate)
    recipe.check_batch_size(train_data, training_args)
    collator = recipe.build_collator(processor, data_args, training_args.seed)
    evaluation = {
        split: recipe.build_evaluation_data(splits[split], getattr(data_args, f"{split}_scenes"), rate)
        for split in ("validation", "test")
        if split in splits
    }
    last_checkpoint = get_last_checkpoint(training_args.output_dir)
    if last_checkpoint is None and recipe.has_random_audio_encoder(model_args):
        batches = data_args.input_statistics_batches
        recipe.fit_input_statistics(model, train_data, collator, batches, training_args.train_batch_size)

    trainer = SupClapTrainer(
        model=model,
        args=training_args,
        processing_class=processor,
        data_collator=collator,
        train_dataset=train_data,
        eval_dataset=evaluation.get("validation"),
        callbacks=[TrainingCurvesCallback()],
        manifest=build_manifest(splits, data_args.content_hashes) if training_args.should_save else None,
    )
    if not training_args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(ShortProgressCallback())
    trainer.train(resume_from_checkpoint=last_checkpoint)
    trainer.save_model()
    return evaluate_and_report(trainer, splits, evaluation.get("test"))


if __name__ == "__main__":
    try:
        main()
    except (RecipeError, DataError) as error:
        sys.exit(f"error: {error}")
