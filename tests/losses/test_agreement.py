"""One name, one value: the model's own loss, the objective without support vectors and `eval_loss` of the Trainer."""

import pytest
import torch

from supclap import SupClapLoss, SupClapModel, SupClapTrainer, SupClapTrainingArguments


TEXTS = ["a dog", "rain falls on a roof", "a long siren far away"]


@pytest.fixture(params=["infonce", "siglip"])
def objective(request):
    return request.param


@pytest.fixture
def model(objective, tiny_config):
    if objective == "siglip":
        tiny_config.logit_bias_init_value = -5.0
    torch.manual_seed(0)
    return SupClapModel(tiny_config).eval()


@pytest.fixture
def inputs(processor, clips):
    return processor(audio=clips, text=TEXTS, sampling_rate=16000, return_tensors="pt")


@torch.no_grad()
def test_the_models_own_loss_is_the_objective_without_support_vectors(model, objective, inputs):
    output = model(**inputs, return_loss=True)
    criterion = SupClapLoss(objective, svr=None)
    expected = criterion(output.audio_embeds, output.text_embeds, model.get_logit_scale(), model.logit_bias).loss
    assert expected > 0.1
    torch.testing.assert_close(output.loss, expected)


@torch.no_grad()
@pytest.mark.parametrize("svr", [None, "static"])
def test_the_loss_of_evaluation_is_the_models_own(model, objective, inputs, processor, clips, svr, tmp_path):
    args = SupClapTrainingArguments(str(tmp_path), objective=objective, svr=svr, use_cpu=True)
    rows = [
        {"id": text, "audio": {"array": clip, "sampling_rate": 16000}, "captions": [text]}
        for text, clip in zip(TEXTS, clips, strict=True)
    ]
    trainer = SupClapTrainer(model, args, processing_class=processor, eval_dataset=rows)
    expected = model(**inputs, return_loss=True).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)
