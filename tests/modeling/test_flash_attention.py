"""Both towers on FlashAttention 2 as transformers calls it: the embeddings and gradients of eager attention.

The `kernels` are those of the package flash-attn, see `support.flash_attention.interpreted_kernels`.
"""

import pytest
import torch
from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMModel

from modeling_supclap import modeling_ced
from supclap import SupClapModel
from supclap.errors import SettingsError
from supclap.recipes import build as recipe
from supclap.recipes.arguments import ModelArguments
from support import flash_attention
from support.builders import WAVE_SIZES, build_with_encoder, small_model, spectrograms, texts


@pytest.fixture(params=["plain", pytest.param("kernels", marks=pytest.mark.record)])
def flash_calls(request, monkeypatch):
    """Names of the functions of FlashAttention that were called."""
    if request.param == "plain":
        functions = flash_attention.attention, flash_attention.attention_of_sequences
    else:
        functions = flash_attention.interpreted_kernels()
    return flash_attention.install(monkeypatch, functions)


def sharp(model: SupClapModel) -> SupClapModel:
    """Weights large enough for attention to be far from uniform."""
    for name, weight in model.named_parameters():
        if any(part in name for part in ("qkv", "query", "key", "q_proj", "k_proj")) and weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def sharp_model(text: str = "bert") -> SupClapModel:
    return sharp(small_model(text))


@torch.no_grad()
def embeds(model, inputs, attention: str) -> dict[str, torch.Tensor]:
    model.set_attn_implementation(attention)
    output = model(**inputs)
    return {"audio": output.audio_embeds.float(), "text": output.text_embeds.float()}


@pytest.mark.parametrize("text", ["bert", "xlm-roberta", "m2m_100", "modernbert"])
@pytest.mark.parametrize("lengths", [[100, 100], [100, 60], [400, 170]], ids=["equal", "padded", "windows"])
def test_both_towers_give_the_embeddings_of_eager_attention(flash_calls, text, lengths):
    model, inputs = sharp_model(text).half(), {**texts([5, 9]), **spectrograms(lengths)}
    expected = embeds(model, inputs, "eager")
    assert not flash_calls
    got = embeds(model, inputs, "flash_attention_2")
    assert len(flash_calls) == 4  # two layers each
    torch.testing.assert_close(got, expected, atol=0.0025, rtol=0)


def test_clips_in_a_row_without_their_padding_give_the_embeddings_of_eager_attention(flash_calls, monkeypatch):
    monkeypatch.setattr(modeling_ced, "PACKED_WORK", 0)
    model, inputs = sharp_model().half(), {**texts([5, 9]), **spectrograms([150, 80])}
    expected = embeds(model, inputs, "eager")
    got = embeds(model, inputs, "flash_attention_2")
    assert flash_calls.count("attention") + flash_calls.count("flash_attn_func") == 2 * 2  # layers x clips
    torch.testing.assert_close(got, expected, atol=0.0025, rtol=0)


def test_a_shorter_neighbour_changes_nothing(flash_calls):
    model = sharp_model().half()
    alone = embeds(model, {**texts([5]), **spectrograms([60])}, "flash_attention_2")
    batch = {**texts([5]), **spectrograms([60])}
    longer = {**texts([9]), **spectrograms([150])}
    for name, value in batch.items():
        padded = torch.nn.functional.pad(
            value, (0, 0) * (value.ndim - 2) + (0, longer[name].shape[1] - value.shape[1])
        )
        batch[name] = torch.cat([padded, longer[name]])
    together = embeds(model, batch, "flash_attention_2")
    for name, value in alone.items():
        torch.testing.assert_close(together[name][:1], value, atol=0.001, rtol=0)


@pytest.mark.parametrize("text", ["bert", "m2m_100"])
def test_gradients_under_autocast_are_those_of_eager_attention(flash_calls, text):
    model, inputs = sharp_model(text), {**texts([5, 9]), **spectrograms([150, 80])}
    gradients = []
    for attention in ("eager", "flash_attention_2"):
        model.set_attn_implementation(attention)
        model.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(**inputs, return_loss=True).loss
        loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert len(flash_calls) == 4
    eager, flash = gradients
    assert (flash - eager).norm() < 0.03 * eager.norm()


@pytest.mark.parametrize("audio", ["ast", "whisper", "wav2vec2", "hubert"])
@torch.no_grad()
def test_another_audio_tower_gives_the_embeddings_of_eager_attention(flash_calls, audio, tokenizer):
    model, processor = build_with_encoder(audio, tokenizer)
    noise = torch.randn(24000, generator=torch.Generator().manual_seed(0)) / 10
    inputs = processor(audio=[noise, noise[:9000]], sampling_rate=16000)
    inputs = {name: value.half() if value.is_floating_point() else value for name, value in inputs.items()}
    model = sharp(model).half()
    model.set_attn_implementation("eager")
    expected = model.get_audio_features(**inputs).pooler_output
    model.set_attn_implementation("flash_attention_2")
    got = model.get_audio_features(**inputs).pooler_output
    assert flash_calls
    torch.testing.assert_close(got, expected, atol=0.0025, rtol=0)


def test_htsat_is_refused_by_name(flash_calls, tokenizer):
    with pytest.raises(ValueError, match="ClapAudioModel does not support Flash Attention 2"):
        build_with_encoder("htsat", tokenizer)[0].set_attn_implementation("flash_attention_2")


def test_a_recipe_refuses_an_encoder_with_attention_of_its_own(flash_calls, tmp_path, text_encoder):
    WavLMModel(WavLMConfig(**WAVE_SIZES)).save_pretrained(tmp_path)
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    options = {
        "text_model": str(text_encoder),
        "audio_model": str(tmp_path),
        "attn_implementation": "flash_attention_2",
    }
    with pytest.raises(SettingsError, match="^attn_implementation 'flash_attention_2': WavLMModel .* of its own"):
        recipe.build_model(ModelArguments(**options))


def test_a_checkpoint_is_loaded_with_it(flash_calls, checkpoint):
    model = SupClapModel.from_pretrained(checkpoint, attn_implementation="flash_attention_2", dtype=torch.float16)
    model(**texts([5, 9]), **spectrograms([100, 60]))
    assert len(flash_calls) == 4


@pytest.mark.parametrize("flash_calls", ["plain"], indirect=True)  # Triton's interpreter computes wrongly in bfloat16
def test_a_run_in_bfloat16_trains_on_it(flash_calls, make_trainer):
    trainer = make_trainer(max_steps=2, bf16=True)
    trainer.model.set_attn_implementation("flash_attention_2")
    trainer.train()
    assert len(flash_calls) == 2 * 4
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())
