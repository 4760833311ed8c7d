"""Zero-shot classification: right scores for every form of input, or an error that says what to do."""

import io
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from transformers import ZeroShotAudioClassificationPipeline
from transformers.pipelines.pt_utils import KeyDataset

import supclap
from supclap import (
    SupClapFeatureExtractor,
    SupClapModel,
    SupClapProcessor,
    SupClapZeroShotAudioClassificationPipeline,
)
from supclap.publishing.hub import check_checkpoint


LABELS = ["dog", "rain", "church bells"]
RATE = {"sampling_rate": 16000}


def build(pipeline_class, model, processor, **kwargs):
    return pipeline_class(
        model=model,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
        task="zero-shot-audio-classification",
        device="cpu",
        **kwargs,
    )


@pytest.fixture
def pipe(tiny_model, processor):
    return build(SupClapZeroShotAudioClassificationPipeline, tiny_model, processor)


@pytest.fixture
def biased_pipe(tiny_config, processor):
    tiny_config.logit_bias_init_value = -10.0
    torch.manual_seed(0)
    return build(SupClapZeroShotAudioClassificationPipeline, SupClapModel(tiny_config).eval(), processor)


def scores(result):
    return {entry["label"]: entry["score"] for entry in result}


def assert_same(result, expected, tolerance=1e-5):
    assert scores(result) == pytest.approx(scores(expected), abs=tolerance)


def model_logits(pipe, processor, clip, sentences):
    with torch.no_grad():
        return pipe.model(**processor(text=sentences, audio=clip, sampling_rate=16000)).logits_per_audio[0]


# --- scores --------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_stock_pipeline(pipe, tiny_model, processor, clips):
    stock = build(ZeroShotAudioClassificationPipeline, tiny_model, processor)
    assert_same(pipe(clips[0], candidate_labels=LABELS, **RATE), stock(clips[0], candidate_labels=LABELS), 1e-6)


