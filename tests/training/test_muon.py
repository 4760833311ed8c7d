"""Muon for weight matrices inside AdamW, against torch's own optimisers."""

import copy

import pytest
import torch

from supclap import SupClapTrainer, SupClapTrainingArguments
from supclap.training.muon import MuonAdamW, orthogonalize, use_muon
from support.builders import small_model


SHAPES = [(24, 8), (8, 24), (16, 16), (24, 8)]


def matrices() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def take_steps(optimizer, parameters, steps: int = 3) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("shape", [(32, 8), (8, 32), (16, 16)])
def test_orthogonalize_brings_singular_values_near_1_and_keeps_singular_vectors(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    found = left.T @ orthogonalize(1e3 * matrix[None])[0] @ right.T
    torch.testing.assert_close(found, torch.diag(found.diagonal()), atol=1e-9, rtol=0)
    assert values.max() / values.min() > 1.5
    assert found.diagonal().min() > 0.6
    assert found.diagonal().max() < 1.3


def test_muon_groups_follow_torch_muon():
    ours, theirs = matrices(), matrices()
    optimizer = MuonAdamW(ours, lr=1e-2, weight_decay=0.1)
    use_muon(optimizer, ours, 1e-2)
    reference = torch.optim.Muon(theirs, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    start = matrices()
    take_steps(optimizer, ours)
    take_steps(reference, theirs)
    for before, mine, other in zip(start, ours, theirs, strict=True):
        change, expected = mine - before, other - before
        # torch multiplies in bfloat16, of 8 bits
        assert (change - expected).norm() < 0.02 * expected.norm()


def test_other_groups_follow_torch_adamw():
    ours, theirs = matrices(), matrices()
    optimizer = MuonAdamW(ours, lr=1e-2, weight_decay=0.1)
    use_muon(optimizer, ours[:1], 1e-3)
    take_steps(optimizer, ours)
    take_steps(torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1), theirs)
    assert not torch.equal(ours[0], theirs[0])
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert torch.equal(mine, other)


def test_a_saved_state_goes_on_to_the_same_weights():
    whole = matrices()
    optimizer = MuonAdamW(whole, lr=1e-2)
    use_muon(optimizer, whole[:2], 1e-3)
    take_steps(optimizer, whole, 2)
    resumed = [torch.nn.Parameter(value.detach().clone()) for value in whole]
    other = MuonAdamW(resumed, lr=1e-2)
    use_muon(other, resumed[:2], 1e-3)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(optimizer, whole)
    take_steps(other, resumed)
    for expected, found in zip(whole, resumed, strict=True):
        assert torch.equal(expected, found)


def test_a_gradient_scaler_skips_a_step_that_overflowed():
    parameters = matrices()
    optimizer = MuonAdamW(parameters, lr=1e-2, fused=True)
    use_muon(optimizer, parameters[:2], 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(sum(parameter.square().sum() for parameter in parameters)).backward()
    parameters[0].grad[0, 0] = torch.inf
    scaler.step(optimizer)
    for before, after in zip(matrices(), parameters, strict=True):
        assert torch.equal(before, after)


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


def test_muon_beside_another_optimiser_is_refused(processor, tmp_path):
    with pytest.raises(ValueError, match="muon_learning_rate goes with optim adamw_torch"):
        trainer(processor, tmp_path, optim="sgd").create_optimizer()
