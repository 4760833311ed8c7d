"""Scores of one task: zero-shot classification and retrieval."""

import csv

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from supclap.evaluation import retrieval_metrics
from supclap.evaluation.results import load_queries
from support.scoring import WORDS, Counter, caption_rows, class_rows, clip, evaluate


def test_zero_shot_scores_clips_folds_and_classes(tmp_path):
    (entry,) = evaluate(class_rows(), tmp_path)
    assert entry["metrics"]["accuracy"]["value"] == 3 / 4
    assert entry["metrics"]["accuracy"]["n"] == entry["n_clips"] == 4
    assert entry["per_fold"] == {"1": 1.0, "2": 0.0}
    with (tmp_path / "out" / entry["per_class"]).open() as file:
        table = list(csv.reader(file))
    assert table == [
        ["label", "clips", "accuracy"],
        ["cat", "2", "0.500000"],
        ["dog", "1", "1.000000"],
        ["rain", "1", "1.000000"],
    ]
    assert (tmp_path / "out" / entry["confusion"]).read_bytes().startswith(b"\x89PNG")


def test_the_prediction_of_every_clip_is_saved(tmp_path):
    (entry,) = evaluate(class_rows(), tmp_path)
    arrays = load_queries(tmp_path / "out" / entry["queries"])
    predicted = dict(zip(arrays["clip_ids"].tolist(), arrays["labels"][arrays["predicted"]].tolist(), strict=True))
    assert predicted == {"dog": "dog", "cat": "cat", "rain": "rain", "odd": "rain"}


def test_spelling_and_templates_make_the_prompts_and_are_recorded(tmp_path):
    encoder = Counter()
    rows = [row | {"label": f"{row['label']}_sound"} for row in class_rows()]
    (entry,) = evaluate(rows, tmp_path, encoder, templates=["a {}", "hear {}"], spelling={"rain_sound": "heavy rain"})
    prompts = {f"{start} {label}" for start in ("a", "hear") for label in ("dog sound", "cat sound", "heavy rain")}
    assert set(encoder.texts) == prompts
    assert entry["record"]["templates"] == ["a {}", "hear {}"]
    assert entry["record"]["labels"]["rain_sound"] == "heavy rain"
    assert entry["metrics"]["accuracy"]["value"] == 3 / 4


def test_the_language_of_labels_reaches_the_encoder(tmp_path):
    encoder = Counter()
    rows = [
        row | {"label": german} for row, german in zip(class_rows(), ("hund", "katze", "regen", "katze"), strict=True)
    ]
    (entry,) = evaluate(rows, tmp_path, encoder, templates=["{}"], language="de")
    assert encoder.languages == ["deu_Latn"] * 3
    assert entry["record"]["language"] == "de"


def test_several_labels_a_clip_give_the_mean_average_precision_of_sklearn(tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, (30, 3)).astype(bool)
    audio = rng.random((30, 3)) + 0.5 * targets
    rows = [
        {"id": f"c{row}", "audio": clip(*audio[row]), "labels": [w for w, there in zip(WORDS, targets[row]) if there]}
        for row in range(30)
    ]
    (entry,) = evaluate(rows, tmp_path, templates=["{}"], labels=["dog", "cat", "rain"])
    encoder = Counter()
    unit = torch.nn.functional.normalize
    labels = unit(encoder.embed_texts(["dog", "cat", "rain"], None, 3), dim=-1)
    scores = unit(encoder.embed_audio([row["audio"] for row in rows], 30), dim=-1) @ labels.T
    expected = np.mean([average_precision_score(targets[:, c], scores[:, c]) for c in range(3)])
    metric = entry["metrics"]["mAP"]
    assert metric["value"] == pytest.approx(expected, abs=1e-6)
    assert metric["low"] < metric["value"] < metric["high"]


def test_rows_with_one_label_are_classified_by_name_or_index(tmp_path):
    rows = [{"id": str(n), "audio": clip(*np.eye(3)[n]), "label": label} for n, label in enumerate(["dog", 1, "cat"])]
    (entry,) = evaluate(rows, tmp_path, labels=["dog", "cat", "rain"])
    arrays = load_queries(tmp_path / "out" / entry["queries"])
    assert (arrays["targets"].tolist(), arrays["predicted"].tolist()) == ([0, 1, 1], [0, 1, 2])


def test_the_average_precision_of_two_clips_is_that_by_hand(tmp_path):
    # The clip that sounds like "dog" is first for "dog" and, wrongly, second for "cat".
    rows = [{"id": "a", "audio": clip(1), "labels": ["dog", "cat"]}, {"id": "b", "audio": clip(0, 1), "labels": []}]
    (entry,) = evaluate(rows, tmp_path, labels=["dog", "cat"])
    assert entry["metrics"]["mAP"]["value"] == 0.75


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("thunder", r"Row 'clip-7': `label` \['thunder'\] is not one of the labels"),
        (2, r"Row 'clip-7': `label` \[2\] is not one of the labels"),
        (None, "Row 'clip-7' has no `label`"),
    ],
)
def test_a_row_without_a_known_label_is_named(tmp_path, label, message):
    rows = [class_rows()[0], {"id": "clip-7", "audio": clip(1), "label": label}]
    with pytest.raises(AssertionError, match=message):
        evaluate(rows, tmp_path, labels=["dog", "cat"])


def test_one_clip_has_a_score_without_an_interval(tmp_path):
    (entry,) = evaluate(class_rows()[:1], tmp_path, labels=["dog", "cat"])
    assert entry["metrics"]["accuracy"] == {"value": 1.0, "low": None, "high": None, "n": 1}


