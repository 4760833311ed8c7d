"""Training end to end on tones whose caption is their pitch: learning, resuming after a kill, and what is saved."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
import yaml
from safetensors.torch import load_file

from supclap import SupClapModel
from supclap.evaluation.results import entry_of, read_results
from supclap.training import runtime
from supclap_cli import main
from support import processes


def test_a_run_saves_a_model_results_and_curves_and_logs_every_part(recipe, tmp_path):
    printed = processes.finish(recipe)
    folder = tmp_path / "run"
    results = read_results(folder / "results.json")
    retrieval, zero_shot = (entry_of(results, task)["metrics"] for task in ("retrieval", "zero_shot"))
    assert retrieval["text_to_audio/recall@1"]["n"] == 8  # two captions of each of four clips
    assert 0 <= zero_shot["accuracy"]["low"] <= zero_shot["accuracy"]["value"]
    assert (folder / "training_curves.png").read_bytes().startswith(b"\x89PNG")
    for place in (folder, folder / "checkpoint-12"):
        manifest = json.loads((place / "data_manifest.json").read_text())["splits"]
        assert {split: part["n_clips"] for split, part in manifest.items()} == {
            "train": 16,
            "validation": 4,
            "test": 4,
        }
    card = (folder / "README.md").read_text()
    assert "value: 0" in card or "value: 1" in card
    assert "| train | 16 | unknown | not stated (16) |" in card
    assert "Steps 0 to 12" in card
    for name in ("results.json", "training_curves.png", "recipe.json", "_svr_criterion.safetensors", "checkpoint-12"):
        assert re.search(rf"^\w+ +{folder / name}$", printed, re.MULTILINE), name
    assert results["chosen_on"] == "last"
    logged = set().union(*processes.history(folder, 12))
    parts = {"loss", "loss_contrastive", "loss_svr", "loss_constraint", "radius", "pair_distance"}
    assert parts | {"radius_out_of_range", "temperature", "eval_text_to_audio/recall@1", "eval_loss"} <= logged


def test_a_checkpoint_chosen_on_the_test_set_as_in_the_paper_is_labelled(recipe, tmp_path):
    chosen = ["--choose_checkpoint_on", "test", "--metric_for_best_model", "text_to_audio/recall@1"]
    printed = processes.finish(recipe, *chosen, "--load_best_model_at_end", "true", "--max_steps", "4")
    assert "chosen on the TEST set" in printed
    results = read_results(tmp_path / "run" / "results.json")
    assert results["chosen_on"] == "test"
    # the test split is what training evaluated: its best score is the one reported
    state = json.loads((tmp_path / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["best_metric"] == entry_of(results, "retrieval")["metrics"]["text_to_audio/recall@1"]["value"]


def test_choosing_on_the_test_set_needs_a_choice(tmp_path):
    from supclap import SupClapTrainingArguments

    with pytest.raises(ValueError, match="load_best_model_at_end"):
        SupClapTrainingArguments(str(tmp_path), choose_checkpoint_on="test")
    arguments = SupClapTrainingArguments(
        str(tmp_path), load_best_model_at_end=True, eval_strategy="steps", eval_steps=500
    )
    assert arguments.chosen_on == "validation"


def test_the_queries_a_run_saves_give_its_results_again(tiny_model, processor, tmp_path, capsys):
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.evaluation.compare import compare_runs
    from supclap.training.report import evaluate_and_report

    rng = np.random.default_rng(0)
    rows = [
        {"id": f"r{n}", "audio": {"array": 0.1 * rng.standard_normal(8000).astype("f4"), "sampling_rate": 16000}}
        | {"captions": [f"sound {n}", f"noise {n}"], "label": "ab"[n % 2]}
        for n in range(7)
    ]
    args = SupClapTrainingArguments(str(tmp_path), use_cpu=True, eval_pool_size=3)
    results = evaluate_and_report(SupClapTrainer(tiny_model, args, processing_class=processor), {"test": rows}, rows)
    assert entry_of(results, "retrieval")["pool_size"] == 3
    comparisons, _ = compare_runs([tmp_path], [tmp_path])
    again = {(one.task, one.metric): one.a for one in comparisons}
    assert again == {
        (entry["task"], name): metric["value"]
        for entry in results["results"]
        for name, metric in entry["metrics"].items()
        if not name.endswith("median_rank")
    }
    printed = capsys.readouterr().out
    assert "last checkpoint, chosen by no score" in printed
    assert "7 clips in pools of 3 clips" in printed


def test_supclap_evaluate_gives_the_scores_of_the_end_of_training_again(recipe, tones, tmp_path, capsys):
    processes.finish(recipe, "--max_steps", "4")
    run = tmp_path / "run"
    shared = {"data_dir": str(tones), "table": "metadata.csv", "where": {"split": ["test"]}}
    tasks = [
        {"name": "retrieval", "kind": "retrieval", "caption_columns": ["caption", "other"], **shared},
        {"name": "zero_shot", "kind": "zero_shot", "label_column": "label", "templates": ["a {} tone"], **shared},
    ]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"name": "own", "tasks": tasks}))
    arguments = ["--suite", str(tmp_path / "own.yaml"), "--output-dir", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["evaluate", str(run), *arguments]) == 0
    (again,) = (tmp_path / "out").glob("*/own")
    trained, evaluated = (read_results(folder / "results.json") for folder in (run, again))
    assert trained["fingerprint"] == evaluated["fingerprint"]
    assert [entry["metrics"] for entry in trained["results"]] == [entry["metrics"] for entry in evaluated["results"]]
    capsys.readouterr()
    assert main(["compare", str(run), str(again), "--format", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert {one["task"] for one in compared["comparisons"]} == {"retrieval", "zero_shot"}
    assert {one["difference"] for one in compared["comparisons"]} == {0.0}
    assert compared["notes"] == []


def test_test_data_that_cannot_be_scored_end_a_run_with_status_1_and_no_results(recipe, tones, tmp_path):
    folder = shutil.copytree(tones, tmp_path / "tones")
    bad = sorted(folder.glob("*5.wav"))[0]
    soundfile.write(bad, np.full(9000, np.nan), 16000, subtype="FLOAT")
    run = processes.start(recipe, "--max_steps", "1", "--eval_strategy", "no", "--data_dir", str(folder))
    assert run.wait() == 1
    assert re.search(
        rf"error: the model was trained and is saved in {tmp_path / 'run'}, but .*{bad.name}.*is nan",
        run.text.splitlines()[-1],
    ), run.text[-2000:]
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert not (tmp_path / "run" / "results.json").exists()


def test_the_bar_of_the_final_evaluation_is_closed_before_the_summary(tiny_model, processor, tmp_path, capfd):
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.training.report import evaluate_and_report

    args = SupClapTrainingArguments(str(tmp_path), use_cpu=True)
    trainer = SupClapTrainer(tiny_model, args, processing_class=processor)
    audio = {"array": np.ones(8000, "f4"), "sampling_rate": 16000}
    rows = [{"id": "a", "audio": audio, "captions": ["x"]}]
    evaluate_and_report(trainer, {"test": rows}, rows)
    printed = capfd.readouterr().err
    assert "retrieval: 100%" in printed
    assert printed.endswith("\n"), "tqdm ends the line of a bar that is closed"


def test_a_pool_size_above_the_number_of_clips_is_told_as_one_pool(tiny_model, processor, tmp_path, capsys):
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.training.report import evaluate_and_report

    rows = [
        {"id": name, "audio": {"array": np.ones(8000, "f4"), "sampling_rate": 16000}, "captions": [name]}
        for name in "abc"
    ]
    args = SupClapTrainingArguments(str(tmp_path), use_cpu=True, eval_pool_size=100)
    results = evaluate_and_report(SupClapTrainer(tiny_model, args, processing_class=processor), {"test": rows}, rows)
    assert entry_of(results, "retrieval")["pool_size"] is None
    assert "3 clips in one pool" in capsys.readouterr().out


def test_evaluation_takes_one_clip_with_a_label_and_gives_numbers(tiny_model, processor, tmp_path):
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.training.report import evaluate_and_report

    args = SupClapTrainingArguments(str(tmp_path), use_cpu=True, eval_pool_size=100)
    row = {"id": "a", "audio": {"array": np.ones(8000, "f4"), "sampling_rate": 16000}, "captions": ["x"], "label": "x"}
    trainer = SupClapTrainer(tiny_model, args, processing_class=processor, eval_dataset=[row])
    metrics = trainer.evaluate()
    assert metrics["eval_text_to_audio/recall@1"] == 1.0
    assert metrics["eval_loss"] == 0.0
    (entry,) = evaluate_and_report(trainer, {"test": [row]}, [row])["results"]
    assert entry["metrics"]["text_to_audio/recall@1"] == {"value": 1.0, "low": None, "high": None, "n": 1}


def test_captions_of_each_language_are_scored_on_their_own_and_averaged(tiny_model, processor, tmp_path, capsys):
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.training.report import evaluate_and_report

    def rows_of(languages):
        rng = np.random.default_rng(0)
        captions = {"en": ["sound {}", "noise {}"], "fr": ["bruit {}"]}
        return [
            {"id": f"r{n}", "audio": {"array": 0.1 * rng.standard_normal(8000).astype("f4"), "sampling_rate": 16000}}
            | {"captions": [text.format(n) for code in languages for text in captions[code]]}
            | {"language": [code for code in languages for _ in captions[code]]}
            for n in range(7)
        ]

    args = SupClapTrainingArguments(str(tmp_path), use_cpu=True, eval_pool_size=3)
    trainer = SupClapTrainer(tiny_model, args, processing_class=processor, eval_dataset=rows_of(["en", "fr"]))
    alone = [
        evaluate_and_report(trainer, {"test": rows_of([code])}, rows_of([code]))["results"][0]["metrics"]
        for code in ("en", "fr")
    ]
    metrics = trainer.evaluate()
    results = evaluate_and_report(trainer, {"test": rows_of(["en", "fr"])}, rows_of(["en", "fr"]))
    *languages, mean = results["results"]
    assert [entry["language"] for entry in results["results"]] == ["eng_Latn", "fra_Latn", "mean"]
    assert [entry["metrics"] for entry in languages] == alone
    for name, metric in mean["metrics"].items():
        expected = np.mean([one[name]["value"] for one in alone])
        assert metric["value"] == pytest.approx(expected)
        assert metrics[f"eval_{name}"] == pytest.approx(expected)
    assert (metrics["eval_n_audio"], metrics["eval_n_text"]) == (6, 18)  # two pools of three clips
    assert "mean over the languages eng_Latn, fra_Latn" in capsys.readouterr().out


def test_the_saved_model_has_no_training_only_weights_and_the_radius_lies_beside_it(recipe, tmp_path):
    processes.finish(recipe, "--max_steps", "4")
    checkpoint = tmp_path / "run" / "checkpoint-4"
    _, info = SupClapModel.from_pretrained(checkpoint, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    assert not any("radius" in name for name in load_file(checkpoint / "model.safetensors"))
    assert any("radius" in name for name in load_file(checkpoint / "_svr_criterion.safetensors"))


def test_a_compiled_model_gives_the_losses_of_the_eager_one(recipe, tmp_path):
    dynamo = ("--torch_compile", "true", "--torch_compile_backend", "eager")
    losses = []
    for name, options in (("eager", ()), ("compiled", dynamo)):
        folder = tmp_path / name
        quiet = ("--eval_strategy", "no", "--max_steps", "2", "--save_steps", "2", "--output_dir", str(folder))
        processes.finish(recipe, *quiet, *options)
        losses.append([entry["loss"] for entry in processes.history(folder, 2) if "loss" in entry])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_the_best_checkpoint_by_retrieval_is_what_a_run_ends_with(recipe, tmp_path):
    # Among four clips recall@10 is 1 from the first evaluation on, and of equal checkpoints the Trainer keeps the first:
    # on every machine the best one is not the last.
    processes.finish(recipe, "--load_best_model_at_end=true", "--metric_for_best_model=text_to_audio/recall@10")
    folder = tmp_path / "run"
    scores = {e["step"]: e["eval_text_to_audio/recall@10"] for e in processes.history(folder, 12) if "eval_loss" in e}
    assert scores == {4: 1, 8: 1, 12: 1}
    best = 4
    assert not torch.equal(
        *(load_file(folder / f"checkpoint-{step}" / "model.safetensors")["logit_scale"] for step in (4, 12))
    )
    for name in ("model.safetensors", "_svr_criterion.safetensors"):
        saved, of_best = load_file(folder / name), load_file(folder / f"checkpoint-{best}" / name)
        assert all(torch.equal(saved[key], of_best[key]) for key in of_best)


def test_going_on_with_other_settings_is_refused_and_says_which(recipe):
    processes.finish(recipe, "--max_steps", "4")
    run = processes.start(recipe, "--max_steps", "4", "--seed", "9")
    assert run.wait() == 1
    assert "seed: 3 there, 9 now" in run.text
    assert "Set another --output_dir" in run.text


def test_a_run_goes_on_at_a_lower_rate_when_asked_to_and_from_then_on_without(recipe, tmp_path):
    processes.finish(recipe, "--max_steps", "8")
    shutil.rmtree(tmp_path / "run" / "checkpoint-8")
    lower = ("--max_steps", "8", "--learning_rate", "1e-6", "--radius_learning_rate", "1e-7")
    run = processes.start(recipe, *lower)
    assert run.wait() == 1
    assert "learning_rate: 0.003 there, 1e-06 now" in run.text
    assert "add --resume-with-changes" in run.text
    run = processes.start(recipe, *lower, "--resume-with-changes", "--seed", "9", "--text_learning_rate", "1e-6")
    assert run.wait() == 1
    assert "(seed: 3 there, 9 now; text_learning_rate: None there, 1e-06 now)" in run.text
    processes.finish(recipe, *lower, "--resume_with_changes")
    processes.finish(recipe, *lower)
    rates = {
        entry["step"]: entry["learning_rate"] for entry in processes.history(tmp_path / "run", 8) if "loss" in entry
    }
    assert rates[4] == pytest.approx(0.003 * 5 / 8)
    assert rates[5] == pytest.approx(1e-6 * 4 / 8)


def test_a_dry_run_prints_the_plan_and_writes_nothing(recipe, tmp_path):
    printed = processes.finish(recipe, "--dry-run", "--max_steps", "500", "--freeze_text", "true")
    assert not (tmp_path / "run").exists()
    assert "16 train, 4 validation, 4 test" in printed
    assert "500 of 8 pairs (8 on each of 1 processes), 250.0 epochs" in printed
    assert re.search(r"text tower +0 trained +[\d,]+ frozen", printed)
    assert re.search(r"audio tower +[\d,]+ trained +0 frozen", printed)
    assert re.search(r"time +[\d.e-]+ s a step \(median of 3 after the first\)", printed)
    assert re.search(r"measured peak of the whole process: [\d.]+ GB", printed)


def test_training_learns_the_tones(recipe, tmp_path):
    plain = ("--caption_columns", "[caption]", "--max_duration", "null", "--eval_strategy", "no")
    processes.finish(recipe, *plain, "--max_steps", "60", "--save_steps", "60", "--warmup_steps", "6")
    results = read_results(tmp_path / "run" / "results.json")
    assert entry_of(results, "zero_shot")["metrics"]["accuracy"]["value"] == 1.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["--train_file", "nothing.csv"], "nothing.csv"),
        (["--caption_columns", "[sentence]"], "no column 'sentence'; its columns are"),
        (["--train_splits", "[training]"], "no row has split in"),
        (["--data_dir", "nowhere"], "nowhere.*is not a folder"),
        (["--text_model", "package:no_such_package/model"], "pip install"),
        (["--per_device_train_batch_size", "100"], "16 clips.*100"),
    ],
)
def test_wrong_data_is_named_before_training_starts(recipe, override, message):
    run = processes.start(recipe, *override)
    assert run.wait() == 1
    assert re.search(message, run.text.splitlines()[-1]), run.text[-1500:]


def test_parts_with_their_own_learning_rate_get_it_and_keep_their_weight_decay(tiny_model, processor, tmp_path):
    from supclap import SupClapTrainer, SupClapTrainingArguments

    args = SupClapTrainingArguments(
        str(tmp_path), learning_rate=1e-3, text_learning_rate=1e-4, radius_learning_rate=1e-5, weight_decay=0.1
    )
    trainer = SupClapTrainer(tiny_model, args, processing_class=processor)
    groups = trainer.create_optimizer().param_groups
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    found = {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert found.keys() == set(names.values())
    assert {value for name, value in found.items() if name.startswith("criterion.")} == {(1e-5, 0.0)}
    assert found["clap.text_model.encoder.layer.0.output.dense.weight"] == (1e-4, 0.1)
    assert found["clap.audio_model.blocks.0.mlp.fc1.weight"] == (1e-3, 0.1)
    for name in ("clap.logit_scale", "clap.audio_model.time_pos_embed", "clap.audio_model.norm.bias"):
        assert found[name] == (1e-3, 0.0)


def test_freezing_the_first_layers_trains_only_those_behind(tiny_model):
    from supclap.recipes.build import freeze_first_layers

    freeze_first_layers(tiny_model.text_model, 1)
    trained = {name for name, parameter in tiny_model.text_model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(name.startswith("encoder.layer.1.") for name in trained)


def test_frozen_layers_have_no_dropout_in_training(tiny_model):
    from supclap.losses import SupClapLoss
    from supclap.recipes.build import freeze_first_layers
    from supclap.training.model import SupClapForContrastiveTraining

    freeze_first_layers(tiny_model.text_model, 1)
    model = SupClapForContrastiveTraining(tiny_model, SupClapLoss(svr=None)).train()
    first, second = model.clap.text_model.encoder.layer
    assert not any(module.training for module in first.modules())
    assert all(module.training for module in second.modules())
    assert not model.clap.text_model.embeddings.training
    assert model.clap.audio_model.blocks.training


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone gives freed memory back so readily")
def test_freed_memory_is_used_again_without_mapping_its_pages_anew():
    code = """if True:
        import resource, sys, numpy
        from supclap.training import runtime
        if sys.argv[1] == "keep":
            runtime.keep_freed_memory()
        def step():
            blocks = [numpy.ones(2**size) for size in (20, 21, 22, 23)]
        step()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    faults = {
        how: int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "default")
    }
    assert faults["keep"] < faults["default"] / 4


@pytest.mark.parametrize(
    ("environment", "set_to"),
    [
        ({}, 3),
        ({"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"}, 3),
        ({"OMP_NUM_THREADS": "1"}, None),
        ({"OMP_NUM_THREADS": "2", "ACCELERATE_MIXED_PRECISION": "no"}, None),
    ],
    ids=["nothing said", "accelerate's 1", "the user's 1", "the user's 2"],
)
def test_a_run_takes_the_cores_that_its_workers_leave_unless_the_user_says_how_many(monkeypatch, environment, set_to):
    for name in ("OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    runtime.use_all_cores(workers=1)
    assert threads == ([] if set_to is None else [set_to])
