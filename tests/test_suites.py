"""Suites and their tables: read, refused with the reason, and honest about what was not run."""

import re

import numpy as np
import pytest
import soundfile
import yaml
from _scoring import Counter, class_rows, clip, evaluate

from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import Suite, SuiteError, Task, built_in_suites, load_rows, load_suite
from supclap.evaluation.tables import CHOSEN_ON, csv_table, markdown_table, model_index, text_table, write_tables


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
