"""Hugging Face audio encoders in a SupClapModel, each with its own feature extraction, on tiny random models."""

import numpy as np
import pytest
import torch
from transformers import (
    ASTModel,
    AutoFeatureExtractor,
    AutoModel,
    AutoProcessor,
    BartConfig,
    BertConfig,
    BertModel,
    CLIPConfig,
    HubertModel,
    M2M100Config,
    SiglipTextConfig,
    Wav2Vec2Model,
    WavLMModel,
    WhisperModel,
)

from modeling_supclap.modeling_supclap import build_text_encoder
from supclap import SupClapConfig, SupClapEncoderFeatureExtractor, SupClapModel, SupClapProcessor
from support.builders import ENCODER_SIZES, ENCODERS, build_clap, build_with_encoder, clap_extractor
from support.doors import BOTH, LABELS, ONLY_WITHOUT_PACKAGE, WITHOUT_PACKAGE, through_doors


@pytest.fixture(params=ENCODERS)
def pair(request, tokenizer):
    return build_with_encoder(request.param, tokenizer)


@pytest.fixture
def noises():
    """Clips shorter than a window of one second, longer, and of several windows, at 16 kHz."""
    rng = np.random.default_rng(0)
    return [0.1 * rng.standard_normal(n).astype(np.float32) for n in (7000, 20000, 36100)]


def embed(model, processor, clips) -> torch.Tensor:
    with torch.no_grad():
        return model.get_audio_features(**processor(audio=clips, sampling_rate=16000)).pooler_output


def test_an_embedding_does_not_depend_on_batch_padding_or_chance(pair, noises):
    together = embed(*pair, noises)
    np.random.seed(1)
    alone = torch.cat([embed(*pair, [clip]) for clip in noises])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert (together[0] - together[1]).norm() > 1e-3


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The model in training mode, all of whose randomness would come from the encoder's own code."""
    for module in model.train().modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def test_every_parameter_gets_a_gradient_and_no_layer_is_skipped_at_random(pair, noises):
    model, processor = pair
    inputs = processor(text=["a dog", "rain", "a bell"], audio=noises, sampling_rate=16000)
    without_dropout(model)
    losses = [model(**inputs, return_loss=True).loss for _ in range(4)]
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0])
    losses[0].backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_gradient_checkpointing_gives_the_same_gradients(pair, noises):
    model, processor = pair
    inputs = processor(audio=noises[:1], sampling_rate=16000)
    without_dropout(model)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert any(getattr(module, "gradient_checkpointing", False) for module in model.audio_model.modules())
        model.zero_grad()
        model.get_audio_features(**inputs).pooler_output[:, 0].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.audio_model.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_a_saved_folder_reloads_to_the_same_embeddings(pair, noises, tmp_path):
    model, processor = pair
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    again = AutoProcessor.from_pretrained(tmp_path)
    assert type(AutoFeatureExtractor.from_pretrained(tmp_path)) is SupClapEncoderFeatureExtractor
    torch.testing.assert_close(embed(loaded.eval(), again, noises), embed(model, processor, noises))


STOCK = {
    "ast": (ASTModel, lambda model, x: model(x).pooler_output),
    "whisper": (WhisperModel, lambda model, x: model.encoder(x).last_hidden_state.mean(1)),
    "wav2vec2": (Wav2Vec2Model, lambda model, x: model(x).last_hidden_state.mean(1)),
    "wav2vec2-layer-norm": (Wav2Vec2Model, lambda model, x: model(x).last_hidden_state.mean(1)),
    "hubert": (HubertModel, lambda model, x: model(x).last_hidden_state.mean(1)),
    "wavlm": (WavLMModel, lambda model, x: model(x).last_hidden_state.mean(1)),
}


def saved_stock(name: str, folder) -> torch.nn.Module:
    torch.manual_seed(1)
    stock = STOCK[name][0](ENCODERS[name][0]()).eval()
    stock.save_pretrained(folder)
    ENCODERS[name][1]().save_pretrained(folder)
    return stock


@pytest.fixture
def text_folder(tokenizer, tmp_path):
    BertModel(BertConfig(vocab_size=len(tokenizer), **ENCODER_SIZES)).save_pretrained(tmp_path / "text")
    tokenizer.save_pretrained(tmp_path / "text")
    return str(tmp_path / "text")


