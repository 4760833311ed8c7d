"""A run under DeepSpeed, on one process: Accelerate starts it with no more on CPU. Needs `pip install deepspeed`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import processes
from support.builders import write_recipe
from support.paths import ROOT


CONFIG = ROOT / "configs" / "accelerate" / "deepspeed_zero2.yaml"
pytestmark = pytest.mark.record  # compiles DeepSpeed's part for CPU


@pytest.fixture(scope="module")
def run(tmp_path_factory, tones, text_encoder):
    """The recipe and the folder of a finished run."""
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("deepspeed")
    recipe = write_recipe(folder, tones, text_encoder, use_cpu=False, max_steps=6, save_steps=3, eval_steps=3)
    launch(recipe)
    return recipe, folder / "run"


def launch(recipe: Path, *overrides: str) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIG)]
    command += ["--num_processes", "1", "--mixed_precision", "no", str(ROOT / "train_supclap.py"), str(recipe)]
    done = subprocess.run(
        [*command, *overrides], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-3000:]


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in processes.history(folder, 6) if "loss" in entry]


def test_its_losses_are_those_without_it(run, tmp_path):
    recipe, folder = run
    assert (folder / "checkpoint-3" / "global_step3").is_dir()
    processes.finish(recipe, "--output_dir", str(tmp_path / "plain"))
    assert losses(folder) == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)


def test_it_resumes_to_the_same_losses(run, tmp_path):
    recipe, folder = run
    shutil.copytree(folder, tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-6")
    launch(recipe, "--output_dir", str(tmp_path / "killed"))
    assert losses(tmp_path / "killed") == losses(folder)
