"""Training on two processes (DDP and FSDP2 over gloo) against one process with the same pairs a step."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support import parallel_worker, processes


PLACES = {"single": 1, "ddp": 2, "fsdp2": 2}


@pytest.fixture(scope="module")
def start_model(tmp_path_factory, tokenizer, processor):
    """A tiny model without dropout, which ranks would draw differently."""
    from transformers import BertConfig

    from supclap import CedConfig, SupClapConfig, SupClapModel

    torch.manual_seed(0)
    text = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    audio = CedConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    model = SupClapModel(SupClapConfig(text_config=text, audio_config=audio, projection_dim=16))
    model.audio_model.set_input_statistics(torch.full((64,), -30.0), torch.full((64,), 50.0))
    folder = tmp_path_factory.mktemp("start")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def launch(mode: str, folder: Path, model: Path, resume: Path | None = None) -> dict:
    """Trains on as many processes as the mode has and returns what rank 0 wrote."""
    arguments = (mode, str(folder), str(model), resume and str(resume))
    processes.call_on_ranks(parallel_worker.train, PLACES[mode], arguments, folder)
    return json.loads((folder / "log.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory, start_model):
    """The finished run of each mode: its folder and what it logged."""
    root = tmp_path_factory.mktemp("parallel")
    return {mode: (root / mode, launch(mode, root / mode, start_model)) for mode in PLACES}


def values(log: dict, name: str) -> torch.Tensor:
    return torch.tensor([entry[name] for entry in log["history"] if name in entry], dtype=torch.float64)


def test_the_modes_are_what_they_are_called(runs):
    assert [runs[mode][1]["world"] for mode in PLACES] == [1, 2, 2]
    assert [runs[mode][1]["parameter"] for mode in PLACES] == ["Parameter", "Parameter", "DTensor"]


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", ["loss", "loss_contrastive", "loss_svr", "radius", "pair_distance", "temperature"])
def test_two_processes_log_what_one_does(runs, mode, name):
    expected = values(runs["single"][1], name)
    assert len(expected) == parallel_worker.STEPS
    torch.testing.assert_close(values(runs[mode][1], name), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_two_processes_clip_by_the_gradient_norm_of_the_whole_batch(runs, mode):
    # The first steps: a gradient, unlike a loss, shows the rounding of all steps before it many times enlarged.
    expected = values(runs["single"][1], "grad_norm")
    assert len(expected) == parallel_worker.STEPS
    torch.testing.assert_close(values(runs[mode][1], "grad_norm")[:5], expected[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_sharded_evaluation_of_uneven_clips_gives_the_metrics_of_one_process(runs, mode):
    names = {name for entry in runs["single"][1]["history"] for name in entry if "recall" in name or "mAP" in name}
    assert "eval_text_to_audio/recall@1" in names
    for name in names:
        assert values(runs[mode][1], name).tolist() == values(runs["single"][1], name).tolist()
    torch.testing.assert_close(
        values(runs[mode][1], "eval_loss"), values(runs["single"][1], "eval_loss"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
@pytest.mark.parametrize("file", ["model.safetensors", "_svr_criterion.safetensors"])
def test_two_processes_save_whole_weights_and_the_radius(runs, mode, file):
    expected, saved = (load_file(runs[place][0] / file) for place in ("single", mode))
    assert saved.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            saved[name], value, rtol=0, atol=2e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("mode", PLACES)
def test_a_run_resumes_within_an_epoch_to_the_same_losses(runs, mode, start_model):
    folder, log = runs[mode]
    resumed = launch(mode, folder.parent / f"{mode}-resumed", start_model, folder / "checkpoint-9")
    assert values(resumed, "loss").tolist() == values(log, "loss").tolist()
    assert values(resumed, "eval_loss").tolist() == values(log, "eval_loss").tolist()
