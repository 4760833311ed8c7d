"""The study script: its rows are what they say, and two tiny steps of some give a table."""

import json
import sys
from pathlib import Path

import pytest

from supclap.files import DRIFT
from support.paths import ROOT


sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
import svr_study  # noqa: E402

from supclap import SupClapTrainer  # noqa: E402
from supclap.cli.train import train  # noqa: E402
from supclap.recipes.parser import parse_recipe  # noqa: E402
from supclap.training.callbacks.drift import read_drift  # noqa: E402
from supclap.training.objective import build_criterion  # noqa: E402


TWO_STEPS = ["--max_steps", "2", "--drift_steps", "1", "--eval_strategy", "no", "--save_strategy", "no"]


@pytest.mark.parametrize("recipe_name", ["quickstart", "esc10"])
@pytest.mark.parametrize("row", svr_study.ROWS)
def test_every_row_is_a_recipe(row, recipe_name, tmp_path):
    argv, controls = [], {}

    def train(arguments, of_row):
        argv.extend(arguments)
        controls.update(of_row)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        svr_study.run(ROOT / f"configs/study/{recipe_name}.yaml", row, 3, tmp_path, ["--max_steps", "7"], train)
    model_args, _, args = parse_recipe([*argv, "--use_cpu", "true"])
    criterion = build_criterion(args, svr_study.ControlledLoss, **controls)
    assert (args.seed, args.drift, args.max_steps) == (3, True, 7)
    assert criterion.objective == row.split("_")[0]
    assert (model_args.logit_bias_init_value is not None) == (criterion.objective == "siglip")


def settings(row, folder):
    """Training arguments of a row, on an empty recipe, and its controls."""
    empty, path = folder / "empty.yaml", folder / "row.yaml"
    empty.write_text("")
    controls = svr_study.row_on_recipe(empty, row, path)
    return parse_recipe([str(path), "--use_cpu", "true"])[2], controls


@pytest.mark.parametrize("row", [row for row in svr_study.ROWS if "uni_" in row or "bi_" in row])
def test_rows_of_the_ablation_are_named_by_what_they_set(row, tmp_path):
    args, controls = settings(row, tmp_path)
    expected = [args.svr_direction, args.svr] + ["unconstrained"] * (args.constraint_weight == 0)
    assert row.split("_")[1:] == expected
    assert not controls


def test_zero_radius_is_a_second_loss_whose_radius_never_moves(tmp_path):
    args, _ = settings("infonce_zero_radius", tmp_path)
    assert (args.svr, args.svr_direction, args.radius_init, args.radius_learning_rate) == ("static", "bi", 0, 0)


@pytest.mark.parametrize(
    ("row", "plain", "controls"),
    [
        *((f"infonce_perpendicular_{x}", "infonce", {"perpendicular_push": x}) for x in (0, 0.25, 0.5, 0.75)),
        ("infonce_double_pull", "infonce", {"pull_weight": 2}),
        ("infonce_detached_direction", "infonce_bi_static", {"detach_direction": True}),
    ],
)
def test_rows_of_controls_change_nothing_else(row, plain, controls, tmp_path):
    args, got = settings(row, tmp_path)
    assert got == controls
    assert args.to_dict() == settings(plain, tmp_path)[0].to_dict()


def test_intervals_are_those_of_student():
    assert svr_study.with_interval([1.0, 2.0, 3.0]) == "2 ± 2.5"  # 4.303 * 1 / sqrt(3)
    assert svr_study.with_interval([1.5]) == "1.5"


def test_differences_are_paired_with_the_plain_loss_of_the_same_objective():
    results = {
        "infonce": [{"r": 1.0}, {"r": 5.0}],
        "infonce_bi_dynamic": [{"r": 2.0}, {"r": 6.0}],
        "siglip": [{"r": 0.0}] * 2,
    }
    lines = svr_study.table(results, ["r"]).splitlines()
    assert lines[3].endswith("(Δ 1 ± 0) |")
    assert "Δ" not in lines[2] + lines[4]


def test_two_steps_of_some_rows_give_a_table_and_are_not_run_again(recipe, tmp_path):
    rows = [
        "infonce",
        "infonce_zero_radius",
        "infonce_detached_direction",
        "infonce_perpendicular_0.25",
        "siglip_bi_dynamic",
    ]
    calls = []

    def train_and_count(argv, controls):
        calls.append(argv)
        svr_study.train_row(argv, controls)

    for _ in range(2):
        text = svr_study.study(recipe, rows, [0], tmp_path, TWO_STEPS, train_and_count)
    assert len(calls) == len(rows)
    assert (tmp_path / "table.md").read_text().startswith(text)
    assert "cos_gradient_tangent" in text
    assert [entry["radius_p90"] for entry in read_drift(tmp_path / "infonce_zero_radius-seed0" / DRIFT)] == [0, 0]


def test_finished_runs_keep_no_weights(recipe, tmp_path):
    svr_study.study(recipe, ["infonce_bi_dynamic"], [0], tmp_path, TWO_STEPS)
    kept = {path.name for path in (tmp_path / "infonce_bi_dynamic-seed0").rglob("*")}
    assert kept == {"results.json", "drift.jsonl", "recipe.json", "run.json"}


def test_a_run_is_the_same_behind_another_in_one_process(recipe, tmp_path, monkeypatch):
    losses = []
    log = SupClapTrainer.log
    monkeypatch.setattr(
        SupClapTrainer,
        "log",
        lambda self, logs, *a, **k: (losses.append(logs.get("loss")), log(self, logs, *a, **k))[1],
    )
    for folder in ("first", "second"):
        train([str(recipe), *TWO_STEPS, "--logging_steps", "1", "--output_dir", str(tmp_path / folder)])
    losses = [loss for loss in losses if loss is not None]
    assert len(losses) == 4
    assert losses[:2] == losses[2:]
    first, second = (json.loads((tmp_path / folder / "results.json").read_text()) for folder in ("first", "second"))
    assert first["results"] == second["results"]


def test_words_behind_two_dashes_override_the_recipe(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(svr_study, "study", lambda *arguments: seen.append(arguments))
    argv = ["svr_study.py", "r.yaml", "--seeds", "1", "2", "--output", str(tmp_path), "--", "--data_dir", "sounds"]
    monkeypatch.setattr(sys, "argv", argv)
    svr_study.main()
    assert seen == [(Path("r.yaml"), list(svr_study.ROWS), [1, 2], tmp_path, ["--data_dir", "sounds"])]