def test_retrieval_equals_the_function_on_the_same_embeddings(tmp_path):
    (entry,) = evaluate(caption_rows(), tmp_path, kind="retrieval")
    encoder = Counter()
    captions = [caption for row in caption_rows() for caption in row["captions"]]
    audio = encoder.embed_audio([row["audio"] for row in caption_rows()], 8)
    unit = torch.nn.functional.normalize
    expected = retrieval_metrics(
        unit(audio, dim=-1), unit(encoder.embed_texts(captions, None, 8), dim=-1), np.repeat([0, 1, 2], [3, 2, 2])
    )
    assert {name: metric["value"] for name, metric in entry["metrics"].items()} == {
        name: value for name, value in expected.items() if "/" in name
    }
    assert (entry["n_clips"], entry["n_texts"], entry["captions_per_clip"]) == (3, 7, [2, 3])
    assert "any-of-k" in entry["record"]["protocols"]["audio_to_text"]


def shared_rows():
    """As `caption_rows`, and a second clip of a dog with the same caption."""
    return [*caption_rows(), {"id": "d2", "audio": clip(1, -0.4), "captions": ["dog"], "language": "en"}]


def test_an_entry_has_both_protocols_where_a_text_is_shared(tmp_path):
    (entry,) = evaluate(shared_rows(), tmp_path, kind="retrieval", languages=["en"])[:1]
    assert (entry["n_texts"], entry["n_different_texts"], entry["n_shared_captions"]) == (5, 4, 2)
    assert entry["record"]["protocol"] == "text"
    name = "text_to_audio/recall@1"
    # by index, the caption of the second dog finds the first
    assert (entry["metrics"][name]["value"], entry["metrics"][name]["n"]) == (1.0, 4)
    assert (entry["metrics_index"][name]["value"], entry["metrics_index"][name]["n"]) == (4 / 5, 5)


def test_a_task_by_the_index_protocol_says_so_and_has_the_other_beside(tmp_path):
    by_text = evaluate(shared_rows(), tmp_path / "text", kind="retrieval")[0]
    by_index = evaluate(shared_rows(), tmp_path / "index", kind="retrieval", protocol="index")[0]
    assert by_index["record"]["protocol"] == "index"
    assert "wrong" in by_index["record"]["protocols"]["audio_to_text"]
    assert by_index["metrics"] == by_text["metrics_index"]
    assert by_index["metrics_text"] == by_text["metrics"]


def test_an_entry_without_a_repeated_text_has_one_protocol(tmp_path):
    (entry,) = evaluate(caption_rows(), tmp_path, kind="retrieval")
    assert not {"metrics_index", "metrics_text"} & entry.keys()
    assert (entry["n_different_texts"], entry["n_shared_captions"]) == (7, 0)


def test_the_mean_over_languages_by_the_other_protocol_takes_each_language_by_it(tmp_path):
    english, german, mean = evaluate(shared_rows(), tmp_path, kind="retrieval", languages=["en", "de"])
    assert "metrics_index" not in german
    for name, value in mean["metrics_index"].items():
        average = (english["metrics_index"][name]["value"] + german["metrics"][name]["value"]) / 2
        assert value["value"] == pytest.approx(average)


def test_each_language_is_retrieved_by_itself_and_the_mean_is_unweighted(tmp_path):
    encoder = Counter()
    entries = evaluate(caption_rows(), tmp_path, encoder, kind="retrieval", languages=["eng_Latn", "deu_Latn"])
    english, german, mean = entries
    assert [entry["language"] for entry in entries] == ["eng_Latn", "deu_Latn", "mean"]
    assert (english["n_texts"], german["n_texts"]) == (4, 3)
    assert set(encoder.languages) == {"eng_Latn", "deu_Latn"}
    assert encoder.clips == 3
    # the German words for dog and cat are near no clip: only "regen" finds its own
    name = "text_to_audio/recall@1"
    assert (english["metrics"][name]["value"], german["metrics"][name]["value"]) == (1.0, 1 / 3)
    for metric in english["metrics"]:
        average = (english["metrics"][metric]["value"] + german["metrics"][metric]["value"]) / 2
        assert mean["metrics"][metric]["value"] == pytest.approx(average)


def test_the_interval_of_a_mean_over_languages_of_unlike_size_holds_its_value(tmp_path):
    rows = caption_rows()
    rows[0] |= {"captions": ["dog", "hund"], "language": ["en", "de"]}
    rows[1] |= {"captions": ["cat"], "language": "en"}
    rows[2] |= {"captions": ["rain"], "language": "en"}
    mean = evaluate(rows, tmp_path, kind="retrieval", languages=["en", "de"])[-1]
    assert mean["metrics"]["text_to_audio/recall@1"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 4}


def test_a_language_without_captions_fails_and_names_those_there(tmp_path):
    with pytest.raises(AssertionError, match="'fra_Latn'; the languages of the captions are deu_Latn, eng_Latn"):
        evaluate(caption_rows(), tmp_path, kind="retrieval", languages=["fra_Latn"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"captions": [" "]}, r"row 1 \(id 'c'\) has the caption ' '"),
        ({"id": "d"}, "1 rows repeat an id, the first 'd'"),
        ({"language": ["en"]}, r"row 1 \(id 'c'\) has 1 languages for 2 captions"),
        ({"audio": clip(np.nan)}, "Clip 'c' cannot be embedded: .*NaN"),
        ({"audio": "nowhere.wav"}, "Clip 'c': .*nowhere.wav"),
    ],
)
def test_a_bad_row_fails_its_task_and_is_named(tmp_path, change, message):
    rows = caption_rows()
    rows[1] |= change
    with pytest.raises(AssertionError, match=message):
        evaluate(rows, tmp_path, kind="retrieval")
