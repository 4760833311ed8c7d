"""One call for texts and audio: their options stay apart, and any tokenizer works."""

import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from transformers import (
    ASTFeatureExtractor,
    AutoFeatureExtractor,
    AutoProcessor,
    AutoTokenizer,
    ByT5Tokenizer,
    NllbTokenizer,
)

from supclap import CedConfig, CedModel, SupClapFeatureExtractor, SupClapProcessor


TEXTS = ["A dog barks.", "Rain falls on a tin roof while a train passes by."]


@pytest.fixture
def nllb():
    return SupClapProcessor(SupClapFeatureExtractor(), NllbTokenizer(src_lang="eng_Latn"))


def noise(samples):
    return (0.1 * np.random.default_rng(0).standard_normal(samples)).astype(np.float32)


# --- what comes out ------------------------------------------------------------------------------------------------


def test_texts_give_the_tokens_of_the_tokenizer(processor, tokenizer):
    expected = tokenizer(TEXTS, padding=True, return_tensors="pt")
    batch = processor(text=TEXTS)
    assert set(batch) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(batch[key], value)


def test_audio_gives_the_features_of_the_extractor(processor, clips):
    expected = processor.feature_extractor(clips, sampling_rate=16000)
    batch = processor(audio=clips, sampling_rate=16000)
    assert set(batch) == {"input_features", "input_features_mask"}
    torch.testing.assert_close(batch["input_features"], expected["input_features"])


def test_the_model_takes_both_in_unequal_numbers(processor, tiny_model, clips):
    batch = processor(text=TEXTS, audio=clips, sampling_rate=16000)
    with torch.no_grad():
        assert tiny_model(**batch).logits_per_audio.shape == (3, 2)


def test_a_single_text_and_a_single_clip_are_a_batch_of_one(processor, clips):
    batch = processor(text=TEXTS[0], audio=clips[0], sampling_rate=16000)
    assert batch["input_ids"].shape[0] == batch["input_features"].shape[0] == 1


def test_every_input_of_the_model_is_declared(processor, clips):
    assert set(processor(text=TEXTS, audio=clips, sampling_rate=16000)) <= set(processor.model_input_names)


def test_numpy_is_returned_on_request(processor, clips):
    batch = processor(text=TEXTS, audio=clips, sampling_rate=16000, return_tensors="np")
    assert {type(value) for value in batch.values()} == {np.ndarray}


@pytest.mark.parametrize("form", [str, Path, lambda p: p.read_bytes(), lambda p: {"path": str(p), "bytes": None}])
def test_sound_files_are_read_and_resampled(processor, tmp_path, form):
    path = tmp_path / "clip.wav"
    soundfile.write(path, noise(44100), 44100)
    assert processor(audio=form(path))["input_features"].shape == (1, 101, 64)


def test_a_dict_carries_its_rate(processor):
    assert processor(audio={"array": noise(8000), "sampling_rate": 8000})["input_features"].shape == (1, 101, 64)


# --- options -------------------------------------------------------------------------------------------------------


def test_flat_text_options_do_not_reach_the_audio(processor, clips):
    batch = processor(text=TEXTS, audio=clips[0], sampling_rate=16000, padding="max_length", max_length=20)
    assert batch["input_ids"].shape == (2, 20)
    assert batch["input_features"].shape == (1, 101, 64)


def test_audio_kwargs_do_not_reach_the_text(processor, clips):
    options = {"padding": "max_length", "max_length": 300}
    batch = processor(text=TEXTS[0], audio=clips[0], sampling_rate=16000, audio_kwargs=options)
    assert batch["input_features"].shape == (1, 300, 64)
    assert batch["input_ids"].shape[1] < 20


def test_text_kwargs_do_not_reach_the_audio(processor, clips):
    batch = processor(text=TEXTS[1], audio=clips[0], sampling_rate=16000, text_kwargs={"max_length": 5})
    assert batch["input_ids"].shape == (1, 5)
    assert batch["input_features"].shape == (1, 101, 64)


