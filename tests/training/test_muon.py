"""Muon for weight matrices beside AdamW, against torch's own optimizers."""

import copy

import pytest
import torch

from supclap import SupClapTrainer, SupClapTrainingArguments
from supclap.errors import SettingsError
from supclap.training.optimizers import MuonAdamW
from support.builders import small_model


SHAPES = [(24, 8), (8, 24), (16, 16), (24, 8)]


def matrices() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def optimizer_of(parameters: list[torch.nn.Parameter], with_muon: int, **options) -> MuonAdamW:
    """An optimizer whose first parameters Muon updates."""
    groups = [
        {"params": parameters[with_muon:], "lr": 1e-2, "weight_decay": 0.1},
        {"params": parameters[:with_muon], "lr": 1e-3, "weight_decay": 0.1, "muon": True},
    ]
    return MuonAdamW([group for group in groups if group["params"]], **options)


def take_steps(optimizer, parameters, steps: int = 3) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_matrices_follow_torch_muon_and_the_others_torch_adamw():
    ours, theirs = matrices(), matrices()
    take_steps(optimizer_of(ours, 2, bfloat16=True), ours)
    take_steps(torch.optim.Muon(theirs[:2], lr=1e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), theirs)
    take_steps(torch.optim.AdamW(theirs[2:], lr=1e-2, weight_decay=0.1), theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


def test_in_the_type_of_the_weights_an_update_is_nearer_to_the_orthogonal_matrix_of_the_polynomial():
    # The singular values s of the first update, which is the gradient times a factor, become p(p(p(p(p(s))))).
    parameter = torch.nn.Parameter(torch.zeros(8, 24))
    parameter.grad = torch.randn(8, 24, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(parameter.grad.double(), full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = -0.2 * 24**0.5 * left @ values.diag() @ right
    optimizer = MuonAdamW(
        [
            {"params": [parameter], "lr": 1.0, "weight_decay": 0.0, "muon": True},
            {"params": [torch.nn.Parameter(torch.zeros(2))]},
        ]
    )
    optimizer.step()
    torch.testing.assert_close(parameter.double(), expected, rtol=0, atol=1e-5)


def test_a_saved_state_goes_on_to_the_same_weights():
    whole = matrices()
    optimizer = optimizer_of(whole, 2)
    take_steps(optimizer, whole, 2)
    resumed = [torch.nn.Parameter(value.detach().clone()) for value in whole]
    other = optimizer_of(resumed, 2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(optimizer, whole)
    take_steps(other, resumed)
    for expected, found in zip(whole, resumed, strict=True):
        assert torch.equal(expected, found)


def test_a_learning_rate_schedule_reaches_both():
    parameters = matrices()
    optimizer = optimizer_of(parameters, 2)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    take_steps(optimizer, parameters)
    for before, after in zip(matrices(), parameters, strict=True):
        assert torch.equal(before, after)


def test_a_gradient_scaler_skips_a_step_that_overflowed():
    parameters = matrices()
    optimizer = optimizer_of(parameters, 2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(sum(parameter.square().sum() for parameter in parameters)).backward()
    parameters[0].grad[0, 0] = torch.inf
    scaler.step(optimizer)
    for before, after in zip(matrices(), parameters, strict=True):
        assert torch.equal(before, after)


def test_a_torch_without_muon_is_refused_with_the_version_to_install(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(SettingsError, match="needs torch 2.9 or newer"):
        optimizer_of(matrices(), 2)


def trainer(processor, folder, **arguments) -> SupClapTrainer:
    args = SupClapTrainingArguments(output_dir=folder, use_cpu=True, muon_learning_rate=2e-3, **arguments)
    return SupClapTrainer(model=small_model(), args=args, processing_class=processor, data_collator=lambda rows: rows)


def test_the_trainer_gives_muon_the_matrices_outside_of_the_text_encoder(processor, tmp_path):
    run = trainer(processor, tmp_path, text_learning_rate=1e-4)
    groups = run.create_optimizer().param_groups
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    placed = {names[p]: (group.get("muon", False), group["lr"]) for group in groups for p in group["params"]}
    assert placed.keys() == set(names.values())
    assert placed["clap.audio_model.blocks.0.attn.qkv.weight"] == (True, 2e-3)
    assert placed["clap.text_projection.linear1.weight"] == (True, 2e-3)
    assert placed["clap.audio_model.blocks.0.attn.qkv.bias"] == (False, run.args.learning_rate)
    assert placed["clap.text_model.encoder.layer.0.output.dense.weight"] == (False, 1e-4)
    assert not any(muon for name, (muon, _) in placed.items() if "criterion" in name or "embed" in name)


def test_muon_beside_another_optimizer_is_refused(processor, tmp_path):
    with pytest.raises(ValueError, match="muon_learning_rate goes with optim adamw_torch"):
        trainer(processor, tmp_path, optim="sgd").create_optimizer()


def test_an_optimizer_that_groups_by_itself_refuses_rates_of_parts(processor, tmp_path):
    args = SupClapTrainingArguments(output_dir=tmp_path, use_cpu=True, text_learning_rate=1e-4)
    run = SupClapTrainer(small_model(), args, processing_class=processor)
    run.optimizer_cls_and_kwargs = torch.optim.AdamW, {"params": [{"params": list(run.model.parameters())}]}
    with pytest.raises(SettingsError, match="leave out text_learning_rate"):
        run.create_optimizer()


def test_a_resumed_run_has_the_weights_of_one_that_was_not_interrupted(make_trainer, tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "muon_learning_rate": 1e-2}
    whole = make_trainer(**options)
    whole.train()
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    resumed = make_trainer(**options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    found = resumed.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
