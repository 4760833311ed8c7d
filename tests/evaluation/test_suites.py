"""Suites and their tables: read, refused with the reason, and honest about what was not run."""

import json
import re

import numpy as np
import pytest
import soundfile
import yaml

from supclap.errors import DataNotFoundError, SuiteError
from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import Suite, Task, built_in_suites, check_tables, how_to_get, load_rows, load_suite
from supclap.evaluation.tables import (
    CHOSEN_ON,
    csv_table,
    markdown_table,
    model_index,
    models_table,
    text_table,
    write_tables,
)
from support.scoring import Counter, class_rows, clip, evaluate


def test_the_built_in_suites_can_be_read():
    assert built_in_suites() == ["maeb", "paper", "zeroshot"]
    assert {task.kind for task in load_suite("maeb").tasks} == {"mteb"}
    paper = {task.name: task for task in load_suite("paper").tasks}
    multilingual = paper["audiocaps-multilingual"]
    assert (
        multilingual.languages == multilingual.options["languages"] == ["en", "fr", "de", "es", "nl", "ca", "ja", "zh"]
    )
    assert paper["esc50"].templates == ["This is a sound of {}"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"kind": "retrieval", "corpus": "x", "langauges": ["en"]},
            "unknown key 'langauges'; did you mean 'languages'",
        ),
        ({"kind": "retreival", "corpus": "x"}, "kind must be one of retrieval, zero_shot, mteb"),
        ({"kind": "retrieval"}, "needs corpus or table, got neither"),
        ({"kind": "retrieval", "table": "x.csv"}, "caption_columns"),
        ({"kind": "zero_shot", "corpus": "x", "templates": ["a sound"]}, "lacks {}"),
        ({"kind": "zero_shot", "corpus": "x", "templates": "{}"}, "templates must be list, got '{}'"),
        ({"kind": "zero_shot", "corpus": "x", "name": "a/b"}, "usable as a file name"),
        ({"kind": "zero_shot", "corpus": "urbansond8k"}, "corpus 'urbansond8k' is unknown; there are audiocaps,"),
        ({"kind": "retrieval", "corpus": "audiocaps", "options": {"langs": ["en"]}}, "audiocaps has no option langs"),
        ({"kind": "zero_shot", "corpus": "esc50"}, "esc50 has no split 'test'; it has 1, 2, 3, 4, 5"),
        ({"kind": "zero_shot", "corpus": "esc50", "split": [1], "where": {"fold": 1}}, "of a corpus name the split"),
        ({"kind": "retrieval", "table": "x.csv", "caption_columns": ["c"], "options": {"a": 1}}, "a table has none"),
        ({"kind": "retrieval", "corpus": "hub"}, "data_dir is missing: the id of a data set of the Hub"),
    ],
)
def test_a_wrong_suite_is_refused_by_file_task_and_key(tmp_path, task, message):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"tasks": [{"name": "one", **task}]}))
    with pytest.raises(SuiteError, match=rf"mine.yaml, task 1.*{re.escape(message)}"):
        load_suite(path)


def test_rows_of_a_corpus_come_from_the_loader_with_split_and_options(tmp_path):
    seen = []
    task = Task("t", "retrieval", corpus="clotho", split="val", options={"skip_bad": True}, data_dir="clotho_v2.1")
    (tmp_path / "clotho_v2.1").mkdir()
    rows = load_rows(task, tmp_path, lambda *args, **kwargs: seen.append((args, kwargs)) or [{"id": "x"}])
    assert rows == [{"id": "x"}]
    assert seen == [(("clotho", tmp_path / "clotho_v2.1"), {"split": "val", "skip_bad": True})]


def test_a_data_set_of_the_hub_is_asked_for_by_its_id(tmp_path):
    task = Task("t", "retrieval", corpus="hub", data_dir="me/sounds")
    assert load_rows(task, tmp_path, lambda name, folder, split: [{"id": folder.as_posix()}]) == [{"id": "me/sounds"}]


def test_a_data_set_of_the_hub_in_a_folder_is_taken_from_there(tmp_path):
    (tmp_path / "me" / "sounds").mkdir(parents=True)
    task = Task("t", "retrieval", corpus="hub", data_dir="me/sounds")
    (row,) = load_rows(task, tmp_path, lambda name, folder, split: [{"id": folder}])
    assert row["id"] == tmp_path / "me" / "sounds"


