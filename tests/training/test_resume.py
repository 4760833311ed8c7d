"""Runs that are killed, asked to end or out of disk space go on as if nothing had happened."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from supclap import SupClapTrainingArguments
from supclap.data.arguments import DataArguments
from supclap.errors import CheckpointError, RecipeError
from supclap.files import write_json
from supclap.recipes.arguments import ModelArguments
from supclap.training.checkpoints import check_whole
from supclap.training.resume import check_recipe
from support import processes
from support.builders import write_recipe
from support.paths import ROOT


STEPS = 18


@pytest.fixture(scope="module")
def long_recipe(tmp_path_factory, tones, text_encoder):
    """A recipe that saves often, so that kills hit saving as well as training, and was run to its end in `run` beside
    it. Dropout, crops, augmentation and one of two captions draw random numbers.
    """
    path = write_recipe(
        tmp_path_factory.mktemp("long"),
        tones,
        text_encoder,
        max_steps=STEPS,
        save_steps=3,
        eval_steps=6,
        save_total_limit=2,
        warmup_steps=4,
        lr_scheduler_type="cosine",
    )
    processes.finish(path)
    return path


def wait_for(condition, run: processes.Run) -> bool:
    """Whether the condition came true before the run ended."""
    while run.process.is_alive():
        if condition():
            return True
        time.sleep(0.001)
    return False


def written(staging: Path, since: float) -> bool:
    """Whether a checkpoint is being written, and not one that an earlier kill left."""
    return any(path.exists() and path.stat().st_mtime > since for path in staging.glob("*"))


def assert_same_run(folder: Path, reference: Path, step: int) -> None:
    """Every logged value, weight, moment of the optimiser, learning rate and random state is equal."""
    assert processes.history(folder, step) == processes.history(reference, step)
    for name in ("model.safetensors", "_svr_criterion.safetensors"):
        one, other = load_file(folder / name), load_file(reference / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    for name in ("optimizer.pt", "scheduler.pt"):
        states = [torch.load(where / f"checkpoint-{step}" / name) for where in (folder, reference)]
        torch.testing.assert_close(*states, rtol=0, atol=0)


def kill_repeatedly(recipe: Path, folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Runs a recipe, killing it at random points, every second time while a checkpoint is being written.

    A run that ends before all kills are done is followed by another one, in a new folder.

    Returns:
        Counts of kills, of those that left a checkpoint half written, and of completed runs.
    """
    rng = random.Random(seed)
    done = {"kills": 0, "inside a checkpoint write": 0, "runs": 0}
    while True:
        output = folder / f"killed{done['runs']}"
        started = time.time()
        run = processes.start(recipe, "--output_dir", str(output))
        staging = output / "_incomplete"
        if done["kills"] < kills:
            wait_for(lambda output=output: (output / "recipe.json").exists(), run)
            if done["kills"] % 2:
                wait_for(lambda staging=staging, since=started: written(staging, since), run)
                time.sleep(rng.uniform(0, 0.02))
            else:
                time.sleep(rng.uniform(0, 1.2))
            run.process.kill()
            if run.wait() == -signal.SIGKILL:
                done["kills"] += 1
                done["inside a checkpoint write"] += staging.exists()
                continue
        assert run.wait() == 0, run.text[-3000:]
        done["runs"] += 1
        if done["kills"] >= kills:
            return done


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.record)])
def test_a_run_killed_at_random_points_gives_the_same_losses_and_weights(long_recipe, tmp_path, kills):
    done = kill_repeatedly(long_recipe, tmp_path, kills, seed=kills)
    print(done)
    assert done["kills"] == kills
    assert done["inside a checkpoint write"]
    for number in range(done["runs"]):
        assert_same_run(tmp_path / f"killed{number}", long_recipe.parent / "run", step=STEPS)


def test_a_half_written_checkpoint_is_not_taken_for_a_whole_one(recipe, tmp_path):
    processes.finish(recipe, "--max_steps", "4")
    half = tmp_path / "run" / "_incomplete" / "checkpoint-8"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"torn")
    assert "4 steps" in processes.finish(recipe, "--max_steps", "4")


