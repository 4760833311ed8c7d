"""Other dual encoders: ClapModel and CLIPModel train with the same objectives, with the Trainer and without."""

import math

import pytest
import torch
import torch.nn.functional as F
import transformers

from supclap import SupClapForContrastiveTraining, SupClapLoss, SupClapTrainer, SupClapTrainingArguments
from supclap.training.towers import check_dual_encoder, embed_other, embed_text, limit_logit_scale, logit_scale
from support.builders import build_clip, pair_samples
from support.paths import ROOT


def clap_model():
    torch.manual_seed(0)
    audio = {
        "patch_embeds_hidden_size": 8,
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
        "hidden_size": 16,
        "spec_size": 32,
        "num_mel_bins": 8,
        "patch_stride": [2, 2],
        "patch_size": 2,
        "window_size": 4,
        "enable_fusion": False,
        "projection_dim": 12,
    }
    text = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"intermediate_size": 16, "max_position_embeddings": 20, "projection_dim": 12}
    return transformers.ClapModel(transformers.ClapConfig(text_config=text, audio_config=audio, projection_dim=12))


MODELS = {"clap": clap_model, "clip": build_clip}


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_trainer_lowers_the_loss_of_models_of_transformers(kind, objective, tmp_path):
    model = MODELS[kind]()
    if objective == "siglip":
        model.logit_bias = torch.nn.Parameter(torch.tensor([-5.0]))
    args = SupClapTrainingArguments(
        str(tmp_path),
        objective=objective,
        per_device_train_batch_size=4,
        max_steps=12,
        learning_rate=3e-3,
        logging_steps=4,
        save_strategy="no",
        grad_cache_chunk_size=2,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SupClapTrainer(
        model, args, data_collator=torch.utils.data.default_collate, train_dataset=pair_samples(kind)
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    trainer.save_model()
    again = type(model).from_pretrained(tmp_path)
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name])


def test_our_plain_loss_of_clip_is_twice_its_own(tmp_path):
    model = build_clip().eval()
    batch = torch.utils.data.default_collate(pair_samples("clip"))
    own = model(**batch, return_loss=True).loss
    wrapped = SupClapForContrastiveTraining(model, SupClapLoss(svr=None)).eval()
    torch.testing.assert_close(wrapped(**batch)["loss"], 2 * own)  # theirs is the mean of both directions


def test_transformers_clap_loss_is_text_to_audio_twice_and_ours_is_symmetric():
    model = clap_model().eval()
    batch = torch.utils.data.default_collate(pair_samples("clap"))
    outputs = model(**batch, return_loss=True)
    labels = torch.arange(8)
    text_to_audio = F.cross_entropy(outputs.logits_per_text, labels)
    audio_to_text = F.cross_entropy(outputs.logits_per_text.T, labels)
    assert abs(text_to_audio - audio_to_text) > 1e-3
    torch.testing.assert_close(outputs.loss, text_to_audio)  # the audio half is missing
    ours = SupClapForContrastiveTraining(model, SupClapLoss(svr=None)).eval()(**batch)["loss"]
    torch.testing.assert_close(ours, text_to_audio + audio_to_text)


def test_two_temperatures_of_clap_get_the_same_gradient_and_stay_equal():
    model = clap_model()
    scale = logit_scale(model)
    assert scale.item() == pytest.approx(1 / 0.07, rel=1e-5)
    scale.backward()
    assert model.logit_scale_a.grad == model.logit_scale_t.grad == scale.item() / 2
    with torch.no_grad():
        model.logit_scale_a.fill_(9.0)
    limit_logit_scale(model)
    assert model.logit_scale_a.item() == pytest.approx(math.log(100))


@pytest.mark.parametrize("kind", MODELS)
def test_embeddings_have_unit_length(kind):
    batch = torch.utils.data.default_collate(pair_samples(kind))
    model = MODELS[kind]().eval()
    text = {name: batch.pop(name) for name in ("input_ids", "attention_mask")}
    for embeds in (embed_text(model, **text), embed_other(model, **batch)):
        torch.testing.assert_close(embeds.norm(dim=-1), torch.ones(8))


def test_a_model_that_is_no_dual_encoder_is_refused_with_what_it_lacks():
    with pytest.raises(
        TypeError, match="Linear .* no get_text_features.*, no get_audio_features.*, no parameter logit_scale"
    ):
        check_dual_encoder(torch.nn.Linear(2, 2))


def test_the_loop_in_the_docs_lowers_the_loss():
    page = (ROOT / "docs" / "objective.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    names = {"torch": torch, "model": build_clip()}
    losses = []
    for _ in range(4):
        names["loader"] = torch.utils.data.DataLoader(pair_samples("clip"), batch_size=4)
        exec(code, names)
        losses.append(names["output"].loss.item())
    assert losses[-1] < losses[0]


def test_batch_norms_stay_in_eval_mode_with_gradient_caching():
    wrapped = SupClapForContrastiveTraining(clap_model(), SupClapLoss(svr=None), micro_batch_size=2).train()
    norms = [module for module in wrapped.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training for norm in norms)
    assert wrapped.clap.training
