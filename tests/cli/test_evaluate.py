"""`supclap evaluate`."""

import json
import re
import shutil

import pytest
import soundfile
import yaml

from supclap.cli.evaluate import recorded_choice
from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
from supclap.evaluation.encoders import load_encoder
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import PUBLISHED, Suite, Task
from supclap.evaluation.tables import CHOSEN_ON
from supclap_cli import main
from support.shared_data import SHARED, on_shared_data


@pytest.fixture
def own(tmp_path, clips):
    """A folder with sounds, a table and a suite, as a user would have it; one task has no data."""
    folder = tmp_path / "mine"
    folder.mkdir()
    lines = ["file_name,caption,label,split"]
    for number in range(4):
        soundfile.write(folder / f"{number}.wav", clips[number % 3] * (1 + number), 16000)
        lines.append(f"{number}.wav,sound number {number},{'ab'[number % 2]},{'test' if number else 'train'}")
    (folder / "table.csv").write_text("\n".join(lines))
    shared = {"table": "table.csv", "where": {"split": "test"}}
    tasks = [
        {"name": "find", "kind": "retrieval", "caption_columns": ["caption"], **shared},
        {"name": "tell", "kind": "zero_shot", "label_column": "label", **shared},
        {"name": "gone", "kind": "retrieval", "corpus": "clotho"},
    ]
    (folder / "suite.yaml").write_text(yaml.safe_dump({"name": "own", "tasks": tasks}))
    return folder / "suite.yaml"


