"""The cache of a frozen text tower: the same embeddings and gradients, without running the tower again."""

import pytest
import torch

from supclap.errors import SettingsError
from supclap.training.text_cache import FrozenTextCache


TEXTS = ["a dog barks", "rain falls on a tin roof", "an engine"]


@pytest.fixture
def frozen(tiny_model):
    tiny_model.text_model.requires_grad_(False)
    return tiny_model


def projection_gradient(model, embeds) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(embeds[:, 0].sum(), model.text_projection.linear1.weight)
    return gradient


@pytest.mark.parametrize("filled", [TEXTS, TEXTS[:1], []], ids=["all", "some", "none"])
def test_embeddings_and_the_gradient_of_the_projection_are_those_of_the_model(frozen, processor, filled):
    cache = FrozenTextCache(frozen)
    if filled:
        cache.fill(processor, filled)
    inputs = dict(processor(text=TEXTS))
    embeds, expected = cache.embed(inputs), frozen.get_text_features(**inputs).pooler_output
    torch.testing.assert_close(embeds, expected, rtol=0, atol=1e-6)
    gradients = [projection_gradient(frozen, value) for value in (embeds, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    assert len(cache.pooled) == len(filled)


def test_the_tower_does_not_run_for_a_text_that_is_known(frozen, processor):
    cache = FrozenTextCache(frozen)
    cache.fill(processor, TEXTS)
    frozen.text_model.forward = None
    assert cache.embed(dict(processor(text=TEXTS[::-1]))).shape == (3, 32)


def test_a_trained_tower_is_refused(tiny_model):
    with pytest.raises(ValueError, match="freeze_text: true"):
        FrozenTextCache(tiny_model)


def test_scenes_whose_captions_are_not_known_beforehand_are_refused(make_trainer, frozen):
    from supclap.data import CaptionedClips, SceneMixer

    rows = make_trainer().train_dataset.rows
    with pytest.raises(SettingsError, match="scenes and streams"):
        make_trainer(cache_frozen_text=True, train_dataset=CaptionedClips(SceneMixer(rows, size=8)))


def test_training_with_it_gives_the_losses_of_training_without(make_trainer, frozen, tiny_config):
    from supclap import SupClapModel

    histories = []
    for cached in (False, True):
        torch.manual_seed(1)
        trainer = make_trainer(max_steps=3, cache_frozen_text=cached)
        trainer.model.clap.load_state_dict(SupClapModel(tiny_config).state_dict())
        trainer.train()
        assert (trainer.model.text_cache is not None) == cached
        histories.append([entry["loss"] for entry in trainer.state.log_history if "grad_norm" in entry])
    assert histories[1] == pytest.approx(histories[0], rel=1e-4)
