"""The study script: its rows are what they say, and two tiny steps of some give a table."""

import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file


ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
import svr_study  # noqa: E402

import train_supclap  # noqa: E402
from supclap.config import parse_recipe  # noqa: E402
from supclap.trainer import build_criterion  # noqa: E402


@pytest.mark.parametrize("row", svr_study.ROWS)
def test_every_row_is_a_recipe(row, tmp_path):
    argv = []

    def train(arguments):
        argv.extend(arguments)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        svr_study.run(ROOT / "configs/quickstart.yaml", row, 3, tmp_path, [], train)
    _, _, args = parse_recipe([*argv, "--use_cpu", "true"])
    criterion = build_criterion(args)
    assert (args.seed, args.drift) == (3, True)
    assert criterion.objective == ("siglip" if row.startswith("siglip") else "infonce")


def test_zero_radius_is_a_second_loss_whose_radius_never_moves():
    row = svr_study.ROWS["zero-radius"]
    assert (row["svr"], row["radius_init"], row["radius_learning_rate"]) == ("static", 0.0, 0.0)


def test_intervals_are_those_of_student():
    assert svr_study.with_interval([1.0, 2.0, 3.0]) == "2 ± 2.5"  # 4.303 * 1 / sqrt(3)
    assert svr_study.with_interval([1.5]) == "1.5"


def test_differences_are_paired_with_the_plain_loss_of_the_same_objective():
    results = {"infonce": [{"r": 1.0}, {"r": 5.0}], "bi-dynamic": [{"r": 2.0}, {"r": 6.0}], "siglip": [{"r": 0.0}] * 2}
    lines = svr_study.table(results).splitlines()
    assert lines[3].endswith("(Δ 1 ± 0) |")
    assert "Δ" not in lines[2] + lines[4]


def test_two_steps_of_some_rows_give_a_table_and_are_not_run_again(recipe, tmp_path):
    rows = ["infonce", "zero-radius", "detached-direction", "perpendicular-0.25", "siglip-bi-dynamic"]
    overrides = ["--max_steps", "2", "--drift_steps", "1", "--eval_strategy", "no", "--save_strategy", "no"]
    calls = []

    def train(argv):
        calls.append(argv)
        train_supclap.main(argv)

    for _ in range(2):
        text = svr_study.study(recipe, rows, [0], tmp_path, overrides, train)
    assert len(calls) == len(rows)
    assert (tmp_path / "table.md").read_text().startswith(text)
    assert "cos_gradient_tangent" in text
    weights = load_file(tmp_path / "zero-radius-seed0" / "_svr_criterion.safetensors")
    assert weights["radius.0.value"].item() == 0