def test_the_highest_score_comes_first(pipe, clips):
    values = [entry["score"] for entry in pipe(clips[0], candidate_labels=LABELS, **RATE)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("number", [int, np.int64])
def test_top_k_keeps_the_highest(pipe, clips, number):
    everything = pipe(clips[0], candidate_labels=LABELS, **RATE)
    assert pipe(clips[0], candidate_labels=LABELS, top_k=number(2), **RATE) == everything[:2]


def test_none_gives_the_logits_of_the_model_with_its_bias(biased_pipe, processor, clips):
    expected = model_logits(biased_pipe, processor, clips[0], LABELS).tolist()
    result = biased_pipe(clips[0], candidate_labels=LABELS, hypothesis_template="{}", function_to_apply="none", **RATE)
    assert scores(result) == pytest.approx(dict(zip(LABELS, expected, strict=True)), abs=1e-4)


@pytest.mark.parametrize("option", [{"multi_label": True}, {"function_to_apply": "sigmoid"}])
def test_sigmoid_scores_each_label_on_its_own(biased_pipe, processor, clips, option):
    expected = model_logits(biased_pipe, processor, clips[0], LABELS).sigmoid().tolist()
    result = biased_pipe(clips[0], candidate_labels=LABELS, hypothesis_template="{}", **option, **RATE)
    assert scores(result) == pytest.approx(dict(zip(LABELS, expected, strict=True)), rel=1e-4)


def test_multi_label_of_a_model_without_a_bias_is_refused(pipe, clips):
    with pytest.raises(ValueError, match="trained with the sigmoid loss"):
        pipe(clips[0], candidate_labels=LABELS, multi_label=True, **RATE)


def test_multi_label_scores_are_the_probabilities_of_the_sigmoid_loss(biased_pipe, processor, clips):
    """The loss of the model on one clip and its caption is -log p of a score, by transformers' own formula of SigLIP."""
    inputs = processor(text=[LABELS[0]], audio=clips[0], sampling_rate=16000)
    with torch.no_grad():
        loss = biased_pipe.model(**inputs, return_loss=True).loss.item()
    option = {"hypothesis_template": "{}", "multi_label": True}
    (result,) = biased_pipe(clips[0], candidate_labels=[LABELS[0]], **option, **RATE)
    assert result["score"] == pytest.approx(np.exp(-loss), rel=1e-4)


def test_several_templates_give_the_normalised_mean_of_their_embeddings(pipe, processor, clips):
    templates = ["{}", "the sound of {}"]
    with torch.no_grad():
        sentences = [[template.replace("{}", label) for label in LABELS] for template in templates]
        texts = [pipe.model.get_text_features(**processor(text=s)).pooler_output for s in sentences]
        clip = pipe.model.get_audio_features(**processor(audio=clips[0], **RATE)).pooler_output
        mean = torch.nn.functional.normalize(texts[0] + texts[1], dim=-1)
        expected = (pipe.model.logit_scale.exp() * clip @ mean.T).softmax(-1)[0].tolist()
    result = pipe(clips[0], candidate_labels=LABELS, hypothesis_template=templates, **RATE)
    assert scores(result) == pytest.approx(dict(zip(LABELS, expected, strict=True)), abs=1e-5)


def test_a_model_in_training_mode_scores_as_in_evaluation(pipe, clips):
    expected = pipe(clips[0], candidate_labels=LABELS, **RATE)
    pipe.model.train()
    assert pipe(clips[0], candidate_labels=["other"] + LABELS, **RATE)
    pipe.model.train()
    assert_same(pipe(clips[0], candidate_labels=LABELS, **RATE), expected)


def test_a_checkpoint_opened_in_bfloat16_scores_about_as_in_float32(pipe, processor, checkpoint, clips):
    model = SupClapModel.from_pretrained(checkpoint, dtype=torch.bfloat16)
    low = build(SupClapZeroShotAudioClassificationPipeline, model, processor)
    assert model.audio_projection.linear1.weight.dtype == torch.bfloat16
    assert_same(low(clips[0], candidate_labels=LABELS, **RATE), pipe(clips[0], candidate_labels=LABELS, **RATE), 0.05)


# --- labels --------------------------------------------------------------------------------------------------------


def test_a_string_of_labels_is_split_at_its_commas(pipe, clips):
    expected = pipe(clips[0], candidate_labels=LABELS, **RATE)
    assert pipe(clips[0], candidate_labels="dog, rain,church bells", **RATE) == expected


def test_braces_in_a_label_are_text(pipe, clips):
    result = pipe(clips[0], candidate_labels=["dog {loud}", "{0}"], **RATE)
    assert set(scores(result)) == {"dog {loud}", "{0}"}


def test_other_braces_in_a_template_are_text(pipe, clips):
    result = pipe(clips[0], candidate_labels=LABELS, hypothesis_template="{very} loud {}", **RATE)
    assert set(scores(result)) == set(LABELS)


def test_a_label_of_2000_characters_is_cut_with_a_warning(pipe, clips, caplog):
    logging.Logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        result = pipe(clips[0], candidate_labels=["dog", "rain " * 400], **RATE)
    assert sum(scores(result).values()) == pytest.approx(1)
    assert caplog.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "No labels: pass candidate_labels="),
        ({"candidate_labels": None}, "candidate_labels must be a string or a list of strings"),
        ({"candidate_labels": []}, "candidate_labels is an empty list"),
        ({"candidate_labels": ""}, r"candidate_labels\[0\] is empty"),
        ({"candidate_labels": "dog,,rain"}, r"candidate_labels\[1\] is empty"),
        ({"candidate_labels": ["dog", 7]}, r"candidate_labels\[1\] must be a string"),
        ({"candidate_labels": ["dog", "rain", "dog"]}, r"candidate_labels repeats \['dog'\]"),
        ({"candidate_labels": LABELS, "hypothesis_template": "a sound"}, r"'a sound' has no \{\}"),
        ({"candidate_labels": LABELS, "hypothesis_template": "{label}"}, r"'\{label\}' has no \{\}"),
        ({"candidate_labels": LABELS, "hypothesis_template": ["{}", "a sound"]}, r"'a sound' has no \{\}"),
        ({"candidate_labels": LABELS, "hypothesis_template": []}, "hypothesis_template is an empty list"),
        ({"candidate_labels": LABELS, "top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"candidate_labels": LABELS, "function_to_apply": "tanh"}, "function_to_apply must be one of"),
        ({"labels": LABELS}, r"No labels: pass candidate_labels="),
        ({"candidate_labels": LABELS, "template": "{}"}, r"Unknown arguments \['template'\]; this pipeline takes"),
        ({"candidate_labels": LABELS, "text_lang": "eng_Latn"}, "takes no language"),
    ],
)
def test_bad_options_are_named(pipe, clips, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        pipe(clips[0], **RATE, **options)


def test_multi_label_beside_another_function_is_refused(biased_pipe, clips):
    with pytest.raises(ValueError, match="contradicts"):
        biased_pipe(clips[0], candidate_labels=LABELS, function_to_apply="softmax", multi_label=True, **RATE)


def test_labels_given_when_building_are_the_default(tiny_model, processor, clips):
    pipe = build(SupClapZeroShotAudioClassificationPipeline, tiny_model, processor, candidate_labels=LABELS, top_k=1)
    assert len(pipe(clips[0], **RATE)) == 1
    assert set(scores(pipe(clips[0], candidate_labels="dog, cat", top_k=2, **RATE))) == {"dog", "cat"}


# --- the cache of label embeddings ---------------------------------------------------------------------------------


@pytest.fixture
def text_calls(pipe, monkeypatch):
    calls, original = [], pipe.model.get_text_features

    def counted(**tokens):
        calls.append(len(tokens["input_ids"]))
        return original(**tokens)

    monkeypatch.setattr(pipe.model, "get_text_features", counted)
    return calls


def test_labels_are_embedded_once_for_all_clips_and_calls(pipe, clips, text_calls):
    for _ in range(2):
        pipe(clips, candidate_labels=LABELS, **RATE)
    assert text_calls == [3]


def test_2000_clips_and_50_labels_embed_the_labels_once(pipe, text_calls, monkeypatch):
    embeds = torch.nn.functional.normalize(torch.randn(1, 32), dim=-1)
    features = pipe.feature_extractor([np.zeros(320)], sampling_rate=16000)
    monkeypatch.setattr(pipe, "preprocess", lambda audio, **options: features)
    monkeypatch.setattr(
        pipe.model, "get_audio_features", lambda **inputs: SimpleNamespace(pooler_output=embeds)
    )  # what the clips hold is not the point
    labels = [f"sound number {i}" for i in range(50)]
    assert len(pipe([np.zeros(320)] * 2000, candidate_labels=labels, top_k=1, **RATE)) == 2000
    assert text_calls == [50]


def test_other_labels_or_templates_are_embedded_anew(pipe, clips, text_calls):
    pipe(clips[0], candidate_labels=LABELS, **RATE)
    pipe(clips[0], candidate_labels=LABELS[:2], **RATE)
    pipe(clips[0], candidate_labels=LABELS[:2], hypothesis_template="{}", **RATE)
    assert text_calls == [3, 2, 2]


def test_labels_are_embedded_anew_after_the_weights_change(pipe, clips, text_calls):
    pipe(clips[0], candidate_labels=LABELS, **RATE)
    optimizer = torch.optim.SGD(pipe.model.parameters(), lr=0.1)
    pipe.model.text_projection.linear1.weight.grad = torch.ones_like(pipe.model.text_projection.linear1.weight)
    optimizer.step()
    pipe(clips[0], candidate_labels=LABELS, **RATE)
    assert text_calls == [3, 3]


def test_many_labels_are_embedded_in_batches(pipe, clips, text_calls):
    result = pipe(clips[0], candidate_labels=[f"sound number {i}" for i in range(300)], **RATE)
    assert text_calls == [256, 44]
    assert len(result) == 300


# --- audio ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda clip, path: {"array": clip, "sampling_rate": 16000},
        lambda clip, path: {"raw": clip, "sampling_rate": 16000},
        lambda clip, path: {"path": str(path), "bytes": None},
        lambda clip, path: str(path),
        lambda clip, path: path,
        lambda clip, path: path.read_bytes(),
        lambda clip, path: SimpleNamespace(
            get_all_samples=lambda: SimpleNamespace(data=torch.from_numpy(clip)[None], sample_rate=16000)
        ),
    ],
    ids=["array dict", "raw dict", "path dict", "str", "Path", "bytes", "decoder"],
)
def test_a_clip_that_carries_its_rate_needs_no_other(pipe, clips, tmp_path, form):
    path = tmp_path / "clip.wav"
    soundfile.write(path, clips[0], 16000, subtype="FLOAT")
    expected = pipe(clips[0], candidate_labels=LABELS, **RATE)
    assert_same(pipe(form(clips[0], path), candidate_labels=LABELS), expected)