@torch.no_grad()
@pytest.mark.parametrize("name", STOCK)
def test_a_pretrained_encoder_gives_what_it_gives_by_itself(name, text_folder, tmp_path):
    folder = str(tmp_path / "audio")
    stock = saved_stock(name, folder)
    window = {} if ENCODERS[name][2] is None else {"audio_window": ENCODERS[name][2]}
    model = SupClapModel.from_text_audio_pretrained(text_folder, folder, projection_dim=8, **window).eval()
    processor = SupClapProcessor.from_text_audio_pretrained(text_folder, folder)
    clip = 0.1 * np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    inputs = ENCODERS[name][1]()(clip, sampling_rate=16000, return_tensors="pt")
    expected = STOCK[name][1](stock, next(iter(inputs.values())))
    pooled = model.audio_model(**processor(audio=[clip], sampling_rate=16000)).pooler_output
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_audio_tower_of_a_clap_gives_what_it_gives_by_itself(text_folder, tmp_path):
    torch.manual_seed(1)
    clap = build_clap().eval()
    clap.save_pretrained(tmp_path / "clap")
    clap_extractor().save_pretrained(tmp_path / "clap")
    folder = str(tmp_path / "clap")
    model = SupClapModel.from_text_audio_pretrained(text_folder, folder, projection_dim=8, audio_window=101).eval()
    processor = SupClapProcessor.from_text_audio_pretrained(text_folder, folder)
    clip = 0.1 * np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    inputs = clap_extractor()(clip, sampling_rate=48000, return_tensors="pt")
    inputs["is_longer"] = torch.zeros(1, 1, dtype=torch.bool)
    expected = clap.audio_model(**inputs).pooler_output
    pooled = model.audio_model(**processor(audio=[clip], sampling_rate=48000)).pooler_output
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_long_clip_is_the_mean_of_its_windows_by_their_length(tokenizer):
    model, processor = build_with_encoder("ast", tokenizer)
    clip = 0.1 * np.random.default_rng(0).standard_normal(24000).astype(np.float32)

    def pooled(part):
        return model.audio_model(**processor(audio=[part], sampling_rate=16000)).pooler_output

    expected = (2 * pooled(clip[:16000]) + pooled(clip[16000:])) / 3
    torch.testing.assert_close(pooled(clip), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_remote_code_alone_opens_a_model_with_another_encoder(tokenizer, tmp_path):
    model, processor = build_with_encoder("ast", tokenizer)
    model.save_pretrained(tmp_path / "folder")
    processor.save_pretrained(tmp_path / "folder")
    clip = 0.1 * np.random.default_rng(0).standard_normal(24000).astype(np.float32)
    inputs = processor(text=LABELS, audio=[clip], sampling_rate=16000)
    expected = model(**inputs).logits_per_audio.softmax(-1)[0]
    found = through_doors(WITHOUT_PACKAGE + BOTH + ONLY_WITHOUT_PACKAGE, tmp_path / "folder", tmp_path, clip)
    for door in ("Auto classes", "stock pipeline", "saved again"):
        np.testing.assert_allclose(found[door], expected, atol=1e-5)


def test_features_that_fill_no_window_are_refused(tokenizer):
    model, _ = build_with_encoder("ast", tokenizer)
    with pytest.raises(ValueError, match="windows of 100"):
        model.get_audio_features(torch.zeros(1, 90, 32))


def test_an_unknown_audio_encoder_lists_the_known_ones():
    with pytest.raises(ValueError, match="wavlm"):
        SupClapModel(SupClapConfig(text_config=BertConfig(**ENCODER_SIZES), audio_config=BertConfig(**ENCODER_SIZES)))


def test_an_unknown_feature_extractor_is_not_built():
    with pytest.raises(ValueError, match="ASTFeatureExtractor"):
        SupClapEncoderFeatureExtractor({"feature_extractor_type": "SomethingElse"})


def test_a_checkpoint_without_the_encoders_weights_is_refused(text_folder, tmp_path):
    ASTModel(ENCODERS["ast"][0]()).save_pretrained(tmp_path / "audio", state_dict={"layernorm.bias": torch.zeros(32)})
    with pytest.raises(ValueError, match="embeddings.cls_token"):
        SupClapModel.from_text_audio_pretrained(text_folder, str(tmp_path / "audio"))


@torch.no_grad()
def test_the_encoder_of_a_translation_model_is_loaded_not_made_up(tmp_path):
    from transformers import M2M100Model

    config = M2M100Config(
        vocab_size=60, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32,
    )  # fmt: skip
    translation = M2M100Model(config)
    translation.save_pretrained(tmp_path)
    model = SupClapModel.from_text_audio_pretrained(str(tmp_path), ENCODERS["ast"][0](), projection_dim=8)
    for name, weight in translation.encoder.state_dict().items():
        torch.testing.assert_close(model.text_model.state_dict()[name], weight)
    assert model.config.text_config.encoder_layerdrop == 0


@torch.no_grad()
def test_the_encoder_of_a_t5_is_loaded_without_its_decoder(tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=60, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
    ).eval()
    t5.save_pretrained(tmp_path / "t5")
    model = SupClapModel.from_text_audio_pretrained(
        str(tmp_path / "t5"), ENCODERS["ast"][0](), projection_dim=8
    ).eval()
    inputs = {"input_ids": torch.tensor([[3, 4, 5, 1]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    expected = t5.encoder(**inputs).last_hidden_state
    torch.testing.assert_close(model.text_model(**inputs).last_hidden_state, expected)
    assert not any("decoder" in name for name in model.state_dict())
    model.save_pretrained(tmp_path / "clap")
    loaded = SupClapModel.from_pretrained(tmp_path / "clap").eval()
    torch.testing.assert_close(loaded.text_model(**inputs).last_hidden_state, expected)


@torch.no_grad()
@pytest.mark.parametrize("whole", [True, False], ids=["CLAP", "its text encoder"])
def test_the_text_encoder_of_a_clap_is_loaded_by_itself_and_out_of_the_clap(tmp_path, whole):
    clap = build_clap().eval()
    (clap if whole else clap.text_model).save_pretrained(tmp_path)
    model = SupClapModel.from_text_audio_pretrained(
        str(tmp_path), ENCODERS["ast"][0](), projection_dim=8, text_pooling="pooler"
    ).eval()
    inputs = {"input_ids": torch.tensor([[0, 5, 6, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    expected = clap.text_model(**inputs).pooler_output
    torch.testing.assert_close(model.text_model(**inputs).pooler_output, expected)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BartConfig(d_model=32), "'bart': it is an encoder-decoder"),
        (SiglipTextConfig(hidden_size=32), "'siglip_text_model': the Auto classes know no model of it"),
        (CLIPConfig(), "'clip': it is not an encoder of texts alone"),
    ],
    ids=["BART", "SigLIP's text encoder", "CLIP"],
)
def test_a_model_whose_output_is_no_encoding_of_texts_is_refused(tmp_path, config, reason):
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"No text encoder for model_type {reason}.*Take an encoder"):
        SupClapModel.from_text_audio_pretrained(str(tmp_path), ENCODERS["ast"][0]())
    with pytest.raises(ValueError, match="No text encoder"):
        build_text_encoder(config)


# --- hidden states and attentions -----------------------------------------------------------------------------------


def noise_inputs(processor, *seconds):
    rate = processor.feature_extractor.sampling_rate
    generator = torch.Generator().manual_seed(0)
    return processor(
        audio=[torch.randn(int(rate * length), generator=generator) / 10 for length in seconds], sampling_rate=rate
    )


@torch.no_grad()
@pytest.mark.parametrize(("name", "layers"), [("ast", 2), ("htsat", 2), ("whisper", 2)])
def test_hidden_states_and_attentions_of_an_encoder_are_passed_on(name, layers, tokenizer):
    model, processor = build_with_encoder(name, tokenizer)
    model.set_attn_implementation("eager")
    inputs = noise_inputs(processor, 0.9, 0.5)
    output = model.get_audio_features(**inputs, output_hidden_states=True, output_attentions=True)
    assert len(output.attentions) == layers
    assert len(output.hidden_states) == layers + 1
    torch.testing.assert_close(output.pooler_output, model.get_audio_features(**inputs).pooler_output)


@torch.no_grad()
@pytest.mark.parametrize("name", ["ast", "whisper"])
def test_hidden_states_of_the_windows_of_an_encoder_stand_in_a_row(name, tokenizer):
    model, processor = build_with_encoder(name, tokenizer)
    output = model.get_audio_features(**noise_inputs(processor, 2.5, 0.5), output_hidden_states=True)
    for states in output.hidden_states:
        assert states.shape == output.last_hidden_state.shape


@pytest.mark.parametrize(
    ("name", "option", "seconds", "message"),
    [
        ("ast", "output_attentions", 0.9, "gives none here. Call model.set_attn_implementation"),
        ("htsat", "output_hidden_states", 2.5, "gives those of one window only. Pass clips of at most 101 features"),
    ],
)
def test_layers_that_an_encoder_does_not_give_are_refused(name, option, seconds, message, tokenizer):
    model, processor = build_with_encoder(name, tokenizer)
    with pytest.raises(ValueError, match=message):
        model.get_audio_features(**noise_inputs(processor, seconds), **{option: True})
