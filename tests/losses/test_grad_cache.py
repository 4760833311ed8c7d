"""Gradient caching against a plain step: the gradients of all parameters are equal."""

import copy

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from supclap import SupClapForContrastiveTraining, SupClapLoss
from supclap.losses.grad_cache import embed_in_micro_batches


def tower(dropout=0.0):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 4)
    )


def gradients(module, embeds):
    embeds.float().square().sum(1).log().sum().backward()
    return [parameter.grad for parameter in module.parameters()]


def micro_batches_with_graph(module, x, size):
    """What caching must equal where masks are drawn: the same calls, with all activations kept."""
    return torch.cat([module(part) for part in x.split(size)])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("size", [3, 4, 100])
def test_with_dropout_both_passes_draw_the_same_masks(size, autocast):
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    plain, cached = tower(0.5), tower(0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        torch.manual_seed(2)
        expected_embeds = micro_batches_with_graph(plain, x, size)
        torch.manual_seed(2)
        embeds = embed_in_micro_batches(lambda x: cached(x), {"x": x}, size)
    assert torch.equal(embeds, expected_embeds)
    torch.manual_seed(9)  # what is drawn in between does not matter
    torch.testing.assert_close(gradients(cached, embeds), gradients(plain, expected_embeds), rtol=1e-6, atol=1e-7)


def test_the_random_numbers_after_a_step_are_those_of_a_plain_one():
    x = torch.randn(8, 5)
    drawn = []
    for embed in (lambda m: micro_batches_with_graph(m, x, 3), lambda m: embed_in_micro_batches(m, {"input": x}, 3)):
        module = tower(0.5)
        torch.manual_seed(2)
        gradients(module, embed(module))
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def most_activations(embed_all):
    """The largest number of activations alive at once, one a call of the tower, in forward and backward."""
    activations, most = [], 0

    def embed(x):
        nonlocal most
        hidden = x * 2
        activations.append(StorageWeakRef(hidden.untyped_storage()))
        most = max(most, sum(not activation.expired() for activation in activations))
        return hidden.sin()  # keeps `hidden` for backward

    embed_all(embed, torch.randn(64, 5, requires_grad=True)).sum().backward()
    return most


def test_activations_of_one_micro_batch_at_a_time_are_in_memory():
    assert most_activations(lambda embed, x: micro_batches_with_graph(embed, x, 4)) == 16
    assert most_activations(lambda embed, x: embed_in_micro_batches(embed, {"x": x}, 4)) == 1


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_a_step_of_the_model_has_the_gradients_of_the_plain_step(tiny_model, processor, clips, objective):
    texts = ["a dog", "rain falls on a roof", "a long siren far away"]
    inputs = dict(processor(audio=clips, text=texts, sampling_rate=16000, return_tensors="pt"))
    bias = torch.nn.Parameter(torch.tensor([-5.0]))
    inputs["input_features"] = inputs["input_features"].double()
    results = []
    for size in (None, 2):
        clap = copy.deepcopy(tiny_model)
        if objective == "siglip":
            clap.logit_bias = copy.deepcopy(bias)
        criterion = SupClapLoss(objective, svr="static", radius_init=0.3)
        model = (
            SupClapForContrastiveTraining(clap, criterion, size).double().eval()
        )  # eval: no masks, which differ by draw
        loss = model(**inputs, clip_ids=torch.arange(3))["loss"]
        loss.backward()
        results.append((loss.detach(), {name: p.grad for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)
    assert all(gradient is not None for gradient in results[0][1].values())


def test_trainer_argument_gives_the_gradients_of_the_plain_step(tiny_model, processor, clips, tmp_path):
    from supclap import SupClapTrainer, SupClapTrainingArguments

    inputs = processor(audio=clips, text=["a dog", "rain", "a siren"], sampling_rate=16000, return_tensors="pt")
    inputs["input_features"] = inputs["input_features"].double()
    results = []
    for size in (None, 1):
        args = SupClapTrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=3,
            grad_cache_chunk_size=size,
            loss_chunk_size=size,
            use_cpu=True,
        )
        torch.manual_seed(0)  # the radius predictor starts at random
        trainer = SupClapTrainer(copy.deepcopy(tiny_model), args, processing_class=processor)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.model.clap.text_model.config.attention_probs_dropout_prob = 0.0
        for layer in trainer.model.clap.text_model.encoder.layer:
            layer.attention.self.dropout.p = 0.0
        trainer.model.double()
        trainer.create_optimizer()
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer.training_step(trainer.model, dict(inputs))
        results.append((loss, {name: p.grad for name, p in trainer.model.named_parameters()}))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("inputs", "size", "message"),
    [
        ({"x": torch.zeros(4, 5)}, 0, "at least 1"),
        ({"x": torch.zeros(4, 5), "y": torch.zeros(3)}, 2, "'x': 4, 'y': 3"),
    ],
)
def test_bad_micro_batches_are_named(inputs, size, message):
    with pytest.raises(ValueError, match=message):
        embed_in_micro_batches(tower(), inputs, size)