def test_a_data_set_that_the_hub_does_not_give_is_data_not_found(tmp_path, monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'me/sounds' on the Hub")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    task = Task("t", "retrieval", corpus="hub", data_dir="me/sounds")
    with pytest.raises(DataNotFoundError, match="'me/sounds' could not be loaded, split 'test': Couldn't reach"):
        load_rows(task, tmp_path)
    assert how_to_get(task) == "the data set 'me/sounds', of the Hub or a folder"


def test_the_tables_show_both_protocols_and_say_which(tmp_path):
    rows = [{"id": name, "audio": clip(1), "captions": ["dog"]} for name in "ab"]
    rows += [{"id": "c", "audio": clip(0, 1), "captions": ["cat"]}]
    entries = evaluate(rows, tmp_path, kind="retrieval")
    summary = {"checkpoint": "me/model", "fingerprint": "f", "suite": "suite", "chosen_on": None, "results": entries}
    text = text_table([summary])
    assert "3 captions (2 different)" in text
    assert re.search(r"text_to_audio/recall@1 +100\.00 ", text)
    assert re.search(r"text_to_audio/recall@1 \(index\) +33\.33 ", text)
    assert "text to audio R@1 (index)" in models_table([summary])
    lines = [line for line in csv_table([summary]).splitlines() if ",text_to_audio/recall@1," in line]
    assert [line.rpartition(",")[2] for line in lines] == ["text", "index"]
    figures = [one for one in model_index(summary) if one.metric_type == "text_to_audio/recall@1"]
    assert [(one.metric_args["protocol"], one.metric_value) for one in figures] == [
        ("text", 100.0),
        ("index", 33.3333),
    ]
    assert figures[1].metric_name == "text to audio, recall@1 (index)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "strings"}, "protocol must be one of text, index, got 'strings'"),
        ({"kind": "zero_shot", "protocol": "index"}, "a task of kind zero_shot has none"),
    ],
)
def test_a_protocol_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Task("t", **{"kind": "retrieval", "corpus": "clotho", **changes})


def table_of(tmp_path, *records):
    """A table of JSON lines, each record with a clip of its own."""
    for number in range(len(records)):
        soundfile.write(tmp_path / f"{number}.wav", np.full(8000, 0.1 * (number + 1)), 16000)
    lines = [json.dumps({"file_name": f"{number}.wav", **record}) for number, record in enumerate(records)]
    (tmp_path / "table.jsonl").write_text("\n".join(lines))


def rows_of(tmp_path, *records, **task):
    table_of(tmp_path, *records)
    kind = {"kind": "zero_shot", "label_column": "label"} | task
    return load_rows(Task("t", table="table.jsonl", **kind), tmp_path)


def test_lists_in_the_label_column_are_the_labels_of_a_row(tmp_path):
    rows = rows_of(tmp_path, {"label": ["dog", "cat"]}, {"label": []}, {"label": "cat"})
    assert [row["labels"] for row in rows] == [["dog", "cat"], [], ["cat"]]
    assert not any("label" in row for row in rows)


def test_lists_in_the_label_column_of_csv_are_json(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.ones(8000) / 2, 16000)
    (tmp_path / "table.csv").write_text('file_name,label\na.wav,"[""dog"", ""cat""]"\n')
    (row,) = load_rows(Task("t", "zero_shot", table="table.csv", label_column="label"), tmp_path)
    assert row["labels"] == ["dog", "cat"]


def test_a_number_in_the_label_column_is_the_name_of_a_class(tmp_path):
    assert [row["label"] for row in rows_of(tmp_path, {"label": 0}, {"label": 1})] == ["0", "1"]


def test_a_number_in_the_label_column_is_an_index_where_the_labels_have_names(tmp_path):
    rows = rows_of(tmp_path, {"label": 0}, {"label": 1}, labels=["dog", "cat"])
    assert [row["label"] for row in rows] == [0, 1]
    assert [row["label"] for row in rows_of(tmp_path, {"label": 7}, labels=[7, 8])] == ["7"]


def test_a_row_without_a_label_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"table.jsonl, row '1.wav': label is None, which is no label"):
        rows_of(tmp_path, {"label": "dog"}, {})


def test_an_id_and_a_fold_of_zero_are_values(tmp_path):
    (row,) = rows_of(tmp_path, {"id": 0, "fold": 0, "label": "dog"})
    assert (row["id"], row["fold"]) == ("0", 0)


def test_where_chooses_among_records_that_lack_the_column(tmp_path):
    records = [{"label": "dog"}, {"label": "cat", "fold": 5}]
    assert [row["id"] for row in rows_of(tmp_path, *records, where={"fold": [5]})] == ["1.wav"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"label_column": "class"}, "has no column 'class'; its columns are ['file_name', 'label']"),
        ({"audio_column": "path"}, "has no column 'path'"),
        ({"where": {"fold": [5]}}, "has no column 'fold'"),
        ({"where": {"label": ["dogg"]}}, "no row has label in ['dogg']; there are cat, dog"),
    ],
)
def test_columns_of_tables_are_looked_up_before_anything_is_scored(tmp_path, task, message):
    table_of(tmp_path, {"label": "dog"}, {"label": "cat"})
    ready = Task("ready", "zero_shot", table="elsewhere.csv", label_column="label")
    task = Task("wrong", "zero_shot", table="table.jsonl", **{"label_column": "label", **task})
    with pytest.raises(SuiteError, match=rf"task wrong: .*table.jsonl.* {re.escape(message)}"):
        check_tables(Suite("s", (ready, task)), tmp_path)


