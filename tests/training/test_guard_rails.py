"""Guard rails of training: steps that must not be taken, and signs of a run that has gone wrong."""

import json
import math

import pytest
import torch

from supclap.errors import NonFiniteError
from supclap.training.callbacks.guard_rails import GuardRailsCallback
from supclap.training.model import mean_cosine


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_a_step_with_a_nan_loss_stops_training_and_its_ids_are_in_a_file(make_trainer, tmp_path):
    trainer = make_trainer(bad=["clip5"], max_steps=2)
    with pytest.raises(NonFiniteError, match="step 2: .*nonfinite_batches.jsonl"):
        trainer.train()
    entry = json.loads((tmp_path / "nonfinite_batches.jsonl").read_text())
    assert entry["ids"] == ["clip4", "clip5", "clip6", "clip7"]
    assert entry["step"] == 2
    assert entry["loss"] == "nan"


def test_a_skipped_step_changes_no_weight_and_is_counted(make_trainer):
    trainer = make_trainer(bad=["clip0"], max_steps=1, skip_nonfinite_steps=1, weight_decay=0.1)
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [entry["skipped_steps"] for entry in trainer.state.log_history if "skipped_steps" in entry] == [1]


def test_training_learns_from_the_batches_around_a_skipped_one(make_trainer):
    trainer = make_trainer(bad=["clip0"], max_steps=2, skip_nonfinite_steps=1)
    before = weights(trainer)
    trainer.train()
    assert not torch.equal(
        before["clap.text_projection.linear1.weight"], trainer.model.clap.text_projection.linear1.weight
    )
    assert all(value.isfinite().all() for value in weights(trainer).values())
    assert all(math.isfinite(entry["loss_contrastive"]) for entry in trainer.state.log_history if "loss_svr" in entry)


def test_what_is_logged_of_an_accumulated_step_is_the_mean_over_its_batches(make_trainer):
    trainer = make_trainer(max_steps=1, gradient_accumulation_steps=2, learning_rate=1e-12)
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss_svr" in entry]
    assert entry["logit_scale"] == pytest.approx(trainer.model.clap.logit_scale.exp().item())
    parts = entry["loss_contrastive"] + entry["loss_svr"] + 0.01 * entry["loss_constraint"]
    assert entry["loss"] == pytest.approx(parts, rel=1e-3)


def test_more_steps_to_skip_than_allowed_stop_training(make_trainer):
    trainer = make_trainer(bad=["clip0", "clip4"], max_steps=2, skip_nonfinite_steps=1)
    with pytest.raises(NonFiniteError, match=r"step 2: .*\(1 were left out\)"):
        trainer.train()


def test_an_infinite_gradient_of_a_finite_loss_is_not_applied(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer.model.clap.text_projection.linear1.weight.register_hook(lambda gradient: gradient * math.inf)
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match="gradient"):
        trainer.train()
    assert all(torch.equal(before[name], value) for name, value in weights(trainer).items())


def test_mean_cosine_is_the_mean_over_different_rows():
    embeds = torch.nn.functional.normalize(torch.randn(5, 7), dim=1)
    cosines = embeds @ embeds.T
    expected = cosines[~torch.eye(5, dtype=torch.bool)].mean()
    torch.testing.assert_close(mean_cosine(embeds), expected)
    assert mean_cosine(embeds[:1]) == 0


def test_a_collapsed_tower_shows_in_the_log_of_a_run_and_is_warned_of(make_trainer):
    trainer = make_trainer(max_steps=4, learning_rate=1e-9)
    torch.nn.init.zeros_(trainer.model.clap.text_projection.linear2.weight)
    torch.nn.init.ones_(trainer.model.clap.text_projection.linear2.bias)
    guard = GuardRailsCallback(100.0)
    trainer.add_callback(guard)
    trainer.train()
    assert "text inputs have a mean cosine of 1.0000" in guard.warned["text collapsed"]


PROBLEMS = {
    "audio collapsed": {"audio_cosine": 0.995},
    "text collapsed": {"text_cosine": 0.995},
    "temperature": {"logit_scale": 100.0},
    "radius": {"radius_out_of_range": 0.6},
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_lasting_problem_is_reported_once_with_what_to_try(make_trainer, problem):
    from transformers import TrainerState

    args, guard = make_trainer(max_steps=10).args, GuardRailsCallback(100.0)
    for step in range(1, 8):
        guard.on_log(args, TrainerState(global_step=step), None, logs={"loss": 1.0, **PROBLEMS[problem]})
        assert list(guard.warned) == ([problem] if step >= 3 else [])
    assert guard.warned[problem].startswith("step 3:")
    assert "Try " in guard.warned[problem]


def test_problems_that_pass_or_belong_to_the_warm_up_are_not_reported(make_trainer):
    from transformers import TrainerState

    args, guard = make_trainer(max_steps=10, warmup_steps=5).args, GuardRailsCallback(100.0)
    bad, good = ({"loss": 1.0, "text_cosine": value} for value in (0.999, 0.5))
    for step, logs in enumerate([bad] * 4 + [bad, bad, good, bad, bad], start=1):
        guard.on_log(args, TrainerState(global_step=step, max_steps=10), None, logs=logs)
    assert not guard.warned
