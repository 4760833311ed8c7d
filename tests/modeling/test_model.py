"""SupClapModel: the contracts on embeddings and outputs, over several text encoders."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, MPNetConfig, RobertaConfig, T5Config, XLMRobertaConfig

from supclap import CedConfig, SupClapConfig, SupClapModel
from support.builders import TEXT_CONFIGS, TEXT_SIZES, spectrograms, texts


@pytest.fixture(params=TEXT_CONFIGS)
def model(request):
    torch.manual_seed(0)
    config = SupClapConfig(
        text_config=TEXT_CONFIGS[request.param],
        audio_config=CedConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3),
        projection_dim=16,
    )
    return SupClapModel(config).eval()


@torch.no_grad()
def test_outputs_have_the_documented_shapes_for_unequal_numbers(model):
    output = model(**texts([5, 9]), **spectrograms([100, 50, 80]))
    assert output.logits_per_audio.shape == (3, 2)
    assert output.audio_embeds.shape == (3, 16)
    assert output.text_embeds.shape == (2, 16)
    torch.testing.assert_close(output.logits_per_text, output.logits_per_audio.T)


@torch.no_grad()
def test_logits_are_scaled_cosines(model):
    output = model(**texts([5, 9]), **spectrograms([100, 50, 80]))
    cosine = torch.nn.functional.cosine_similarity(output.audio_embeds[:, None], output.text_embeds[None], dim=-1)
    torch.testing.assert_close(output.logits_per_audio, cosine / 0.07, atol=1e-4, rtol=0)


@torch.no_grad()
def test_features_are_the_embeddings_of_forward_and_of_unit_length(model):
    text, audio = texts([5, 9]), spectrograms([100, 50])
    output = model(**text, **audio)
    for features, embeds in (
        (model.get_text_features(**text), output.text_embeds),
        (model.get_audio_features(**audio), output.audio_embeds),
    ):
        torch.testing.assert_close(features.pooler_output, embeds)
        torch.testing.assert_close(embeds.norm(dim=-1), torch.ones(2))


@torch.no_grad()
def test_an_embedding_does_not_depend_on_batch_or_padding(model):
    text, audio = texts([5, 9, 3]), spectrograms([100, 180, 40])
    all_text = model.get_text_features(**text).pooler_output
    all_audio = model.get_audio_features(**audio).pooler_output
    for i, (n_tokens, n_frames) in enumerate(zip([5, 9, 3], [100, 180, 40], strict=True)):
        alone = model.get_text_features(text["input_ids"][i : i + 1, :n_tokens]).pooler_output[0]
        torch.testing.assert_close(all_text[i], alone, atol=1e-5, rtol=0)
        alone = model.get_audio_features(audio["input_features"][i : i + 1, :n_frames]).pooler_output[0]
        torch.testing.assert_close(all_audio[i], alone, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    "model", [name for name in TEXT_CONFIGS if name != "t5"], indirect=True
)  # T5 has no last position
def test_text_beyond_the_positions_is_cut_as_the_tokenizer_would(model):
    long = texts([60, 7])
    cut = {name: value[:, :40].clone() for name, value in long.items()}
    cut["input_ids"][0, -1] = long["input_ids"][0, 59]  # a tokenizer keeps the closing token
    torch.testing.assert_close(
        model.get_text_features(**long).pooler_output, model.get_text_features(**cut).pooler_output
    )


@pytest.mark.parametrize(
    ("config", "of_tokenizer", "limit"),
    [
        (BertConfig(max_position_embeddings=512), None, 512),
        (BertConfig(max_position_embeddings=512), 128, 128),
        (BertConfig(max_position_embeddings=512), 1000, 512),
        (RobertaConfig(max_position_embeddings=514, pad_token_id=1), None, 512),
        (XLMRobertaConfig(max_position_embeddings=514, pad_token_id=1), 512, 512),
        (MPNetConfig(max_position_embeddings=514, pad_token_id=1), None, 512),
        (T5Config(), None, None),
        (T5Config(), 512, 512),
    ],
)
def test_the_limit_of_a_text_is_the_lower_one_of_encoder_and_tokenizer(config, of_tokenizer, limit):
    assert SupClapConfig(text_config=config).text_limit(of_tokenizer) == limit


def test_every_parameter_gets_a_gradient(model):
    model.train()
    model(**texts([5, 9]), **spectrograms([100, 50]), return_loss=True).loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    # the first patch positions are used by these short clips, the vocabulary by these texts: no gradient is missing
    assert not without


@torch.no_grad()
def test_saved_and_loaded_gives_the_same_embeddings(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded, info = SupClapModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    inputs = {**texts([5, 9]), **spectrograms([100, 50])}
    torch.testing.assert_close(loaded.eval()(**inputs).logits_per_audio, model(**inputs).logits_per_audio)


@torch.no_grad()
def test_return_loss_is_the_sum_of_both_directions(tiny_model):
    output = tiny_model(**texts([5, 9, 4]), **spectrograms([100, 50, 80]), return_loss=True)
    logits = output.logits_per_audio.double().numpy()

    def cross_entropy(rows):
        return np.mean([np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(rows)])

    assert output.loss.item() == pytest.approx(cross_entropy(logits) + cross_entropy(logits.T), abs=1e-5)


@torch.no_grad()
def test_return_loss_of_a_model_with_a_bias_is_the_sigmoid_loss(tiny_config):
    tiny_config.logit_bias_init_value = -10.0
    output = SupClapModel(tiny_config)(**texts([5, 9]), **spectrograms([100, 50]), return_loss=True)
    logits = output.logits_per_audio.double().numpy()
    signs = 2 * np.eye(2) - 1
    assert output.loss.item() == pytest.approx(np.log1p(np.exp(-signs * logits)).sum() / 2, rel=1e-5)


def test_return_loss_of_unpaired_rows_is_refused(tiny_model):
    with pytest.raises(ValueError, match="3 clips and 2 texts"):
        tiny_model(**texts([5, 9]), **spectrograms([100, 50, 80]), return_loss=True)


def test_forward_with_one_modality_names_the_other_way(tiny_model):
    with pytest.raises(ValueError, match="get_audio_features"):
        tiny_model(**spectrograms([100]))


def test_the_scale_is_clamped(tiny_model):
    with torch.no_grad():
        tiny_model.logit_scale.fill_(10.0)
    assert tiny_model.get_logit_scale().item() == 100.0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"text_config": {"hidden_size": 32}}, "model_type"),
        ({"projection_num_layers": 3}, "projection_num_layers"),
        ({"projection_dim": "many"}, "projection_dim"),
    ],
)
def test_a_wrong_config_names_the_field(fields, named):
    with pytest.raises(Exception, match=named):
        SupClapConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads"),
        ({"patch_stride": 17}, "patch_stride"),
        ({"window_hop": 0}, "window_hop"),
        ({"long_audio_pooling": "first"}, "masked_mean"),
    ],
)
def test_a_wrong_audio_config_names_the_field(fields, named):
    with pytest.raises(Exception, match=named):
        CedConfig(**fields)


@torch.no_grad()
def test_a_pretrained_text_encoder_keeps_its_weights(tmp_path, tiny_config):
    from transformers import BertModel

    text = BertModel(BertConfig(**TEXT_SIZES))
    text.save_pretrained(tmp_path)
    audio = CedConfig(hidden_size=48, num_hidden_layers=1, num_attention_heads=3)
    model = SupClapModel.from_text_audio_pretrained(str(tmp_path), audio, projection_dim=8)
    torch.testing.assert_close(
        model.text_model.embeddings.word_embeddings.weight, text.embeddings.word_embeddings.weight
    )
    assert model.config.projection_dim == 8


def test_fields_of_a_pretrained_text_encoder_can_be_changed(tmp_path):
    from transformers import BertModel

    text = BertModel(BertConfig(**TEXT_SIZES, hidden_dropout_prob=0.1))
    text.save_pretrained(tmp_path)
    audio = CedConfig(hidden_size=48, num_hidden_layers=1, num_attention_heads=3)
    changes = {"hidden_dropout_prob": 0.0, "num_hidden_layers": 1}
    model = SupClapModel.from_text_audio_pretrained(str(tmp_path), audio, text_config=changes)
    assert model.text_model.embeddings.dropout.p == 0
    assert len(model.text_model.encoder.layer) == 1
    assert torch.equal(
        model.text_model.encoder.layer[0].output.dense.weight, text.encoder.layer[0].output.dense.weight
    )
    with pytest.raises(ValueError, match="BertConfig has no field 'hidden_dropout'"):
        SupClapModel.from_text_audio_pretrained(str(tmp_path), audio, text_config={"hidden_dropout": 0.0})


@torch.no_grad()
@pytest.mark.parametrize("cast", ["load", "convert"])
def test_bfloat16_is_close_to_float32(tiny_model, tmp_path, cast):
    inputs = spectrograms([100, 80])
    expected = tiny_model.get_audio_features(**inputs).pooler_output
    tiny_model.save_pretrained(tmp_path)
    if cast == "load":
        model = SupClapModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    else:
        model = tiny_model.bfloat16()
    embeds = model.get_audio_features(**inputs).pooler_output.float()
    assert torch.nn.functional.cosine_similarity(embeds, expected).min() > 0.99


# --- hidden states and attentions -----------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("option", ["output_hidden_states", "output_attentions"])
def test_text_features_carry_what_the_text_encoder_gives_of_its_layers(model, option):
    model.set_attn_implementation("eager")
    inputs, name = texts([5, 9]), option.removeprefix("output_")
    expected = model.text_model(**inputs, **{option: True})[name]
    output = model.get_text_features(**inputs, **{option: True})
    torch.testing.assert_close(output[name], expected)
    assert model.get_text_features(**inputs).get(name) is None


@torch.no_grad()
@pytest.mark.parametrize("model", ["bert"], indirect=True)
def test_a_forward_carries_hidden_states_and_attentions_of_both_towers(model):
    model.set_attn_implementation("eager")
    inputs = {**texts([5, 9]), **spectrograms([100, 50])}
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    for tower in (output.audio_model_output, output.text_model_output):
        assert len(tower.hidden_states) == len(tower.attentions) + 1 == 3