def test_a_task_of_a_table_leaves_undecodable_and_missing_clips_out_with_skip_bad(tmp_path):
    soundfile.write(tmp_path / "good.wav", np.ones(16000) / 2, 16000)
    (tmp_path / "torn.wav").write_bytes(b"RIFF")
    lines = [f"{name}.wav,a {name}" for name in ("good", "torn", "gone")]
    (tmp_path / "table.csv").write_text("\n".join(["file_name,caption", *lines]))
    task = Task("t", "retrieval", table="table.csv", caption_columns=["caption"])
    rows = load_rows(task, tmp_path, skip_bad=True)
    assert [row["id"] for row in rows] == ["good.wav"]
    assert {item["id"] for item in rows.removed} == {"torn.wav", "gone.wav"}


def test_rows_that_the_loader_left_out_are_counted_in_the_score(tmp_path):
    class Rows(list):
        removed = [{"id": "torn", "reason": "cannot be decoded"}]

    rows = Rows(row | {"audio": clip(*row["audio"]["array"], *[0.0] * 200)} for row in class_rows())
    task = Task("t", "zero_shot", corpus="c", split=[1, 2], data_dir=".", expected_clips=5)
    cached = CachedEncoder(Counter(), EmbeddingCache(tmp_path / "cache.sqlite"))
    seen = []
    summary = evaluate_suite(
        cached,
        Suite("s", (task,)),
        tmp_path,
        tmp_path,
        load_corpus=lambda *args, **kwargs: seen.append(kwargs) or rows,
        skip_bad=True,
        report=lambda line: None,
    )
    assert seen == [{"split": [1, 2], "skip_bad": True}]
    assert (summary["results"][0]["left_out"], summary["results"][0]["split"]) == (["torn"], "1,2")
    assert "4 of 5 clips (1 left out)" in text_table([summary])


def summary_of(tmp_path, chosen_on=None):
    entries = evaluate(class_rows(), tmp_path, chosen_on=chosen_on, expected_clips=5, expected_labels=3)
    missing = {
        "task": "gone",
        "kind": "retrieval",
        "language": None,
        "status": "not run",
        "reason": "data not found at x",
    }
    head = {"checkpoint": "me/model", "fingerprint": "f", "suite": "suite", "chosen_on": chosen_on}
    return {**head, "results": [*entries, missing]}


@pytest.mark.parametrize("chosen_on", [None, "validation", "test", "last"])
def test_every_output_says_how_the_checkpoint_was_chosen(tmp_path, chosen_on):
    summary = summary_of(tmp_path, chosen_on)
    for text in (text_table([summary]), markdown_table([summary])):
        assert CHOSEN_ON[chosen_on] in text
    assert f",suite,{chosen_on or ''}," in csv_table([summary])
    (entry,) = model_index(summary)
    assert entry.metric_args["chosen_on"] == (chosen_on or "not recorded")
    assert ("(checkpoint chosen on test)" in entry.metric_name) == (chosen_on == "test")


def test_the_table_says_what_was_scored_and_what_was_not_run(tmp_path):
    text = text_table([summary_of(tmp_path)])
    assert re.search(r"task +4 of 5 clips, 3 classes +accuracy +75\.00 +\[25\.00, 100\.00\] +4", text)
    assert re.search(r"gone +not run: data not found at x", text)


def test_several_models_stand_side_by_side(tmp_path):
    one = summary_of(tmp_path)
    other = {**one, "checkpoint": "other", "results": [{**one["results"][0], "n_clips": 3}, one["results"][1]]}
    table = markdown_table([one, other])
    assert "| task | on | metric | me/model | other |" in table
    assert (
        "| task | 3 of 5 clips, 3 classes / 4 of 5 clips, 3 classes | accuracy | 75.00 [25.00, 100.00] | 75.00"
        in table
    )


def test_the_files_of_a_summary_can_be_read_back(tmp_path):
    from huggingface_hub import ModelCard

    files = write_tables([summary_of(tmp_path)], tmp_path / "tables")
    assert {file.name for file in files} == {
        "results.md",
        "results.csv",
        "results.png",
        "models.md",
        "model-index.yaml",
    }
    card = ModelCard(f"---\n{(tmp_path / 'tables' / 'model-index.yaml').read_text()}---\n")
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 75.0)
    assert "4 of 5 clips" in result.dataset_name