OPENED = pytest.mark.parametrize(
    "opened", [lambda path: io.BytesIO(path.read_bytes()), lambda path: path.open("rb")], ids=["BytesIO", "open file"]
)


@OPENED
@pytest.mark.parametrize("form", [lambda file: file, lambda file: {"audio": file}], ids=["alone", "in a row"])
def test_an_open_file_is_one_clip(pipe, clips, tmp_path, opened, form):
    soundfile.write(tmp_path / "clip.wav", clips[0], 16000, subtype="FLOAT")
    with opened(tmp_path / "clip.wav") as file:
        result = pipe(form(file), candidate_labels=LABELS)
    assert_same(result, pipe(clips[0], candidate_labels=LABELS, **RATE))


@OPENED
def test_open_files_in_a_list_are_its_clips(pipe, clips, tmp_path, opened):
    soundfile.write(tmp_path / "clip.wav", clips[0], 16000, subtype="FLOAT")
    with opened(tmp_path / "clip.wav") as file:
        (result,) = pipe([file], candidate_labels=LABELS)
    assert_same(result, pipe(clips[0], candidate_labels=LABELS, **RATE))


def test_a_file_opened_as_text_is_refused(pipe, tmp_path):
    (tmp_path / "clip.wav").write_text("RIFF")
    with (tmp_path / "clip.wav").open() as file, pytest.raises(TypeError, match=r"open as text.*open\(path, 'rb'\)"):
        pipe(file, candidate_labels=LABELS)