def test_the_command_scores_what_is_there_and_says_what_is_not(checkpoint, own, tmp_path, capsys):
    # in the form that a training run of an earlier version wrote
    (checkpoint / "results.json").write_text(json.dumps({"chosen_on": "test", "retrieval": {}, "n_clips": 3}))
    arguments = ["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]
    assert main([*arguments, "--format", "json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["chosen_on"] == "test"
    assert [entry["status"] for entry in summary["results"]] == ["done", "done", "not run"]
    assert [entry.get("n_clips") for entry in summary["results"]] == [3, 3, None]
    (folder,) = (tmp_path / "out").glob("*/own")
    assert json.loads((folder / "results.json").read_text()) == summary
    assert main([*arguments, "--require-all"]) == 1
    printed = capsys.readouterr()
    assert f"gone: not run: data not found at {own.parent / 'clotho'}" in printed.err
    assert CHOSEN_ON["test"] in printed.out


def test_what_has_no_data_is_listed_in_a_note_at_the_end(checkpoint, own, tmp_path, capsys):
    assert main(["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]) == 0
    *_, note, line = capsys.readouterr().err.splitlines()
    assert note == "note: tasks without their data were left out."
    assert line == (f"gone: not run: data not found at {own.parent / 'clotho'}. To get: clotho: {PUBLISHED['clotho']}")


def test_a_suite_without_any_data_ends_with_one_message_and_status_2(checkpoint, tmp_path, capsys):
    data = tmp_path / "nowhere"
    arguments = ["--suite", "zeroshot", "--data-dir", str(data), "--output-dir", str(tmp_path / "out")]
    assert main(["evaluate", str(checkpoint), str(checkpoint), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("not run") == 5
    error, *lines = printed.err[printed.err.index("error:") :].splitlines()
    assert error == "error: nothing was scored: no task of the suite zeroshot has its data."
    names = ["esc50", "urbansound8k", "vggsound", "fsd50k", "audioset"]
    assert lines == [
        f"{name}: not run: data not found at {data / name}. To get: {name}: {PUBLISHED[name]}" for name in names
    ]


def test_the_bar_of_each_task_reaches_its_end_also_where_all_is_known(checkpoint, own, tmp_path, capsys):
    arguments = ["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]
    for _ in range(2):
        assert main(arguments) == 0
        bars = re.findall(r"(\w+): 100%\|[^|]*\| 3/3 ", capsys.readouterr().err)
        assert list(dict.fromkeys(bars)) == ["find", "tell"]


def test_models_of_any_kind_are_rows_of_one_table(checkpoint, laion, own, tmp_path, monkeypatch, capsys):
    (tmp_path / "an_adapter.py").write_text(
        "import torch\n"
        "class Model:\n"
        "    name, fingerprint, record = 'adapted', 'y', {}\n"
        "    def __init__(self, weights): assert weights == 'weights.pt'\n"
        "    def embed_audio(self, audios, batch_size): return torch.eye(4)[: len(audios)]\n"
        "    def embed_texts(self, texts, languages, batch_size): return torch.eye(4)[: len(texts)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    models = [str(checkpoint), str(laion), "an_adapter:Model=weights.pt"]
    arguments = ["--suite", str(own), "--output-dir", str(tmp_path / "out"), "--format", "models"]
    assert main(["evaluate", *models, *arguments]) == 0
    table = capsys.readouterr().out
    assert (tmp_path / "out" / "comparison-own" / "models.md").read_text() == table.rstrip("\n") + "\n"
    header, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert header[2:] == [
        *(f"find, {way} R@{k} (3 clips, 3 captions)" for way in ("text to audio", "audio to text") for k in (1, 10)),
        "tell, accuracy (3 clips, 2 classes)",
    ]
    assert [row[0] for row in rows] == [str(checkpoint), str(laion), "adapted"]
    # of the identity: each caption finds its clip
    assert rows[2][2].startswith("100.00 [")
    for row in rows[:2]:
        assert all(re.fullmatch(r"\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]", cell) for cell in row[2:])


def test_the_choice_of_a_hub_checkpoint_is_read_from_its_download(tmp_path, monkeypatch):
    commit = "0" * 40
    repo = tmp_path / "models--me--model"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit / "results.json").write_text('{"chosen_on": "test"}')
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert recorded_choice("me/model") == "test"
    assert recorded_choice("me/other") is None
    assert recorded_choice("no id at all, of an adapter") is None


def test_an_adapter_of_yours_is_scored_by_the_same_command(own, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_adapter.py").write_text(
        "import torch\n"
        "class Model:\n"
        "    name, fingerprint, record = 'mine', 'x', {}\n"
        "    def __init__(self, checkpoint): self.checkpoint = checkpoint\n"
        "    def embed_audio(self, audios, batch_size): return torch.eye(4)[: len(audios)]\n"
        "    def embed_texts(self, texts, languages, batch_size): return torch.eye(4)[: len(texts)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["evaluate", "weights.pt", "--suite", str(own), "--output-dir", str(tmp_path / "out")]
    assert main([*arguments, "--encoder", "my_adapter:Model", "--format", "csv"]) == 0
    assert "mine,x,own,,find,retrieval,,done,,3,3,text_to_audio/recall@1,1.0," in capsys.readouterr().out
    assert main([*arguments, "--encoder", "my_adapter:Nothing"]) == 1
    assert "my_adapter:Nothing" in capsys.readouterr().err


def test_a_missing_checkpoint_or_suite_is_named(own, tmp_path, capsys):
    assert main(["evaluate", str(tmp_path / "nowhere"), "--suite", str(own), "--output-dir", str(tmp_path)]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["evaluate", "x", "--suite", "papr"]) == 1
    assert "built in are maeb, paper, zeroshot" in capsys.readouterr().err


def test_an_unknown_device_is_refused_by_name(checkpoint, own, tmp_path, capsys):
    arguments = ["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]
    assert main([*arguments, "--device", "cudaa"]) == 1
    assert "error: --device 'cudaa' cannot be used: Expected one of cpu, cuda" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_opened_is_told_before_any_is_scored(checkpoint, own, tmp_path, capsys):
    arguments = ["--suite", str(own), "--output-dir", str(tmp_path / "out")]
    assert main(["evaluate", str(checkpoint), str(tmp_path / "nowhere"), *arguments]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("results.json"))


def test_a_second_checkpoint_with_torn_results_is_said_before_the_first_is_scored(checkpoint, own, tmp_path, capsys):
    other = shutil.copytree(checkpoint, tmp_path / "other")
    (other / "results.json").write_text("{torn")
    arguments = ["--suite", str(own), "--output-dir", str(tmp_path / "out")]
    assert main(["evaluate", str(checkpoint), str(other), *arguments]) == 1
    assert f"{other / 'results.json'} is not what `supclap evaluate` or a training run" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("results.json"))


def test_a_column_that_a_later_task_mistypes_is_said_before_the_first_is_scored(checkpoint, own, tmp_path, capsys):
    suite = yaml.safe_load(own.read_text())
    suite["tasks"][1]["label_column"] = "lable"
    own.write_text(yaml.safe_dump(suite))
    assert main(["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]) == 1
    assert "has no column 'lable'" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("results.json"))


def test_a_task_that_fails_in_any_way_gives_status_1_and_the_scores_of_the_others(
    checkpoint, own, tmp_path, capsys, monkeypatch
):
    def break_down(*arguments):
        raise AttributeError("no such thing")

    monkeypatch.setattr("supclap.evaluation.runner._classify", break_down)
    assert main(["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]) == 1
    table = capsys.readouterr().out
    assert re.search(r"tell +failed: AttributeError: no such thing", table)
    assert "text_to_audio/recall@1" in table


@on_shared_data
def test_real_recordings_of_esc10_are_scored(checkpoint, tmp_path):
    task = Task(
        "esc10",
        "zero_shot",
        table="metadata.csv",
        data_dir="esc10",
        label_column="label",
        where={"take": ["A"], "fold": [5]},
    )
    encoder = CachedEncoder(load_encoder(checkpoint, "cpu"), EmbeddingCache(tmp_path / "cache.sqlite"))
    summary = evaluate_suite(encoder, Suite("s", (task,)), tmp_path, SHARED / "sounds", report=lambda line: None)
    (entry,) = summary["results"]
    assert entry["status"] == "done"
    assert entry["n_clips"] == encoder.computed - entry["n_labels"] > 10
