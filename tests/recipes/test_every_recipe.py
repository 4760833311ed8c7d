"""Every recipe trains two steps with tiny towers of the right types, and accelerate loads its configurations."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from accelerate.commands.config.config_args import load_config_from_file

from supclap import SupClapTrainer
from supclap.data.splits import load_splits
from supclap.recipes import build as recipe
from supclap.recipes.parser import parse_recipe
from support.paths import ROOT


CONFIGS = ROOT / "configs"
PAPER = sorted(path.stem for path in CONFIGS.glob("paper/*.yaml"))
TINY = {
    "projection_dim": 16,
    "per_device_train_batch_size": 4,
    "max_steps": 2,
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": "false",
    "disable_tqdm": "true",
    "logging_steps": 1,
    "use_cpu": "true",
    "bf16": "false",
    "dataloader_num_workers": 0,
}


@pytest.fixture(scope="module")
def sonar(tmp_path_factory, tokenizer):
    """A tiny random encoder of SONAR's type, with a tokenizer that fits it."""
    from transformers import M2M100Config
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    folder = tmp_path_factory.mktemp("sonar")
    config = M2M100Config(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=1,
        encoder_ffn_dim=16,
        encoder_attention_heads=2,
        encoder_layerdrop=0.0,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    M2M100Encoder(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Noise in the layouts of AudioCaps and Clotho, and as a user's folder."""
    root = tmp_path_factory.mktemp("corpora")
    rng = np.random.default_rng(0)

    def clips(folder: str, count: int, prefix: str = "clip") -> list[str]:
        (root / folder).mkdir(parents=True, exist_ok=True)
        names = [f"{prefix[:4]:-<4}-{number:06}.wav" for number in range(count)]  # as long as a YouTube id
        for name in names:
            soundfile.write(root / folder / name, 0.1 * rng.standard_normal(6000), 16000)
        return names

    def table(path: str, header: str, rows: list[str]) -> None:
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("\n".join([header, *rows]))

    for split in ("train", "val", "test"):
        names = clips("audiocaps", 8, split)
        for language in ("", "fr/", "de/", "es/", "nl/", "ca/", "ja/", "zh/"):
            rows = [f"{name},{language or 'en/'} noise of {name}" for name in names]
            table(f"audiocaps/{language}{split}.csv", "file_name,caption", rows)
    captions = [f"caption_{number}" for number in range(1, 6)]
    for split in ("development", "validation", "evaluation"):
        names = clips(f"clotho/{split}", 8, split)
        rows = [",".join([name, *(f"{column} of {name}" for column in captions)]) for name in names]
        table(f"clotho/clotho_captions_{split}.csv", ",".join(["file_name", *captions]), rows)
        rows = [f"{name},{language} noise of {name},{language}" for name in names for language in ("en", "fr")]
        table(f"clotho/{split}/captions.csv", "file_name,caption,language", rows)
    names = clips("own", 8)
    splits = ["train"] * 6 + ["validation", "test"]
    rows = [f"{name},noise of {name},{split}" for name, split in zip(names, splits, strict=True)]
    table("own/metadata.csv", "file_name,caption,split", rows)
    return root


def train_two_steps(path: Path, *overrides: str) -> SupClapTrainer:
    """What `train_supclap.py` does with a recipe, up to the end of training."""
    tiny = {key: value for key, value in TINY.items() if key != "projection_dim" or "--checkpoint" not in overrides}
    model_args, data_args, args = parse_recipe(
        [str(path), *(f"--{key}={value}" for key, value in tiny.items()), *overrides]
    )
    splits = load_splits(data_args)
    processor = recipe.build_processor(model_args)
    data = recipe.build_training_data(splits["train"], data_args, args.seed, 16000)
    collator = recipe.build_collator(processor, data_args, args.seed)
    trainer = SupClapTrainer(
        recipe.build_model(model_args), args, processing_class=processor, data_collator=collator, train_dataset=data
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    return trainer


@pytest.mark.parametrize("name", PAPER)
def test_a_row_of_the_papers_tables_trains(name, sonar, corpora, tmp_path):
    corpus = "clotho" if "clotho" in name else "audiocaps"
    audio = json.dumps({"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1})
    towers = ["--text_model", str(sonar), "--audio_model", "random:ced-tiny", "--audio_config", audio]
    folders = ["--data_dir", str(corpora / corpus), "--output_dir", str(tmp_path)]
    trainer = train_two_steps(CONFIGS / "paper" / f"{name}.yaml", *towers, *folders)
    assert trainer.model.clap.config.text_config.model_type == "m2m_100"
    assert trainer.model.clap.config.audio_config.model_type == "supclap_ced"
    words = name.split("_")
    criterion = trainer.model.criterion
    assert criterion.objective == ("siglip" if "siglip" in words else "infonce")
    assert criterion.svr == next((kind for kind in ("static", "dynamic") if kind in words), None)
    assert criterion.svr_direction == ("uni" if "uni" in words else "bi")
    assert criterion.constraint_weight == (0.0 if "unconstrained" in words else 0.01)
    assert criterion.svr_weight == 1.0


@pytest.mark.parametrize("name", PAPER)
def test_a_row_of_the_papers_tables_has_the_papers_hyper_parameters(name):
    _, _, args = parse_recipe([str(CONFIGS / "paper" / f"{name}.yaml"), "--use_cpu", "true"])
    assert args.per_device_train_batch_size == 24
    # ten passes over the captions: of Clotho, one of the five of a clip is drawn an epoch
    assert args.num_train_epochs == (50 if "clotho" in name else 10)
    assert (args.learning_rate, args.lr_scheduler_type, args.weight_decay) == (5e-5, "constant", 0)
    assert (args.adam_beta1, args.adam_beta2) == (0.9, 0.999)
    assert args.optim.startswith("adamw_torch")
    assert args.output_dir == f"outputs/paper/{name}"


def test_the_own_folder_recipe_trains_and_laions_differs_only_in_what_it_says(checkpoint, corpora, tmp_path):
    overrides = [
        "--data_dir",
        str(corpora / "own"),
        "--output_dir",
        str(tmp_path / "run"),
        "--checkpoint",
        str(checkpoint),
    ]
    trainer = train_two_steps(CONFIGS / "finetune.yaml", *overrides)
    assert trainer.model.clap.logit_scale.requires_grad
    trainer = train_two_steps(CONFIGS / "finetune_laion_clap.yaml", *overrides)
    assert not trainer.model.clap.logit_scale.requires_grad
    assert trainer.args.svr == "dynamic"
    assert torch.isfinite(next(trainer.model.criterion.parameters())).all()


def shrunk(path: Path, text_encoder: Path) -> list[str]:
    """Overrides that keep all of a recipe's fields of the encoders but their sizes."""
    model_args, _, _ = parse_recipe([str(path), "--use_cpu", "true"])
    audio = {**model_args.audio_config, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    text = {**(model_args.text_config or {}), "num_hidden_layers": 1}
    configs = [f"--audio_config={json.dumps(audio)}", f"--text_config={json.dumps(text)}"]
    return [*configs, "--text_model", str(text_encoder)]


def test_the_quickstart_trains_on_the_recordings_of_the_project(text_encoder, tmp_path):
    path = CONFIGS / "quickstart.yaml"
    folders = ["--data_dir", str(CONFIGS.parent / "examples/quickstart_data"), "--output_dir", str(tmp_path)]
    trainer = train_two_steps(path, *shrunk(path, text_encoder), *folders)
    assert trainer.train_dataset.rows.block == 64
    assert trainer.model.clap.config.audio_config.hidden_act == "relu"


def test_esc10_trains_on_its_folds(text_encoder, tmp_path):
    path = CONFIGS / "esc10.yaml"
    _, data_args, _ = parse_recipe([str(path), "--use_cpu", "true"])
    rng = np.random.default_rng(0)
    rows = ["file_name,label,fold,src_file"]
    for label in data_args.label_captions:
        for fold in range(1, 6):
            name = f"{label}-{fold}.wav"
            soundfile.write(tmp_path / name, 0.1 * rng.standard_normal(6000), 16000)
            rows.append(f"{name},{label},{fold},{label}{fold}")
    (tmp_path / "metadata.csv").write_text("\n".join(rows))
    folders = ["--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "run")]
    trainer = train_two_steps(path, *shrunk(path, text_encoder), *folders)
    assert len(trainer.train_dataset.rows.rows) == 30  # folds 1 to 3
    assert trainer.model.clap.config.audio_config.patch_dropout == 0.2


def test_the_recipe_of_a_large_batch_trains_it_in_parts(checkpoint, corpora, tmp_path):
    path = CONFIGS / "large_batch.yaml"
    assert parse_recipe([str(path), "--use_cpu", "true"])[2].per_device_train_batch_size == 1024
    folders = [
        "--data_dir",
        str(corpora / "own"),
        "--output_dir",
        str(tmp_path / "run"),
        "--checkpoint",
        str(checkpoint),
    ]
    trainer = train_two_steps(path, *folders, "--grad_cache_chunk_size", "2")
    assert trainer.model.micro_batch_size == 2
    assert trainer.model.criterion.loss_chunk_size == 256


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("accelerate/*.yaml")), ids=lambda path: path.stem)
def test_accelerate_gives_each_machine_as_many_processes_as_configured(path):
    config = load_config_from_file(str(path))
    assert config.num_processes == 8 * config.num_machines
    assert config.mixed_precision == "bf16"
    engine = {"fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED"}.get(path.stem, "MULTI_GPU")
    assert config.distributed_type == engine


def test_the_configuration_of_several_machines_names_where_they_meet():
    config = load_config_from_file(str(CONFIGS / "accelerate/multi_node.yaml"))
    assert (config.num_machines, config.machine_rank) == (2, 0)
    assert config.main_process_ip
    assert config.main_process_port == 29500