@pytest.mark.parametrize(
    "form",
    [torch.from_numpy, np.ndarray.tolist, list, lambda c: np.stack([c, c]), lambda c: np.stack([c, c], axis=1)],
    ids=["tensor", "list of numbers", "list of np.float32", "(2, n)", "(n, 2)"],
)
def test_other_forms_of_an_array_score_the_same(pipe, clips, form):
    expected = pipe(clips[0], candidate_labels=LABELS, **RATE)
    assert_same(pipe(form(clips[0]), candidate_labels=LABELS, **RATE), expected)


def test_int16_scores_as_the_scaled_floats(pipe, clips):
    integers = (32768 * clips[0]).astype(np.int16)
    expected = pipe(integers / 32768, candidate_labels=LABELS, **RATE)
    assert_same(pipe(integers, candidate_labels=LABELS, **RATE), expected)


@pytest.mark.parametrize("rate", [8000, 48000])
def test_another_rate_scores_as_the_resampled_clip(pipe, rate):
    wave = np.random.default_rng(0).uniform(-0.3, 0.3, rate)
    expected = pipe(supclap.load_waveform(wave, rate), candidate_labels=LABELS, **RATE)
    assert_same(pipe(wave, candidate_labels=LABELS, sampling_rate=rate), expected)


def test_twenty_milliseconds_are_scored(pipe, clips):
    assert sum(scores(pipe(clips[0][:320], candidate_labels=LABELS, **RATE)).values()) == pytest.approx(1)