def test_the_call_form_of_generic_code_is_understood(processor, clips):
    batch = processor(
        audio=clips,
        text_kwargs={"padding": True, "truncation": "longest_first"},
        images_kwargs={},
        audio_kwargs={"padding": True, "sampling_rate": 16000},
        videos_kwargs={},
        common_kwargs={"return_tensors": "np"},
    )
    assert isinstance(batch["input_features"], np.ndarray)


def test_positional_input_is_refused_with_the_names(processor, clips):
    with pytest.raises(TypeError, match=r"processor\(text=\.\.\.\), processor\(audio="):
        processor(clips[0], sampling_rate=16000)


def test_no_input_is_refused(processor):
    with pytest.raises(ValueError, match="pass text=..., audio=... or both"):
        processor()


@pytest.mark.parametrize(
    "wrong", [{"audios": noise(1600)}, {"images": [1]}, {"sample_rate": 16000}, {"return_overflowing_tokens": True}]
)
def test_unknown_arguments_are_named(processor, wrong):
    with pytest.raises(TypeError, match=next(iter(wrong))):
        processor(text=TEXTS, **wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ([], "text is an empty list"),
        (["a dog", "  "], r"text\[1\] is empty"),
        (["a dog", None], r"text\[1\] must be a string, got NoneType"),
        (7, "text must be a string or a list of strings, got int"),
        (b"a dog", "text must be a string or a list of strings, got bytes"),
    ],
)
def test_bad_text_is_named(processor, text, message):
    with pytest.raises((TypeError, ValueError), match=message):
        processor(text=text)


# --- limits --------------------------------------------------------------------------------------------------------


def test_a_text_over_the_limit_is_cut_with_a_warning_said_once(processor, caplog):
    logging.Logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            batch = processor(text="dog " * 500, max_length=33)
    assert batch["input_ids"].shape == (1, 33)
    assert [r.message for r in caplog.records if "limit of 33 tokens" in r.message] == [caplog.messages[0]]


def test_without_a_given_length_the_limit_is_the_tokenizers(processor, tokenizer):
    assert processor(text="dog " * 5000)["input_ids"].shape == (1, tokenizer.model_max_length)


def test_a_text_that_just_fits_is_not_warned_about(processor, caplog):
    logging.Logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        batch = processor(text="dog " * 29, max_length=31)
    assert batch["input_ids"].shape == (1, 31)
    assert not caplog.records


def test_a_tokenizer_without_a_limit_is_not_cut(processor, tokenizer, monkeypatch, caplog):
    monkeypatch.setattr(tokenizer, "model_max_length", int(1e30))
    with caplog.at_level(logging.WARNING):
        assert processor(text="dog " * 600)["input_ids"].shape == (1, 602)
    assert not caplog.records


# --- tokenizers ----------------------------------------------------------------------------------------------------


def test_a_slow_tokenizer_works():
    tokenizer = ByT5Tokenizer()
    batch = SupClapProcessor(SupClapFeatureExtractor(), tokenizer)(text=TEXTS)
    # ByT5 spends one token on each byte and one on the end.
    assert batch["attention_mask"].sum(1).tolist() == [len(text) + 1 for text in TEXTS]


def test_padding_goes_to_the_end_for_a_tokenizer_that_pads_in_front(processor, tokenizer, monkeypatch):
    expected = processor(text=TEXTS)["input_ids"]
    monkeypatch.setattr(tokenizer, "padding_side", "left")
    torch.testing.assert_close(processor(text=TEXTS)["input_ids"], expected)


def test_each_text_starts_with_the_code_of_its_language(nllb):
    languages = ["deu_Latn", "eng_Latn", "deu_Latn"]
    batch = nllb(text=["Hund", "dog", "Katze und Hund"], text_lang=languages)
    assert nllb.tokenizer.convert_ids_to_tokens(batch["input_ids"][:, 0].tolist()) == languages