def ask_to_end(recipe: Path, folder: Path, step: int) -> int:
    """Runs a recipe, sends SIGTERM after a step and returns the step of the checkpoint that this leaves."""
    run = processes.start(recipe, "--output_dir", str(folder))
    assert wait_for(lambda: f"step {step}:" in run.text, run)
    run.process.terminate()
    assert run.wait() == 75, run.text[-3000:]
    assert (folder / "preempted").exists()
    assert not (folder / "model.safetensors").exists(), "the run ended before it was asked to"
    return max(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def test_after_sigterm_with_a_checkpoint_and_status_75_a_run_goes_on_unchanged(long_recipe, tmp_path):
    assert ask_to_end(long_recipe, tmp_path / "asked", step=7) >= 7
    processes.finish(long_recipe, "--output_dir", str(tmp_path / "asked"))
    assert not (tmp_path / "asked" / "preempted").exists()
    assert_same_run(tmp_path / "asked", long_recipe.parent / "run", step=STEPS)


def test_ctrl_c_which_data_workers_get_too_leaves_a_checkpoint_and_status_75(recipe, tmp_path):
    run = processes.start(recipe, "--dataloader_num_workers", "1")
    assert wait_for(lambda: "step 3:" in run.text, run)
    pid = run.process.pid
    for process in (*Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), pid):
        os.kill(int(process), signal.SIGINT)
    assert run.wait() == 75, run.text[-3000:]
    assert re.search(r"ended by SIGINT at step \d+; run the same command again", run.text)
    assert list((tmp_path / "run").glob("checkpoint-*"))
    assert not (tmp_path / "run" / "model.safetensors").exists(), "the run ended before it was asked to"


