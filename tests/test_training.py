"""Training end to end on tones whose caption is their pitch: learning, resuming after a kill, and what is saved."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from safetensors.torch import load_file

from supclap import SupClapModel


ROOT = Path(__file__).parent.parent
PITCHES = {"low": 200, "middle": 700, "high": 2000, "shrill": 5000}


@pytest.fixture(scope="module")
def text_encoder(tmp_path_factory, tokenizer):
    """A tiny random BERT with the real tokenizer, saved as a folder."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("text")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    """A folder of tones with a table, in the form a user would bring."""
    folder = tmp_path_factory.mktemp("tones")
    rng = np.random.default_rng(0)
    lines = ["file_name,caption,label,split"]
    for label, pitch in PITCHES.items():
        for take in range(6):
            time_axis = np.arange(int(16000 * rng.uniform(0.5, 0.9))) / 16000
            wave = 0.3 * np.sin(2 * np.pi * pitch * rng.uniform(0.97, 1.03) * time_axis)
            name = f"{label}{take}.wav"
            soundfile.write(folder / name, wave + 0.001 * rng.standard_normal(len(wave)), 16000)
            split = {4: "validation", 5: "test"}.get(take, "train")
            lines.append(f"{name},a {label} tone,{label},{split}")
    (folder / "metadata.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture
def recipe(tmp_path, tones, text_encoder):
    content = {
        "model": {
            "text_model": str(text_encoder),
            "audio_model": "ced-tiny",
            "audio_config": {
                "hidden_size": 32,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "hidden_dropout": 0.1,
            },
            "projection_dim": 16,
        },
        "data": {
            "data_dir": str(tones),
            **{f"{split}_file": "metadata.csv" for split in ("train", "validation", "test")},
            "split_column": "split",
            **{f"{split}_splits": [split] for split in ("train", "validation", "test")},
            "caption_columns": ["caption"],
            "label_column": "label",
            "waveform_augment": {"speeds": [97, 100, 103]},
            "spectrogram_augment": {"frequency_masks": 1, "response_db": 3},
            "input_statistics_batches": 2,
        },
        "training": {
            "output_dir": str(tmp_path / "run"),
            "seed": 3,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 4,
            "max_steps": 12,
            "learning_rate": 3e-3,
            "radius_learning_rate": 1e-3,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_steps": 4,
            "logging_steps": 1,
            "use_cpu": True,
            "zero_shot_templates": ["a {} tone"],
        },
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def command(recipe: Path, *overrides: str) -> list[str]:
    return [sys.executable, str(ROOT / "train_supclap.py"), str(recipe), *overrides]


def train(recipe: Path, *overrides: str) -> str:
    done = subprocess.run(command(recipe, *overrides), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def history(folder: Path, step: int) -> list[dict]:
    """The logged values up to a step, without those of time."""
    state = json.loads((folder / f"checkpoint-{step}" / "trainer_state.json").read_text())
    timing = ("runtime", "per_second")
    return [{key: value for key, value in entry.items() if not key.endswith(timing)} for entry in state["log_history"]]


def test_a_run_saves_a_model_results_and_curves_and_logs_every_part(recipe, tmp_path):
    printed = train(recipe)
    folder = tmp_path / "run"
    results = json.loads((folder / "results.json").read_text())
    assert results["retrieval"]["text_to_audio/recall@1"]["n"] == 4
    assert 0 <= results["zero_shot"]["accuracy"]["low"] <= results["zero_shot"]["accuracy"]["value"]
    assert (folder / "training_curves.png").read_bytes().startswith(b"\x89PNG")
    assert str(folder / "results.json") in printed
    for place in (folder, folder / "checkpoint-12"):
        manifest = json.loads((place / "data_manifest.json").read_text())["splits"]
        assert {split: part["n_clips"] for split, part in manifest.items()} == {
            "train": 16,
            "validation": 4,
            "test": 4,
        }
    logged = set().union(*history(folder, 12))
    parts = {"loss", "loss_contrastive", "loss_svr", "loss_constraint", "radius", "pair_distance"}
    assert parts | {"radius_out_of_range", "temperature", "eval_text_to_audio/recall@1", "eval_loss"} <= logged


def test_the_saved_model_has_no_training_only_weights_and_the_radius_lies_beside_it(recipe, tmp_path):
    train(recipe, "--max_steps", "4")
    checkpoint = tmp_path / "run" / "checkpoint-4"
    _, info = SupClapModel.from_pretrained(checkpoint, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    assert not any("radius" in name for name in load_file(checkpoint / "model.safetensors"))
    assert any("radius" in name for name in load_file(checkpoint / "_svr_criterion.safetensors"))


def test_a_killed_run_goes_on_to_the_same_losses_and_weights(recipe, tmp_path):
    train(recipe)
    whole = tmp_path / "run"
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        command(recipe, "--output_dir", str(killed)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.time() + 120
    while not (killed / "checkpoint-4").exists() and time.time() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "checkpoint-12").exists(), "the run ended before it was killed"
    train(recipe, "--output_dir", str(killed))
    assert history(killed, 12) == history(whole, 12)
    for name in ("model.safetensors", "_svr_criterion.safetensors"):
        one, other = load_file(whole / name), load_file(killed / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_half_written_checkpoint_is_not_taken_for_a_whole_one(recipe, tmp_path):
    train(recipe, "--max_steps", "4")
    half = tmp_path / "run" / "_incomplete" / "checkpoint-8"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"torn")
    printed = train(recipe, "--max_steps", "4")
    assert "4 steps" in printed


def test_going_on_with_other_settings_is_refused_and_says_which(recipe):
    train(recipe, "--max_steps", "4")
    done = subprocess.run(command(recipe, "--max_steps", "4", "--seed", "9"), capture_output=True, text=True)
    assert done.returncode != 0
    assert "seed: 3 there, 9 now" in done.stderr
    assert "Set another --output_dir" in done.stderr


def test_training_learns_the_tones(recipe, tmp_path):
    train(recipe, "--max_steps", "60", "--eval_strategy", "no", "--save_steps", "60", "--warmup_steps", "6")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["zero_shot"]["accuracy"]["value"] == 1.0


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
    import re

    done = subprocess.run(command(recipe, *override), capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert re.search(message, done.stderr.splitlines()[-1]), done.stderr[-1500:]


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
    from supclap.recipe import freeze_first_layers

    freeze_first_layers(tiny_model.text_model, 1)
    trained = {name for name, parameter in tiny_model.text_model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(name.startswith("encoder.layer.1.") for name in trained)


def test_frozen_layers_have_no_dropout_in_training(tiny_model):
    from supclap.losses import SupClapLoss
    from supclap.recipe import freeze_first_layers
    from supclap.training_model import SupClapForContrastiveTraining

    freeze_first_layers(tiny_model.text_model, 1)
    model = SupClapForContrastiveTraining(tiny_model, SupClapLoss(svr=None)).train()
    first, second = model.clap.text_model.encoder.layer
    assert not any(module.training for module in first.modules())
    assert all(module.training for module in second.modules())
    assert not model.clap.text_model.embeddings.training
    assert model.clap.audio_model.blocks.training