def test_without_a_language_the_tokenizers_own_is_used(nllb):
    first = nllb(text=["dog"])["input_ids"][0, 0].item()
    assert nllb.tokenizer.convert_ids_to_tokens(first) == "eng_Latn"


def test_the_language_of_the_tokenizer_survives_a_call(nllb):
    nllb(text=["Hund"], text_lang="deu_Latn")
    assert nllb.tokenizer.src_lang == "eng_Latn"


@pytest.mark.parametrize(
    ("languages", "message"),
    [("german", "text_lang 'german' is unknown to NllbTokenizer"), (["deu_Latn"], "1 codes for 2 texts")],
)
def test_a_wrong_language_is_refused(nllb, languages, message):
    with pytest.raises(ValueError, match=message):
        nllb(text=["Hund", "Katze"], text_lang=languages)


def test_a_refused_language_leaves_the_tokenizer_as_it_was(nllb):
    with pytest.raises(ValueError, match="unknown"):
        nllb(text="Hund", text_lang="german")
    assert nllb.tokenizer.src_lang == "eng_Latn"


def test_a_language_for_a_tokenizer_without_languages_is_refused(processor):
    with pytest.raises(ValueError, match="takes no language. Leave it out"):
        processor(text=TEXTS, text_lang="eng_Latn")


# --- pretrained encoders -------------------------------------------------------------------------------------------


@pytest.fixture
def ced_folder(tmp_path):
    CedModel(CedConfig(hidden_size=48, num_hidden_layers=1, num_attention_heads=3)).save_pretrained(tmp_path / "ced")
    return tmp_path / "ced"


def test_the_features_saved_beside_a_ced_are_those_of_its_processor(ced_folder, text_encoder):
    SupClapFeatureExtractor(hop_length=320, top_db=80.0).save_pretrained(ced_folder)
    extractor = SupClapProcessor.from_text_audio_pretrained(text_encoder, ced_folder).feature_extractor
    assert (extractor.hop_length, extractor.top_db) == (320, 80.0)


def test_the_features_in_a_processor_beside_a_ced_are_those_of_its_processor(ced_folder, text_encoder, tokenizer):
    SupClapProcessor(SupClapFeatureExtractor(hop_length=320), tokenizer).save_pretrained(ced_folder)
    assert SupClapProcessor.from_text_audio_pretrained(text_encoder, ced_folder).feature_extractor.hop_length == 320


def test_a_ced_without_saved_features_gets_the_published_ones(ced_folder, text_encoder):
    extractor = SupClapProcessor.from_text_audio_pretrained(text_encoder, ced_folder).feature_extractor
    assert extractor.to_dict() == SupClapFeatureExtractor().to_dict()


def test_features_of_another_class_beside_a_ced_are_refused(ced_folder, text_encoder):
    ASTFeatureExtractor().save_pretrained(ced_folder)
    with pytest.raises(ValueError, match=r"ced is a CED, but the features saved .* 'ASTFeatureExtractor'"):
        SupClapProcessor.from_text_audio_pretrained(text_encoder, ced_folder)


# --- saving --------------------------------------------------------------------------------------------------------


def test_a_saved_folder_gives_the_processor_back(processor, checkpoint, clips):
    loaded = AutoProcessor.from_pretrained(checkpoint)
    assert isinstance(loaded, SupClapProcessor)
    expected = processor(text=TEXTS, audio=clips, sampling_rate=16000)
    for key, value in loaded(text=TEXTS, audio=clips, sampling_rate=16000).items():
        torch.testing.assert_close(value, expected[key], atol=0, rtol=0)


def test_a_saved_folder_gives_each_part_back(processor, checkpoint):
    assert AutoFeatureExtractor.from_pretrained(checkpoint).to_dict() == processor.feature_extractor.to_dict()
    assert AutoTokenizer.from_pretrained(checkpoint).get_vocab() == processor.tokenizer.get_vocab()