def train_and_ask_to_end_in(function: str, argv: list[str]) -> None:
    """Trains; the function, when called, sends this process SIGTERM and goes on for long."""

    def asked(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with mock.patch(function, asked):
        processes._train(argv)


@pytest.mark.parametrize(
    "function",
    [
        "supclap.training.run.load_splits",
        "supclap.training.text_cache.FrozenTextCache.fill",
        "supclap.training.run.evaluate_and_report",
    ],
)
def test_sigterm_with_nothing_to_save_leaves_marker_and_status_75_at_once(recipe, tmp_path, function):
    argv = [str(recipe), "--max_steps", "1", "--freeze_text", "true", "--cache_frozen_text", "true"]
    log = tmp_path / "log"
    run = processes.Run(processes.call(train_and_ask_to_end_in, (function, argv), log), log)
    assert run.wait(50) == 75, run.text[-3000:]
    assert (tmp_path / "run" / "preempted").exists()
    assert (tmp_path / "run" / "checkpoint-1").exists() == function.endswith("report")


def test_sigterm_within_an_epoch_skips_what_is_due_at_its_end(tmp_path, tones, text_encoder):
    strategies = {"save_strategy": "epoch", "eval_strategy": "epoch", "per_device_train_batch_size": 3}
    recipe = write_recipe(tmp_path, tones, text_encoder, max_steps=10, **strategies)  # of 5 steps an epoch
    saved = ask_to_end(recipe, tmp_path / "asked", step=1)
    assert 1 <= saved < 5
    assert not [entry for entry in processes.history(tmp_path / "asked", saved) if "eval_loss" in entry]
    processes.finish(recipe)
    processes.finish(recipe, "--output_dir", str(tmp_path / "asked"))
    assert_same_run(tmp_path / "asked", tmp_path / "run", step=10)


@pytest.mark.record
def test_torchrun_passes_sigterm_on_and_both_processes_stop_at_one_step(long_recipe, tmp_path):
    def launch(folder: Path) -> subprocess.Popen:
        options = ["--output_dir", str(folder), "--per_device_train_batch_size", "4"]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        with (tmp_path / f"{folder.name}.log").open("a") as log:
            return subprocess.Popen(
                [*command, str(ROOT / "train_supclap.py"), str(long_recipe), *options],
                stdout=log,
                stderr=log,
            )

    assert launch(tmp_path / "whole").wait(600) == 0
    process = launch(tmp_path / "asked")
    while "step 7:" not in (tmp_path / "asked.log").read_text():
        assert process.poll() is None, (tmp_path / "asked.log").read_text()[-3000:]
        time.sleep(0.05)
    process.terminate()
    assert process.wait(120) != 0
    assert (tmp_path / "asked" / "preempted").exists()
    assert not (tmp_path / "asked" / "model.safetensors").exists()
    assert launch(tmp_path / "asked").wait(600) == 0
    assert_same_run(tmp_path / "asked", tmp_path / "whole", step=STEPS)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_a_full_disk_is_named_and_leaves_the_last_checkpoint_to_go_on_from(long_recipe, tmp_path, file):
    sizes = {path.name: path.stat().st_size for path in (long_recipe.parent / "run" / f"checkpoint-{STEPS}").iterdir()}
    limit = sizes[file] - 10_000
    assert (file == "optimizer.pt") == (sizes["model.safetensors"] < limit), "another file is the first to fail"
    folder = tmp_path / "full"
    run = processes.start(long_recipe, "--output_dir", str(folder))
    assert wait_for((folder / "checkpoint-6").exists, run)
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    assert run.wait() == 1
    assert re.search(r"error: checkpoint-\d+ could not be written to .*GiB free", run.text)
    assert re.search(r"Checkpoint-\d+ is whole. Free space there", run.text)
    assert "Traceback" not in run.text
    assert not (folder / "_incomplete").exists()
    processes.finish(long_recipe, "--output_dir", str(folder))
    assert_same_run(folder, long_recipe.parent / "run", step=STEPS)


def test_a_full_disk_names_the_whole_checkpoint_and_leaves_no_half_model(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="^the model could not be written .* Checkpoint-1 is whole"):
            trainer.save_model()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    trainer.save_model()
    assert load_file(tmp_path / "model.safetensors")
    assert not (tmp_path / "_incomplete").exists()


def test_every_saved_file_is_on_the_disk_before_it_gets_its_name(make_trainer, tmp_path, monkeypatch):
    on_disk, fsync, replace = set(), os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (on_disk.add(os.fstat(file).st_ino), fsync(file)))
    moved = []

    def checked_replace(path, target):
        if "_incomplete" in path.parts and "_incomplete" not in Path(target).parts:
            moved.append(path.name)
            assert {each.stat().st_ino for each in (path, *path.rglob("*"))} <= on_disk
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", checked_replace)
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.save_model()
    assert {"checkpoint-1", "model.safetensors", "config.json"} <= set(moved)
    assert tmp_path.stat().st_ino in on_disk


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state.pth"])
def test_a_damaged_checkpoint_is_named_to_be_deleted(make_trainer, tmp_path, file):
    make_trainer(max_steps=1, save_strategy="steps", save_steps=1).train()
    path = tmp_path / "checkpoint-1" / file
    check_whole(path.parent)
    for content in (path.read_bytes()[:-10], b""):
        path.write_bytes(content)
        with pytest.raises(
            CheckpointError, match=f"{file} is missing or damaged .* Delete the folder .*checkpoint-1,"
        ):
            check_whole(path.parent)


def test_an_empty_last_checkpoint_or_recipe_is_told_with_what_to_delete(recipe, tmp_path):
    (tmp_path / "run" / "checkpoint-4").mkdir(parents=True)
    run = processes.start(recipe)
    assert run.wait() == 1
    assert re.match("error: .*checkpoint-4/trainer_state.json is missing .*Delete the", run.text.splitlines()[-1])
    (tmp_path / "run" / "recipe.json").write_text("")
    run = processes.start(recipe)
    assert run.wait() == 1
    assert re.match("error: .*recipe.json is damaged .*Delete it", run.text.splitlines()[-1])


