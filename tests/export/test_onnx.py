"""The exported graphs, run by onnxruntime, give torch's embeddings."""

import copy
import json
import logging

import numpy as np
import onnx
import onnxruntime
import pytest
import soundfile
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from transformers import AutoTokenizer

from supclap import SupClapConfig, SupClapFeatureExtractor, SupClapModel, SupClapProcessor
from supclap.cli.export import TALKATIVE
from supclap.errors import ExportError
from supclap.evaluation.encoders import load_encoder
from supclap.export.onnx import (
    TOLERANCE,
    AudioGraph,
    OnnxSupClap,
    exact_features,
    example_clips,
    export_onnx,
    quantize,
)
from supclap_cli import main
from support.builders import build_with_encoder


@pytest.fixture(scope="module")
def logged():
    """The log records of the libraries that export, while the tests of this module run."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    places = [logging.getLogger(name) for name in (None, "torch")]  # torch's do not reach the root
    for place in places:
        place.addHandler(handler)
    yield records
    for place in places:
        place.removeHandler(handler)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tokenizer, processor, logged):
    """A tiny model, its processor, and the folders of its float32 and its int8 export."""
    from transformers import BertConfig

    from supclap import CedConfig

    torch.manual_seed(0)
    text = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    audio = CedConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, target_length=160)
    model = SupClapModel(SupClapConfig(text_config=text, audio_config=audio, projection_dim=16)).eval()
    model.audio_model.set_input_statistics(torch.full((64,), -40.0), torch.full((64,), 400.0))
    folder = tmp_path_factory.mktemp("export")
    model.save_pretrained(folder / "model")
    processor.save_pretrained(folder / "model")
    assert main(["export", str(folder / "model"), str(folder / "float32")]) == 0
    return model, folder


@torch.no_grad()
def test_clips_of_any_length_and_batch_embed_as_in_torch(exported, processor):
    model, folder = exported
    session = OnnxSupClap(folder / "float32")
    rng = np.random.default_rng(0)
    # one hop, less than a patch, one window of 1.6 s, exactly a window, several windows, a rest shorter than a patch
    clips = [
        (0.1 * rng.standard_normal(n)).astype(np.float32)
        for n in (160, 2000, 16000, 159 * 160, 60000, 320 * 160 + 900)
    ]
    clips.append(np.zeros(5000, np.float32))
    expected = model.get_audio_features(**processor(audio=clips, sampling_rate=16000)).pooler_output.numpy()
    np.testing.assert_allclose(session.embed_audio(clips, 16000), expected, atol=1e-4)
    for clip, row in zip(clips, expected, strict=True):
        np.testing.assert_allclose(session.embed_audio([clip], 16000)[0], row, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", example_clips(16000))
def test_the_graph_is_as_close_to_float64_as_torch_is(exported, processor, kind):
    """In bands that a tone leaves empty, features hold nothing but the rounding of a transform, lifted by the logarithm.

    Torch's float32 transform then differs from the graph's by more than any fixed bound, so both are measured against
    the same steps in float64; 1e-6 is for the float32 rounding of the encoder itself.
    """
    model, folder = exported
    clip = example_clips(16000)[kind]
    inputs = processor(audio=[clip], sampling_rate=16000)
    in_torch = model.get_audio_features(**inputs).pooler_output.numpy()
    inputs["input_features"] = exact_features(processor.feature_extractor, clip)[None]
    exact = copy.deepcopy(model).double().get_audio_features(**inputs).pooler_output.numpy()
    in_graph = OnnxSupClap(folder / "float32").embed_audio([clip], 16000)
    assert np.abs(in_graph - exact).max() <= 4 * np.abs(in_torch - exact).max() + 1e-6
    # The graph's own transform is in float64, so that it keeps the plain bound also where torch's float32 does not.
    np.testing.assert_allclose(in_graph, exact, rtol=0, atol=TOLERANCE)


def test_float64_features_are_those_of_the_formula():
    """Hann window, reflected edges, power spectrum, mel filters and floor, by the discrete Fourier transform as a sum."""
    extractor, clip = SupClapFeatureExtractor(), example_clips(16000)["tone"][:4000]
    padded = np.pad(clip.astype(np.float64), 256, mode="reflect")
    frames = np.stack([padded[start : start + 512] for start in range(0, 4001, 160)])
    angles = 2 * np.pi * (np.outer(np.arange(512), np.arange(257)) % 512) / 512
    windowed = frames * extractor.window
    power = (windowed @ np.cos(angles)) ** 2 + (windowed @ np.sin(angles)) ** 2
    decibels = 10 * np.log10(np.maximum(power @ extractor.mel_filters, 1e-10))
    expected = np.maximum(decibels, decibels.max() - extractor.top_db)
    np.testing.assert_allclose(exact_features(extractor, clip), expected, rtol=0, atol=1e-6)


def test_export_refuses_a_graph_that_hears_tones_wrongly(checkpoint, tmp_path, monkeypatch):
    right = AudioGraph.log_mel

    def with_another_floor(graph, waveform, lengths):
        graph.top_db = 80.0  # noise has no band so far below its loudest one, a tone has
        return right(graph, waveform, lengths)

    monkeypatch.setattr(AudioGraph, "log_mel", with_another_floor)
    with pytest.raises(ExportError, match="differ from torch"):
        export_onnx(checkpoint, tmp_path / "out")


@torch.no_grad()
def test_texts_of_any_length_and_batch_embed_as_in_torch(exported, processor):
    model, folder = exported
    session = OnnxSupClap(folder / "float32")
    texts = ["rain", "a dog barks while a car passes", "bells " * 200, "a violin"]
    expected = model.get_text_features(**processor(text=texts)).pooler_output.numpy()
    np.testing.assert_allclose(session.embed_texts(texts), expected, atol=1e-4)
    np.testing.assert_allclose(session.embed_texts(texts[:1])[0], expected[0], atol=1e-4)


def test_a_text_past_the_positions_of_the_encoder_embeds_as_in_torch(checkpoint, tiny_model, processor, tmp_path):
    export_onnx(checkpoint, tmp_path / "out")
    text = "word " * 600
    with torch.no_grad():
        expected = tiny_model.get_text_features(**processor(text=text)).pooler_output.numpy()
    np.testing.assert_allclose(OnnxSupClap(tmp_path / "out").embed_texts(text), expected, atol=1e-4)


def test_texts_are_cut_at_the_limit_of_the_tokenizer_where_it_is_the_lower_one(checkpoint, tmp_path):
    processor = SupClapProcessor.from_pretrained(checkpoint)
    processor.tokenizer.model_max_length = 40  # the encoder has 64 positions
    processor.save_pretrained(checkpoint)
    export_onnx(checkpoint, tmp_path / "out")
    assert OnnxSupClap(tmp_path / "out").description["max_text_length"] == 40


def test_export_proves_a_text_past_the_limit(checkpoint, tmp_path, monkeypatch):
    right = SupClapConfig.text_limit
    # the description says 512, while the encoder, which asks without the tokenizer's limit, has 64 positions
    monkeypatch.setattr(
        SupClapConfig, "text_limit", lambda config, *of_tokenizer: 512 if of_tokenizer else right(config)
    )
    with pytest.raises(InvalidArgument):
        export_onnx(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_single_clip_or_text_embeds_as_a_list_of_one(exported, tmp_path):
    session = OnnxSupClap(exported[1] / "float32")
    soundfile.write(tmp_path / "clip.wav", 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    path = str(tmp_path / "clip.wav")
    np.testing.assert_array_equal(session.embed_audio(path), session.embed_audio([path]))
    np.testing.assert_array_equal(session.embed_texts("rain"), session.embed_texts(["rain"]))


@pytest.mark.parametrize("embed", ["embed_audio", "embed_texts"])
def test_an_empty_list_is_refused(exported, embed):
    with pytest.raises(ValueError, match=r"is an empty list\. Pass at least one"):
        getattr(OnnxSupClap(exported[1] / "float32"), embed)([])


def test_the_folder_says_what_its_users_need(exported):
    model, folder = exported
    description = json.loads((folder / "float32" / "export.json").read_text())
    assert description["sampling_rate"] == 16000
    assert description["logit_scale"] == pytest.approx(model.get_logit_scale().item())
    assert AutoTokenizer.from_pretrained(folder / "float32")("rain").input_ids


def test_the_command_keeps_the_logs_of_the_libraries_to_itself(exported, logged):
    assert not [record.getMessage() for record in logged if record.name.startswith(TALKATIVE)]


def test_an_existing_folder_is_kept(exported, capsys):
    _, folder = exported
    assert main(["export", str(folder / "model"), str(folder / "float32")]) == 1
    assert "exists" in capsys.readouterr().err


def test_an_encoder_that_cannot_be_exported_is_named(tokenizer, tmp_path):
    model, processor = build_with_encoder("ast", tokenizer)
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="audio-spectrogram-transformer"):
        export_onnx(tmp_path / "model", tmp_path / "out")


def test_an_exported_folder_is_scored_as_the_model_is(exported):
    _, folder = exported
    clips = [{"array": np.random.default_rng(n).uniform(-0.1, 0.1, n), "sampling_rate": 16000} for n in (4000, 9000)]
    clips, words = [*clips, clips[0]], ["a dog", "rain falls on a roof", "a bell"]
    graphs, model = (load_encoder(folder / name, "cpu") for name in ("float32", "model"))
    assert (graphs.record["weights"], graphs.record["languages"]) == ("float32", "not used")
    assert graphs.fingerprint != model.fingerprint
    torch.testing.assert_close(graphs.embed_audio(clips, 2), model.embed_audio(clips, 2), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        graphs.embed_texts(words, None, 2), model.embed_texts(words, None, 2), atol=1e-4, rtol=0
    )


def test_int8_weights_are_smaller_and_close(exported):
    _, folder = exported
    noise = (0.1 * np.random.default_rng(0).standard_normal((2, 30000))).astype(np.float32)
    for name, output in (("audio.onnx", "audio_embeds"), ("text.onnx", "text_embeds")):
        graph = onnx.load(folder / "float32" / name)
        size = graph.ByteSize()
        small = quantize(graph)
        assert [node.op_type for node in small.graph.node].count("MatMulNBits") >= 4  # the linear layers of a block
        assert small.ByteSize() < size
        onnx.save(small, folder / name)
        inputs = {
            "audio.onnx": {"waveform": noise, "lengths": np.array([30000, 9000])},
            "text.onnx": {"input_ids": np.array([[101, 7, 8, 102]]), "attention_mask": np.ones((1, 4), np.int64)},
        }[name]
        full, eight = (
            onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run([output], inputs)[0]
            for path in (folder / "float32" / name, folder / name)
        )
        assert (full * eight).sum(-1).min() > 0.999  # cosine of unit vectors
        assert not np.array_equal(full, eight)
