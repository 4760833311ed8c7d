"""What a suite does with tasks that fail or lack a language, and what it leaves beside the scores."""

import json

import numpy as np
import pytest
import soundfile

from supclap.data.inspection import content_hash
from supclap.data.rows import Rows
from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import Suite, Task, load_rows_of_languages
from support.scoring import Counter, caption_rows, class_rows, clip


def run(tmp_path, rows_of, *tasks, encoder=None):
    """Evaluates tasks on what `rows_of(data_dir)` gives; the summary, and the lines said."""
    for task in tasks:
        (tmp_path / task.data_dir).mkdir(exist_ok=True)
    said = []
    summary = evaluate_suite(
        CachedEncoder(encoder or Counter(), EmbeddingCache(tmp_path / "cache.sqlite")),
        Suite("suite", tasks),
        tmp_path / "out",
        tmp_path,
        load_corpus=lambda name, folder, **options: rows_of(folder.name),
        report=said.append,
    )
    return summary["results"], said


def classify(name, **more):
    return Task(name, "zero_shot", corpus="rows", data_dir=name, **more)


@pytest.mark.parametrize("error", [KeyError("audio"), RuntimeError("out of memory"), AttributeError("no")])
def test_any_error_of_a_task_is_recorded_and_the_others_are_run(tmp_path, error):
    def rows_of(name):
        if name == "bad":
            raise error
        return class_rows()

    (bad, good), said = run(tmp_path, rows_of, classify("bad"), classify("good"))
    assert (bad["status"], bad["reason"]) == ("failed", f"{type(error).__name__}: {error}")
    assert good["status"] == "done"
    assert f"bad: failed: {bad['reason']}" in said


def test_a_task_that_fails_leaves_no_queries_of_an_earlier_evaluation(tmp_path):
    run(tmp_path, lambda name: class_rows(), classify("one"), classify("two"))
    run(tmp_path, lambda name: [] if name == "one" else class_rows(), classify("one"), classify("two"))
    assert [path.stem for path in (tmp_path / "out" / "queries").iterdir()] == ["two"]


def test_results_that_cannot_be_read_are_written_anew(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text("{torn")
    (entry,), _ = run(tmp_path, lambda name: class_rows(), classify("one"))
    assert json.loads((tmp_path / "out" / "results.json").read_text())["results"] == [entry]


def test_the_manifest_has_the_ids_contents_sources_and_licences_of_every_task(tmp_path):
    rows = [row | {"source": "freesound:7", "licence": "CC0"} for row in class_rows()[:3]]
    removed = [{"id": "torn", "reason": "cannot be decoded"}]
    run(tmp_path, lambda name: Rows(rows, removed), classify("one"), classify("two"))
    manifest = json.loads((tmp_path / "out" / "data_manifest.json").read_text())
    assert list(manifest["splits"]) == ["one", "two"]
    data = manifest["splits"]["one"]
    assert (data["n_clips"], data["sources"], data["licences"]) == (3, {"freesound": 3}, {"CC0": 3})
    assert data["clips"] == [[row["id"], content_hash(row["audio"])] for row in rows]
    assert data["removed"] == removed


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["dog", "dog", "dog", "dog"], "one: classification needs at least two labels, got ['dog']"),
        (["big dog", "big_dog", "cat", "cat"], "`labels` has classes that read the same: ['big dog']"),
    ],
)
def test_labels_that_cannot_be_scored_are_refused_before_anything_is_embedded(tmp_path, labels, message):
    encoder = Counter()
    rows = [row | {"label": label} for row, label in zip(class_rows(), labels, strict=True)]
    (entry,), _ = run(tmp_path, lambda name: rows, classify("one"), encoder=encoder)
    assert message in entry["reason"]
    assert encoder.clips == 0


def test_spellings_that_make_two_classes_one_are_refused_before_anything_is_embedded(tmp_path):
    encoder = Counter()
    (entry,), _ = run(tmp_path, lambda name: class_rows(), classify("one", spelling={"dog": "cat"}), encoder=encoder)
    assert "classes that read the same: ['cat']" in entry["reason"]
    assert encoder.clips == 0


def test_lists_of_labels_in_a_table_are_scored_by_map(tmp_path):
    class Loud(Counter):
        def embed_audio(self, audios, batch_size):
            return super().embed_audio([clip(*[float("b" in path), float("a" in path)]) for path in audios], 1)

    records = [{"file_name": "a.wav", "label": ["cat"]}, {"file_name": "b.wav", "label": ["dog"]}]
    records += [{"file_name": "ab.wav", "label": ["cat", "dog"]}]
    for number, record in enumerate(records):
        soundfile.write(tmp_path / record["file_name"], np.full(8000, 0.1 * (number + 1)), 16000)
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, records)))
    task = Task("one", "zero_shot", table="table.jsonl", data_dir=".", label_column="label", templates=["{}"])
    (entry,), _ = run(tmp_path, None, task, encoder=Loud())
    assert list(entry["metrics"]) == ["mAP"]
    assert list(entry["record"]["labels"]) == ["cat", "dog"]
    assert entry["metrics"]["mAP"]["n"] == 3


# --- languages that are not there ----------------------------------------------------------------------------------


def several_languages(*languages):
    return Task("find", "retrieval", corpus="rows", data_dir="find", languages=list(languages))


def test_languages_that_are_there_are_scored_and_the_others_are_said(tmp_path):
    (english, french, german, mean), _ = run(
        tmp_path, lambda name: caption_rows(), several_languages("en", "fr", "de")
    )
    assert [entry["status"] for entry in (english, french, german, mean)] == ["done", "not run", "done", "done"]
    assert french["language"] == "fr"
    assert french["reason"] == "No caption is in 'fr'; the languages of the captions are deu_Latn, eng_Latn."


def test_a_mean_over_some_of_the_languages_is_named_so(tmp_path):
    *_, mean = run(tmp_path, lambda name: caption_rows(), several_languages("en", "fr", "de"))[0]
    assert (mean["language"], mean["record"]["languages"]) == ("mean of 2 of 3", ["en", "de"])
    *_, mean = run(tmp_path, lambda name: caption_rows(), several_languages("en", "de"))[0]
    assert mean["language"] == "mean"


def test_translations_of_audiocaps_that_are_not_there_are_left_out_with_the_reason(tmp_path):
    folder = tmp_path / "audiocaps"
    (folder / "ja").mkdir(parents=True)
    soundfile.write(folder / "YAAAAAAAAAAA.wav", np.ones(8000) / 2, 16000)
    for file, caption in (("test.csv", "a dog"), ("ja/test.csv", "犬")):
        (folder / file).write_text(f"audiocap_id,youtube_id,start_time,caption\n1,AAAAAAAAAAA,0,{caption}\n")
    languages = ["en", "fr", "ja"]
    task = Task("find", "retrieval", corpus="audiocaps", languages=languages, options={"languages": languages})
    rows, absent = load_rows_of_languages(task, tmp_path)
    assert [(row["captions"], row["language"]) for row in rows] == [(["a dog", "犬"], ["en", "ja"])]
    assert list(absent) == ["fr"]
    assert "No fr captions of AudioCaps test" in absent["fr"]