def test_the_end_of_two_minutes_counts(pipe):
    clip = np.random.default_rng(0).uniform(-0.3, 0.3, 120 * 16000).astype(np.float32)
    silenced = clip.copy()
    silenced[-10 * 16000 :] = 0
    options = {"candidate_labels": LABELS, "function_to_apply": "none", **RATE}
    whole, changed = (scores(pipe(wave, **options)) for wave in (clip, silenced))
    assert max(abs(whole[label] - changed[label]) for label in LABELS) > 1e-3


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        ([], "audios is an empty list"),
        (np.zeros(0), "audio: the audio is empty"),
        (np.full(16000, np.nan), "audio: sample 0 is nan"),
        (np.zeros(80), "audio: too short"),
        ((16000, np.zeros(16000)), r"Of a pair \(rate, samples\) make a dict"),
        ({"label": "dog"}, r"audio: a dict with keys \['label'\] holds no audio"),
        ([np.zeros(16000), np.full(16000, np.nan)], r"audios\[1\]: sample 0 is nan"),
        ([np.zeros(16000), "gone.wav"], r"audios\[1\] \(gone\.wav\): the path does not exist"),
    ],
)
def test_bad_audio_is_named(pipe, audio, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pipe(audio, candidate_labels=LABELS, **RATE)


def test_a_text_file_named_wav_is_refused_by_name(pipe, tmp_path):
    (tmp_path / "notes.wav").write_text("notes\n" * 100)
    with pytest.raises(ValueError, match=r"notes\.wav\): cannot be decoded"):
        pipe(tmp_path / "notes.wav", candidate_labels=LABELS)


def test_a_bare_array_without_a_rate_is_refused(pipe, clips):
    with pytest.raises(ValueError, match="Pass sampling_rate="):
        pipe(clips[0], candidate_labels=LABELS)


@pytest.mark.parametrize("rate", [0, 10**9])
def test_a_rate_that_no_recorder_has_is_refused(pipe, clips, rate):
    with pytest.raises(ValueError, match="sampling_rate must be a whole number of Hz"):
        pipe(clips[0], candidate_labels=LABELS, sampling_rate=rate)


@pytest.mark.parametrize("number", [np.int64, np.array, torch.tensor])
def test_a_rate_may_be_a_number_of_numpy_or_torch(pipe, clips, number):
    expected = pipe(clips[0], candidate_labels=LABELS, **RATE)
    assert pipe(clips[0], candidate_labels=LABELS, sampling_rate=number(16000)) == expected


def test_weights_that_are_not_finite_raise(pipe, clips):
    with torch.no_grad():
        pipe.model.audio_projection.linear1.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="scores that are not finite"):
        pipe(clips[0], candidate_labels=LABELS, **RATE)


# --- many clips ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_batch_scores_as_one_by_one(pipe, clips, batch_size):
    # The last clip fills more than one window of the encoder.
    clips = [*clips, np.tile(clips[1], 5)]
    expected = [pipe(clip, candidate_labels=LABELS, **RATE) for clip in clips]
    results = pipe(clips, candidate_labels=LABELS, batch_size=batch_size, **RATE)
    assert len(results) == len(clips)
    for result, one in zip(results, expected, strict=True):
        assert_same(result, one)


def test_clips_are_batched_beside_a_tokenizer_that_pads_in_front(pipe, clips, monkeypatch):
    expected = pipe(clips, candidate_labels=LABELS, **RATE)
    monkeypatch.setattr(pipe.tokenizer, "padding_side", "left")
    results = pipe(clips, candidate_labels=LABELS, batch_size=2, **RATE)
    for result, one in zip(results, expected, strict=True):
        assert_same(result, one)


def test_a_generator_of_clips_is_streamed(pipe, clips):
    expected = pipe(clips, candidate_labels=LABELS, **RATE)
    results = list(pipe((clip for clip in clips), candidate_labels=LABELS, **RATE))
    for result, one in zip(results, expected, strict=True):
        assert_same(result, one)


@pytest.fixture
def dataset(clips, tmp_path):
    """Rows of a sound file and a label."""
    datasets = pytest.importorskip("datasets", reason="it is an extra")
    for number, clip in enumerate(clips):
        soundfile.write(tmp_path / f"{number}.wav", clip, 16000, subtype="FLOAT")
    files = [str(tmp_path / f"{number}.wav") for number in range(len(clips))]
    rows = datasets.Dataset.from_dict({"audio": files, "label": ["x"] * len(clips)})
    return rows.cast_column("audio", datasets.Audio(decode=False))


