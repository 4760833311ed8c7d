"""Forces against autograd and written-out examples; the callback in a training run; the plot."""

import copy
import json
import math

import pytest
import torch

from supclap.files import DRIFT
from supclap.losses import diagnostics as forces
from supclap.losses import info_nce, siglip, similarity_logits
from supclap.training.callbacks.drift import read_drift
from supclap_cli import main
from support.builders import build_clip_trainer, pair_samples, unit


# ---- Forces ----


@pytest.mark.parametrize("bias", [None, -1.0])
def test_pull_and_push_add_up_to_the_negative_gradient_of_the_loss(bias):
    anchor, positive, negatives = unit(4, 5, seed=1).requires_grad_(), unit(4, 5, seed=2), unit(6, 5, seed=3)
    for i in range(4):  # each anchor with its own positive and all negatives
        keys = torch.cat([positive[i : i + 1], negatives])
        logits = similarity_logits(anchor[i : i + 1], keys, 3.0)
        positives = torch.tensor([0])
        loss = info_nce(logits, positives) if bias is None else siglip(logits, positives, bias)
        (gradient,) = torch.autograd.grad(loss, anchor)
        weight = logits.softmax(-1)[0, 0] if bias is None else torch.sigmoid(logits[0, 0] + bias)
        pull = 3.0 * (1 - weight) * positive[i]
        pushed = forces.push(anchor[i : i + 1], positive[i : i + 1], negatives, 3.0, bias)[0]
        torch.testing.assert_close(pull + pushed, -gradient[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [None, -1.0])
def test_columns_of_an_anchors_own_clip_do_not_push_it(bias):
    anchor, positive, negatives = unit(2, 5, seed=1), unit(2, 5, seed=2), unit(4, 5, seed=3)
    same_clip = torch.tensor([[True, False, False, True], [False, True, False, False]])
    pushed = forces.push(anchor, positive, negatives, 3.0, bias, same_clip)
    for i in range(2):
        expected = forces.push(anchor[i : i + 1], positive[i : i + 1], negatives[~same_clip[i]], 3.0, bias)
        torch.testing.assert_close(pushed[i : i + 1], expected, rtol=1e-12, atol=1e-12)


def test_a_move_along_the_pull_has_no_drift_and_one_across_has_nothing_else():
    anchor, positive = unit(5, 4, seed=1), unit(5, 4, seed=2)
    direction = forces.pull_direction(anchor, positive)
    assert forces.pull_cosine(0.3 * direction, anchor, positive)[0].item() == pytest.approx(1)
    across = forces.split(unit(5, 4, seed=3), direction)[1]
    assert forces.pull_cosine(across, anchor, positive)[0].item() == pytest.approx(0, abs=1e-12)


def test_tangent_cosine_leaves_out_what_the_sphere_does_not_let_happen():
    # t = (1, 0), a = (0, 1): the pull is (-1, 1)/sqrt(2). A move straight up is at 45 degrees to it, but along its tangent.
    text, audio = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    ambient, tangent = forces.pull_cosine(torch.tensor([[0.0, 2.0]]), text, audio)
    assert ambient.item() == pytest.approx(math.sqrt(0.5))
    assert tangent.item() == pytest.approx(1)


def test_push_ratio_of_a_written_out_example():
    # The only negative (-1, 0) pushes t = (1, 0) by (1, 0) times some weight; u = (-1, 1)/sqrt(2) halves it.
    text, audio = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    statistics = forces.push_statistics(text, audio, [torch.tensor([[-1.0, 0.0]])], 2.0)
    assert statistics["push_ratio"].item() == pytest.approx(1)
    weight = 2.0 * math.exp(-2) / (1 + math.exp(-2))
    assert statistics["push_global"].item() == pytest.approx(weight * math.sqrt(0.5))
    assert statistics["push_local"].item() == 0


def test_push_of_batches_is_their_mean_and_their_spread():
    anchor, positive = unit(3, 4, seed=1), unit(3, 4, seed=2)
    batches = [unit(5, 4, seed=seed) for seed in (3, 4)]
    same = forces.push_statistics(anchor, positive, [batches[0]] * 4, 3.0)
    assert same["push_local"].item() == pytest.approx(0, abs=1e-12)
    direction = forces.pull_direction(anchor, positive)
    one, other = (forces.split(forces.push(anchor, positive, b, 3.0), direction)[1] for b in batches)
    got = forces.push_statistics(anchor, positive, batches, 3.0)
    assert got["push_global"].item() == pytest.approx(((one + other) / 2).norm(dim=-1).mean().item())
    assert got["push_local"].item() == pytest.approx(((one - other) / 2).norm(dim=-1).mean().item())


def test_radius_statistics_are_deciles():
    radii = torch.linspace(0, 1, 11).repeat(2, 1)
    statistics = forces.radius_statistics(radii, torch.full((11,), 2.0))
    expected = {"radius_p10": 0.1, "radius_p50": 0.5, "radius_p90": 0.9}
    expected |= {"shrink_p10": 0.55, "shrink_p50": 0.75, "shrink_p90": 0.95}
    assert {name: value.item() for name, value in statistics.items()} == pytest.approx(expected, abs=1e-6)


def test_a_pair_that_coincides_shrinks_nothing():
    statistics = forces.radius_statistics(torch.full((2, 3), 0.1), torch.zeros(3))
    assert {statistics[f"shrink_p{percent}"].item() for percent in (10, 50, 90)} == {1.0}


# ---- The callback ----


def test_measurements_go_to_the_log_and_to_the_file_and_change_nothing(tmp_path):
    plain, measured = (
        build_clip_trainer(tmp_path / "plain"),
        build_clip_trainer(tmp_path / "run", drift=True, drift_steps=2),
    )
    plain.train()
    measured.train()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, measured.model.state_dict()[name]), name
    entries = read_drift(tmp_path / "run" / DRIFT)
    assert [entry["step"] for entry in entries] == [2, 4]
    names = {"cos_gradient", "cos_gradient_tangent", "cos_step", "cos_step_tangent"}
    names |= {"push_ratio", "push_global", "push_local"}
    names |= {f"{name}_p{percent}" for name in ("radius", "shrink") for percent in (10, 50, 90)}
    assert all(set(entry) == names | {"step"} for entry in entries)
    assert all(math.isfinite(value) for entry in entries for value in entry.values())
    logged = [entry for entry in measured.state.log_history if "drift/cos_step" in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    assert logged[1]["drift/cos_step"] == entries[1]["cos_step"]
    assert not (tmp_path / "plain" / DRIFT).exists()
    losses, same_losses = (
        [(entry["step"], entry["loss"]) for entry in run.state.log_history if "loss" in entry]
        for run in (plain, measured)
    )
    assert len(losses) == 4
    assert same_losses == losses


def test_the_push_on_the_probe_leaves_its_own_pairs_out(tmp_path):
    data = [sample | {"clip_ids": 7 * number} for number, sample in enumerate(pair_samples("clip", 4))]
    options = {"drift": True, "drift_steps": 1, "drift_probe_size": 4, "max_steps": 1, "learning_rate": 0.0}
    run = build_clip_trainer(tmp_path, data, train_sampling_strategy="sequential", **options)
    run.train()
    (entry,) = read_drift(tmp_path / DRIFT)
    batch = torch.utils.data.default_collate(data)
    del batch["clip_ids"]
    with torch.no_grad():
        audio, text = run.model.eval().embed(batch)
    own, scale = [torch.eye(4, dtype=torch.bool)], run.model.clap.logit_scale.exp()
    sides = (text, audio, [audio], scale, None, own), (audio, text, [text], scale, None, own)
    expected = sum(forces.push_statistics(*side)["push_global"].item() for side in sides) / 2
    assert entry["push_global"] == pytest.approx(expected, rel=1e-4)
    without = sum(forces.push_statistics(*side[:-1])["push_global"].item() for side in sides) / 2
    assert entry["push_global"] != pytest.approx(without, rel=0.01)


def test_gradient_and_step_are_those_of_training(tmp_path):
    run = build_clip_trainer(
        tmp_path,
        drift=True,
        drift_steps=1,
        drift_probe_size=8,
        max_steps=1,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=1e9,
    )
    before = copy.deepcopy(run.model)
    (batch,) = [batch for _, batch in zip(range(1), run.get_train_dataloader())]
    run.train()
    (entry,) = read_drift(tmp_path / DRIFT)

    def cosine(moves, points):
        sides = zip(moves, points, points[::-1], strict=True)
        return torch.stack([forces.pull_cosine(*side)[0] for side in sides]).mean().item()

    audio, text = before.embed(batch)
    loss = before.criterion(audio, text, before.clap.logit_scale.exp()).loss
    gradients = torch.autograd.grad(loss, (audio, text))
    assert entry["cos_gradient"] == pytest.approx(
        cosine([-g for g in gradients], (audio.detach(), text.detach())), abs=1e-5
    )
    probe = torch.utils.data.default_collate(pair_samples("clip"))
    with torch.no_grad():
        start, end = before.eval().embed(probe), run.model.eval().embed(probe)
    assert entry["cos_step"] == pytest.approx(
        cosine([b - a for a, b in zip(start, end, strict=True)], start), abs=1e-4
    )


def test_a_run_that_goes_on_drops_what_came_after_its_checkpoint(tmp_path):
    options = {"drift": True, "drift_steps": 1, "save_strategy": "steps", "save_steps": 2}
    build_clip_trainer(tmp_path, **options).train()
    with open(tmp_path / DRIFT, "a") as file:
        file.write('{"step": 5, "cos_')
    build_clip_trainer(tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [entry["step"] for entry in read_drift(tmp_path / DRIFT)] == [1, 2, 3, 4]


@pytest.mark.parametrize("options", [{"drift_steps": 0}, {"drift_probe_size": 0}])
def test_a_bad_interval_or_size_is_refused(options, tmp_path):
    with pytest.raises(ValueError, match="must be greater than 0, got 0"):
        build_clip_trainer(tmp_path, drift=True, **options)


# ---- The plot ----


def test_runs_are_drawn_in_one_picture(tmp_path, capsys):
    for name, radius in (("plain", {}), ("svr", {"radius_p50": 0.1, "shrink_p50": 0.9})):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"step": step, "cos_gradient": 0.1 * step, **radius}) for step in (1, 2)]
        (tmp_path / name / DRIFT).write_text("\n".join(lines))
    output = tmp_path / "drift.png"
    assert main(["plot-drift", str(tmp_path / "plain"), str(tmp_path / "svr"), "--output", str(output)]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip() == str(output)


def test_a_run_without_measurements_is_named(tmp_path, capsys):
    assert main(["plot-drift", str(tmp_path)]) == 1
    assert f"{tmp_path} has no measurements in drift.jsonl: train it with `--drift true`" in capsys.readouterr().err


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / DRIFT).write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2, is not a measurement: 'nonsense'"):
        read_drift(tmp_path / DRIFT)
