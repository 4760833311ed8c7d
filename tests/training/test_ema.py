"""The moving average of the weights: its values, what is evaluated and saved, and resuming."""

import shutil

import torch
from safetensors.torch import load_file

from supclap.training.ema import WeightAverage
from support import processes


def test_the_average_is_that_of_its_recursion():
    model = torch.nn.Linear(2, 1)
    average = WeightAverage(model, 0.9)
    average.on_train_begin(None, None, None)
    expected = model.weight.detach().clone()
    for step in range(3):
        with torch.no_grad():
            model.weight.add_(step + 1.0)
        average.on_step_end(None, None, None)
        expected = 0.9 * expected + 0.1 * model.weight.detach()
    torch.testing.assert_close(average.average["weight"], expected)
    weights = model.weight.detach().clone()
    with average.applied():
        torch.testing.assert_close(model.weight.detach(), expected)
    assert torch.equal(model.weight, weights)
    average.finish()
    torch.testing.assert_close(model.weight.detach(), expected)


def test_frozen_parameters_are_not_averaged():
    model = torch.nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    assert list(WeightAverage(model, 0.9).parameters) == ["weight"]


def test_checkpoints_hold_the_average_and_resuming_repeats_the_run(recipe, tmp_path):
    options = ("--ema_decay", "0.8", "--max_steps", "8")
    processes.finish(recipe, *options)
    whole, part = tmp_path / "run", tmp_path / "part"
    averaged = load_file(whole / "checkpoint-8" / "model.safetensors")
    raw = load_file(whole / "checkpoint-8" / "_training_weights.safetensors")
    name = "text_projection.linear1.weight"
    assert not torch.equal(averaged[name], raw[f"clap.{name}"])
    saved = load_file(whole / "model.safetensors")
    assert all(torch.equal(saved[key], averaged[key]) for key in averaged)
    shutil.copytree(whole, part, ignore=shutil.ignore_patterns("checkpoint-8", "*.safetensors"))
    shutil.copytree(whole / "checkpoint-4", part / "checkpoint-4", dirs_exist_ok=True)
    processes.finish(recipe, *options, "--output_dir", str(part))
    assert processes.history(part, 8) == processes.history(whole, 8)
    for file in ("model.safetensors", "_training_weights.safetensors", "_svr_criterion.safetensors"):
        one, other = (load_file(folder / "checkpoint-8" / file) for folder in (whole, part))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_average_is_what_is_evaluated(make_trainer):
    trainer = make_trainer(max_steps=2, ema_decay=0.0)
    trainer.train()
    assert trainer._ema.average is None
    reference = trainer.evaluate(trainer.train_dataset.rows)
    trainer._ema.start()
    with torch.no_grad():
        trainer.model.clap.text_projection.linear2.weight.zero_()
    assert trainer.evaluate(trainer.train_dataset.rows)["eval_loss"] == reference["eval_loss"]
