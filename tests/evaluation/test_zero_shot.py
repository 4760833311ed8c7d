"""Zero-shot metrics against scikit-learn and hand numbers, and the embedding of lists, on a transparent dual encoder."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, confusion_matrix, recall_score
from torch import nn

from supclap.evaluation import (
    embed_audio,
    embed_texts,
    multi_label_metrics,
    zero_shot_metrics,
)
from supclap.evaluation.zero_shot import embed_labels


WORDS = ("cat", "dog", "rain", "sound", "night")


class BagOfWords(nn.Module):
    """Dual encoder whose embeddings can be read off: the normalised word counts of a text, or first samples of a clip."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(2).eval()

    def get_text_features(self, features):
        counts = features[:, : len(WORDS)] * self.scale
        return SimpleNamespace(pooler_output=nn.functional.normalize(self.dropout(counts), dim=-1))

    get_audio_features = get_text_features


class RecordingProcessor:
    """Counts words, pads clips with zeros, and remembers what it was called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, text=None, audio=None, return_tensors=None, **kwargs):
        self.calls.append({"items": text or audio, **kwargs})
        if text is not None:
            return {"features": torch.tensor([[float(t.split().count(word)) for word in WORDS] for t in text])}
        return {"features": torch.tensor(np.stack([np.pad(clip, (0, 20 - len(clip))) for clip in audio]))}


@pytest.fixture
def encoder():
    return BagOfWords(), RecordingProcessor()


def unit(*values):
    return nn.functional.normalize(torch.tensor(values, dtype=torch.float32), dim=0)


def one_hot_clip(index, length=8):
    clip = np.zeros(length, dtype=np.float32)
    clip[index] = 1
    return clip


def test_texts_come_back_in_input_order_from_length_sorted_batches(encoder):
    texts = ["cat", "cat dog rain", "dog", "rain rain rain rain", "night sound"]
    embeds = embed_texts(*encoder, texts, batch_size=2)
    assert [call["items"] for call in encoder[1].calls] == [[texts[3], texts[1]], [texts[4], texts[0]], [texts[2]]]
    torch.testing.assert_close(embeds, torch.cat([embed_texts(*encoder, [text]) for text in texts]))
    torch.testing.assert_close(embeds[1], unit(1, 1, 1, 0, 0))


def test_clips_come_back_in_input_order_from_length_sorted_batches(encoder):
    clips = [one_hot_clip(index, length) for index, length in ((0, 5), (1, 9), (2, 7))]
    torch.testing.assert_close(embed_audio(*encoder, clips, batch_size=2), torch.eye(5)[:3])
    assert [[len(clip) for clip in call["items"]] for call in encoder[1].calls] == [[9, 7], [5]]


def test_files_are_batched_by_their_size(encoder, tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    for path, size in zip(paths, (10, 30, 20), strict=True):
        Path(path).write_bytes(bytes(size))
    model, processor = encoder
    embed_audio(model, lambda audio, **kwargs: processor(audio=[one_hot_clip(0)] * len(audio), paths=audio), paths, 2)
    assert [call["paths"] for call in processor.calls] == [[paths[1], paths[2]], [paths[0]]]


def test_the_rate_of_bare_arrays_reaches_the_processor(encoder):
    embed_audio(*encoder, [one_hot_clip(0)], sampling_rate=44_100)
    assert encoder[1].calls[0]["sampling_rate"] == 44_100


def test_each_text_keeps_its_language_when_sorted(encoder):
    embed_texts(*encoder, ["cat", "dog dog", "rain rain rain"], text_lang=["en", "de", "fr"])
    assert encoder[1].calls[0]["text_lang"] == ["fr", "de", "en"]


def test_embeddings_are_float32_without_gradient_or_dropout(encoder):
    embeds = embed_texts(encoder[0].train().double(), encoder[1], ["cat dog rain"] * 8)
    assert not embeds.requires_grad
    torch.testing.assert_close(embeds, unit(1, 1, 1, 0, 0).repeat(8, 1))


@pytest.mark.parametrize("scale", [1.0, torch.nan])
def test_every_module_gets_its_own_mode_back_even_after_an_error(encoder, scale):
    model, processor = encoder
    model.train()
    model.frozen.eval()
    model.scale.data.fill_(scale)
    with contextlib.suppress(ValueError):
        embed_texts(model, processor, ["cat"])
    assert (model.training, model.dropout.training, model.frozen.training) == (True, True, False)


def test_embeddings_that_are_not_finite_name_their_clips(encoder):
    with pytest.raises(ValueError, match=r"NaN or infinite embeddings for `audios` \[1, 2\]"):
        embed_audio(*encoder, [one_hot_clip(0), one_hot_clip(0) * np.nan, one_hot_clip(0) * np.nan])


@pytest.mark.parametrize("error", [FileNotFoundError, TypeError, ValueError])
def test_an_error_of_the_processor_comes_with_the_items_of_its_batch(encoder, error):
    clips = [one_hot_clip(0, length) for length in (5, 6, 7)]
    with pytest.raises(error, match=r"In the batch of `audios` \[2, 1\], in this order: clip 1 is silent"):
        embed_audio(encoder[0], Mock(side_effect=error("clip 1 is silent")), clips, batch_size=2)


@pytest.mark.parametrize(
    ("function", "items", "error", "message"),
    [
        (embed_texts, "a cat", TypeError, "`texts` must be a list with one entry per item, got a str"),
        (embed_texts, ["cat", None], TypeError, r"`texts` \[1\] are not strings"),
        (embed_texts, ["cat", " ", ""], ValueError, r"`texts` \[1, 2\] are empty"),
        (embed_texts, [], ValueError, "`texts` is empty"),
        (embed_audio, np.zeros(10), TypeError, "`audios` must be a list with one entry per item, got a ndarray"),
        (embed_audio, [], ValueError, "`audios` is empty"),
    ],
)
def test_items_that_cannot_be_embedded_are_refused(encoder, function, items, error, message):
    with pytest.raises(error, match=message):
        function(*encoder, items)


def labels_of(encoder, labels, templates):
    texts = SimpleNamespace(embed_texts=lambda prompts, languages: embed_texts(*encoder, prompts))
    return embed_labels(texts, labels, templates)


def test_a_label_is_the_renormalised_mean_of_its_normalised_prompts(encoder):
    embeds = labels_of(encoder, ["dog_rain", "cat"], ["sound {}", "{}", "night night night {}"])
    expected = unit(0, 1, 1, 1, 0) + unit(0, 1, 1, 0, 0) + unit(0, 1, 1, 0, 3)
    torch.testing.assert_close(embeds[0], expected / expected.norm())


def test_prompts_weigh_the_same_when_the_model_does_not_normalise(encoder):
    encoder[0].get_text_features = lambda features: SimpleNamespace(pooler_output=features)
    embeds = labels_of(encoder, ["dog"], ["{}", "night night night night {}"])
    expected = unit(0, 1, 0, 0, 0) + unit(0, 1, 0, 0, 4)
    torch.testing.assert_close(embeds[0], expected / expected.norm())


def test_underscores_of_a_label_become_spaces(encoder):
    labels_of(encoder, ["dog_bark", "a_{}_b"], ["This is {}."])
    assert sorted(encoder[1].calls[0]["items"]) == ["This is a {} b.", "This is dog bark."]


@pytest.mark.parametrize(
    ("labels", "templates", "error", "message"),
    [
        (["dog"], ["This is a sound."], ValueError, r"needs \{\} where the label goes; got \['This is a sound.'\]"),
        (["dog"], [], ValueError, "Each template needs"),
        (["dog_bark", "dog bark"], ["{}"], ValueError, r"read the same: \['dog bark'\]"),
        (["dog", "_"], ["{}"], ValueError, "non-empty class names"),
        ("dog,cat", ["{}"], TypeError, "got the string 'dog,cat'"),
    ],
)
def test_labels_and_templates_that_would_mislead_are_refused(encoder, labels, templates, error, message):
    with pytest.raises(error, match=message):
        labels_of(encoder, labels, templates)


def random_classification(n=60, n_labels=7):
    rng = np.random.default_rng(0)
    audio, label = rng.normal(size=(n, 5)), rng.normal(size=(n_labels, 5))
    return audio, label, rng.integers(0, n_labels, n)


def test_accuracy_confusion_and_class_recall_equal_sklearn():
    audio, label, targets = random_classification()
    predicted = (audio @ label.T).argmax(axis=1)
    metrics = zero_shot_metrics(audio, torch.tensor(label), torch.tensor(targets))
    np.testing.assert_array_equal(metrics["confusion"], confusion_matrix(targets, predicted, labels=range(7)))
    assert (metrics["accuracy"], metrics["n"]) == (accuracy_score(targets, predicted), 60)
    expected = recall_score(targets, predicted, labels=range(7), average=None)
    assert list(metrics["per_class"].values()) == pytest.approx(list(expected), abs=1e-12)


def test_collapsed_label_embeddings_are_never_right():
    audio, label, targets = random_classification()
    metrics = zero_shot_metrics(audio, np.tile(label[:1], (7, 1)), targets)
    assert (metrics["accuracy"], metrics["confusion"].sum()) == (0, 60)


def test_multi_label_map_equals_sklearn_over_the_classes_present():
    audio, label, _ = random_classification()
    targets = (np.random.default_rng(1).random((60, 7)) < 0.3).astype(int)
    targets[:, 2] = 0
    metrics = multi_label_metrics(audio, label, targets)
    kept = [0, 1, 3, 4, 5, 6]
    expected = average_precision_score(targets[:, kept], (audio @ label.T)[:, kept], average="macro")
    assert metrics["mAP"] == pytest.approx(expected, abs=1e-12)
    assert list(metrics["per_class"]) == kept


@pytest.mark.parametrize(
    ("targets", "message"),
    [([0, 1, 2], r"clips \[2\] are outside 0..1"), ([0, 1], r"shape \(3,\)"), ([0.0, 1.0, 1.0], "label index")],
)
def test_targets_that_are_no_label_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        zero_shot_metrics(np.ones((3, 2)), np.eye(2), targets)
