"""Gradient caching on two gloo processes under DDP against the plain step there and on one process, in float64."""

import pytest
import torch

from support import grad_cache_worker, processes
from support.builders import build_tiny_config, build_tiny_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, tokenizer, processor):
    """A tiny model without dropout, which ranks would draw differently."""
    config = build_tiny_config(tokenizer)
    config.text_config.hidden_dropout_prob = config.text_config.attention_probs_dropout_prob = 0.0
    folder = tmp_path_factory.mktemp("model")
    build_tiny_model(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory, model_folder):
    """For one process and for two, what each rank had in each case."""
    found = {}
    for world in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{world}")
        processes.call_on_ranks(grad_cache_worker.steps, world, (str(folder), str(model_folder)), folder)
        found[world] = [torch.load(folder / f"{rank}.pt") for rank in range(world)]
    return found


def test_two_processes_train_under_ddp(results):
    assert {case["wrapped"] for rank in results[2] for case in rank.values()} == {"DistributedDataParallel"}


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_the_mean_loss_of_two_processes_is_that_of_one_without_caching(results, objective, size):
    expected = results[1][0][f"{objective}-None"]["loss"]
    losses = torch.stack([rank[f"{objective}-{size}"]["loss"] for rank in results[2]])
    assert losses.dtype == torch.float64
    torch.testing.assert_close(losses.mean(), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_every_gradient_on_two_processes_is_that_of_one_without_caching(results, objective, size):
    expected = results[1][0][f"{objective}-None"]["gradients"]
    assert any(gradient.abs().max() > 1e-2 for gradient in expected.values())
    for rank in results[2]:
        got = rank[f"{objective}-{size}"]["gradients"]
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