def test_a_resumed_optimizer_takes_the_rate_decay_and_precision_asked_for(make_trainer, tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    make_trainer(learning_rate=1e-3, weight_decay=0.1, **options).train()
    checkpoint = tmp_path / "checkpoint-2"
    torch.save({}, checkpoint / "scaler.pt")  # of a run in fp16
    trainer = make_trainer(learning_rate=1e-5, weight_decay=0.01, **options)
    seen = []
    trainer.training_step = lambda *args: (
        seen.append([(group["lr"], group["weight_decay"]) for group in trainer.optimizer.param_groups])
        or type(trainer).training_step(trainer, *args)
    )
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert [{rate for rate, _ in groups} for groups in seen] == [{1e-5 * 2 / 4}, {1e-5 / 4}]
    assert {decay for groups in seen for _, decay in groups} == {0.01, 0.0}


def test_the_recorded_time_of_a_resumed_run_is_that_of_all_its_parts(recipe, tmp_path):
    processes.finish(recipe, "--max_steps", "8")
    folder = tmp_path / "run"
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    first_part = state["stateful_callbacks"]["TrainingTimeCallback"]
    assert first_part["seconds"] > 0
    assert first_part["first_step"] == 0
    state["stateful_callbacks"]["TrainingTimeCallback"]["seconds"] = 3600.0
    (folder / "checkpoint-4" / "trainer_state.json").write_text(json.dumps(state))
    shutil.rmtree(folder / "checkpoint-8")
    processes.finish(recipe, "--max_steps", "8")
    record = json.loads((folder / "run.json").read_text())
    assert 3600 < record["seconds"] < 3600 + 600
    assert (record["first_step"], record["last_step"]) == (0, 8)
    processes.finish(recipe, "--max_steps", "8")
    again = json.loads((folder / "run.json").read_text())
    assert {key: again[key] for key in ("seconds", "first_step", "last_step")} == {
        key: record[key] for key in ("seconds", "first_step", "last_step")
    }
    assert "Steps 0 to 8" in (folder / "README.md").read_text()


def test_going_on_with_an_edited_caption_is_refused_and_names_the_split(tmp_path, tones, text_encoder):
    folder = shutil.copytree(tones, tmp_path / "tones")
    recipe = write_recipe(tmp_path, folder, text_encoder, max_steps=2, save_steps=1, save_total_limit=2)
    processes.finish(recipe)
    lines = (folder / "metadata.csv").read_text().splitlines()
    edited = next(number for number, line in enumerate(lines) if ",train," in f"{line},")
    lines[edited] = lines[edited].replace("tone", "sound")
    (folder / "metadata.csv").write_text("\n".join(lines))
    run = processes.start(recipe)
    assert run.wait() == 1
    assert re.match(
        "error: the clips or captions of train are not those that .*checkpoint-2", run.text.splitlines()[-1]
    )


def test_a_run_goes_on_with_its_data_in_another_folder(tmp_path, tones, text_encoder):
    recipe = write_recipe(tmp_path, tones, text_encoder, max_steps=2, save_steps=1, save_total_limit=2)
    processes.finish(recipe)
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    moved = shutil.copytree(tones, tmp_path / "moved")
    processes.finish(recipe, "--data_dir", str(moved))
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["data_dir"] == str(moved)


def guard(folder: Path, streaming: bool = False, **training) -> None:
    """Asks the guard of a resumed run about settings."""
    arguments = SupClapTrainingArguments(str(folder), **training)
    recipe = check_recipe(folder, ModelArguments(), DataArguments(streaming=streaming), arguments)
    write_json(folder / "recipe.json", recipe)


def test_another_number_of_data_workers_is_refused_for_a_stream_alone(tmp_path):
    for streaming in (False, True):
        guard(tmp_path / str(streaming), streaming, dataloader_num_workers=2)
    guard(tmp_path / "False", False, dataloader_num_workers=0)
    with pytest.raises(RecipeError, match="dataloader_num_workers: 2 there, 0 now"):
        guard(tmp_path / "True", True, dataloader_num_workers=0)


def test_not_skipping_the_data_of_the_steps_done_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="ignore_data_skip true .* leave it out"):
        guard(tmp_path, ignore_data_skip=True)


@pytest.mark.parametrize("dry", [False, True])
def test_an_output_folder_that_cannot_be_made_is_named_before_training(recipe, tmp_path, dry):
    (tmp_path / "file").write_text("")
    run = processes.start(recipe, "--output_dir", str(tmp_path / "file" / "run"), *(["--dry-run"] if dry else []))
    assert run.wait() == 1
    assert run.text.splitlines()[-1].startswith("error: output_dir")
    assert "cannot be written" in run.text