@pytest.mark.parametrize(
    "form",
    [lambda d: d, lambda d: d["audio"], lambda d: d.to_iterable_dataset(), lambda d: KeyDataset(d, "audio")],
    ids=["rows", "column", "stream", "KeyDataset"],
)
def test_a_dataset_is_scored_clip_by_clip(pipe, clips, dataset, form):
    expected = pipe(clips, candidate_labels=LABELS, **RATE)
    results = list(pipe(form(dataset), candidate_labels=LABELS, batch_size=2))
    assert len(results) == len(clips)
    for result, one in zip(results, expected, strict=True):
        assert_same(result, one)


def test_a_bad_clip_of_a_generator_is_named(pipe, clips):
    with pytest.raises(ValueError, match=r"audios\[1\]: sample 0 is nan"):
        list(pipe((clip for clip in (clips[0], np.full(16000, np.nan))), candidate_labels=LABELS, **RATE))


def test_paths_as_numpy_has_them_are_clips(pipe, dataset):
    paths = list(np.array([row["audio"]["path"] for row in dataset]))
    assert len(pipe(paths, candidate_labels=LABELS)) == len(paths)


def test_a_tuple_is_a_list_of_clips(pipe, clips):
    assert pipe(tuple(clips), candidate_labels=LABELS, **RATE) == pipe(clips, candidate_labels=LABELS, **RATE)


# --- doors ---------------------------------------------------------------------------------------------------------


def test_a_saved_folder_opens_as_our_pipeline(pipe, checkpoint, clips):
    opened = supclap.pipeline(str(checkpoint), device="cpu")
    assert isinstance(opened, SupClapZeroShotAudioClassificationPipeline)
    assert_same(
        opened(clips[0], candidate_labels=LABELS, **RATE), pipe(clips[0], candidate_labels=LABELS, **RATE), 1e-6
    )


def test_what_the_pipeline_saves_is_a_whole_checkpoint(checkpoint, tmp_path):
    supclap.pipeline(str(checkpoint), device="cpu").save_pretrained(tmp_path / "saved")
    check_checkpoint(tmp_path / "saved")
    assert {file.name for file in checkpoint.iterdir()} <= {file.name for file in (tmp_path / "saved").iterdir()}


def test_a_loaded_model_opens_as_our_pipeline_with_the_processor_of_its_folder(pipe, checkpoint, clips):
    opened = supclap.pipeline(SupClapModel.from_pretrained(checkpoint), device="cpu")
    assert_same(
        opened(clips[0], candidate_labels=LABELS, **RATE), pipe(clips[0], candidate_labels=LABELS, **RATE), 1e-6
    )


def test_a_model_from_nowhere_opens_as_our_pipeline_with_the_processor_given(tiny_model, processor):
    opened = supclap.pipeline(tiny_model, processor=processor, device="cpu")
    assert (opened.tokenizer, opened.feature_extractor) == (processor.tokenizer, processor.feature_extractor)


def test_the_processor_given_wins_over_that_of_the_folder(checkpoint, tokenizer):
    other = SupClapProcessor(SupClapFeatureExtractor(top_db=80.0), tokenizer)
    assert supclap.pipeline(str(checkpoint), processor=other, device="cpu").feature_extractor.top_db == 80.0


def test_a_model_from_nowhere_without_a_processor_is_refused(tiny_model):
    with pytest.raises(ValueError, match="pass processor="):
        supclap.pipeline(tiny_model)


def test_a_path_object_opens_as_our_pipeline(checkpoint):
    assert isinstance(supclap.pipeline(checkpoint, device="cpu"), SupClapZeroShotAudioClassificationPipeline)


def test_the_files_of_a_saved_folder_cover_the_processing_code(checkpoint):
    package = {path.name for path in Path(supclap.__file__).parent.parent.glob("processing_supclap/*_supclap.py")}
    assert package - {path.name for path in checkpoint.iterdir()} <= {"pipeline_supclap.py"}
