"""What `supclap data check` finds, and that training finds the same."""

import io
import json

import datasets
import numpy as np
import pytest
import soundfile

from supclap.data import check_row
from supclap.data.check import check_splits
from supclap.data.corpora.hub import DatasetRows
from supclap.data.inspection import drop_undecodable, inspect_clip
from supclap.data.open_rows import open_recipe, open_rows
from supclap.errors import DataError
from supclap.recipes.parser import parse_recipe
from supclap_cli import main


RATE = 16000


def sound_bytes(seconds: float = 0.2) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.1 * np.random.default_rng(0).standard_normal(int(seconds * RATE)), RATE, format="WAV")
    return buffer.getvalue()


def problems(rows, kind: str) -> dict:
    return check_splits({"train": rows}, progress=False)["splits"]["train"]["problems"][kind]


# ---- Sets without audio ----


@pytest.fixture
def set_with_a_null():
    """Two clips of a set whose audio is a column of kind `Audio`, the second without audio."""
    audio = [{"bytes": sound_bytes(), "path": None}, None]
    data = datasets.Dataset.from_dict({"audio": audio, "caption": ["one", "two"]})
    return DatasetRows(data.cast_column("audio", datasets.Audio(decode=False)), name="set")


@pytest.mark.parametrize("empty", [None, {"bytes": None, "path": None}, {}])
def test_a_clip_without_audio_is_named(empty):
    assert inspect_clip(empty, "clip 'a'").error == "clip 'a' has no audio."


@pytest.mark.parametrize(
    "audio", [{"bytes": b"", "path": "x.wav"}, {"array": np.zeros(RATE)}, {"array": None}, 5, b""]
)
def test_whatever_is_wrong_with_audio_names_the_clip(audio):
    assert "clip 'a'" in inspect_clip(audio, "clip 'a'").error


def test_null_audio_in_a_data_set_is_named_before_training(set_with_a_null):
    with pytest.raises(DataError, match="1 of 2 clips cannot be used: row 1: clip 'set/1' has no audio"):
        drop_undecodable(set_with_a_null, "train", skip_bad=False)


def test_null_audio_in_a_data_set_is_left_out_and_noted(set_with_a_null):
    kept = drop_undecodable(set_with_a_null, "train", skip_bad=True)
    assert [row["id"] for row in kept] == ["set/0"]
    assert kept.removed == [{"id": "set/1", "reason": "clip 'set/1' has no audio."}]


def test_the_faults_of_a_data_set_are_found_and_not_raised(tmp_path):
    audio = [{"bytes": sound_bytes(), "path": None}, {"bytes": sound_bytes(), "path": None}]
    data = datasets.Dataset.from_dict({"audio": audio, "caption": ["one", " "]})
    data.cast_column("audio", datasets.Audio(decode=False)).save_to_disk(tmp_path / "set")
    rows = open_rows(tmp_path / "set", "hub", keep_bad=True)["train"]
    assert problems(rows, "captions empty or no text")["count"] == 1


# ---- What training would refuse ----


@pytest.mark.parametrize(
    ("captions", "more"),
    [
        ([], {}),
        ([""], {}),
        ([" "], {}),
        ([None], {}),
        ([5], {}),
        (["rain"], {"language": ["en", "fr"]}),
        (["rain"], {}),
        (["???"], {}),
        (["nan"], {}),
        (["雨"], {"language": ["ja"]}),
    ],
)
def test_check_and_training_refuse_the_same_captions(captions, more):
    row = {"id": "a", "audio": sound_bytes(), "captions": captions, **more}
    try:
        check_row(row, 0)
        accepted = True
    except ValueError:
        accepted = False
    assert (check_splits({"train": [row]}, progress=False)["n_refused"] == 0) == accepted


@pytest.mark.parametrize("caption", ["nan", "NaN", "None", "null", " NULL ", "<NA>"])
def test_a_caption_that_reads_as_missing_is_a_finding(caption):
    rows = [{"id": "a", "audio": sound_bytes(), "captions": [caption]}]
    (finding,) = problems(rows, "captions that read as missing")["findings"]
    assert finding["clips"] == ["a"]


def test_two_clips_of_one_id_are_a_finding_that_training_refuses():
    rows = [{"id": "a", "audio": sound_bytes(), "captions": [caption]} for caption in ("one", "two")]
    report = check_splits({"train": rows}, progress=False)
    assert report["splits"]["train"]["problems"]["clips of one id"]["findings"] == [
        {"clips": ["a"], "detail": "2 rows"}
    ]
    assert report["n_refused"] == 1


# ---- The report as JSON ----


def test_the_report_names_all_findings():
    rows = [{"id": f"clip{i}", "audio": None, "captions": ["x"]} for i in range(30)]
    found = problems(rows, "missing files")["findings"]
    assert [finding["clips"] for finding in found] == [[f"clip{i}"] for i in range(30)]


def test_a_report_that_cannot_be_written_is_refused_before_the_audio_is_read(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("supclap.data.check.check_splits", lambda *a, **k: pytest.fail("the audio was read"))
    assert main(["data", "check", str(recipe), "--json", str(tmp_path / "no/r.json")]) == 1
    assert "r.json' cannot be written (No such file or directory)" in capsys.readouterr().err


# ---- Recipes and tables ----


@pytest.fixture
def recipe(tmp_path):
    """A recipe with one fault of a few kinds, and a recording in train and test."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for name in ("a", "b", "c", "d"):
        (folder / f"{name}.wav").write_bytes(sound_bytes())
    (folder / "junk.wav").write_bytes(b"RIFF nothing")
    rows = ["a.wav,rain,1,train", "gone.wav,wind,2,train", "junk.wav,sea,3,train", "b.wav,,4,train"]
    rows += ["c.wav,snow,1,test", "d.wav,hail,5,val"]
    (folder / "metadata.csv").write_text("\n".join(["file_name,caption,recording,split", *rows]))
    keys = [f"  {split}_file: metadata.csv\n  {split}_splits: [{value}]\n" for split, value in SPLITS.items()]
    path = tmp_path / "r.yaml"
    path.write_text(
        f"data:\n  data_dir: {folder}\n  split_column: split\n  caption_columns: [caption]\n"
        f"  group_column: recording\n{''.join(keys)}"
    )
    return path


SPLITS = {"train": "train", "validation": "val", "test": "test"}


@pytest.fixture
def faults(recipe, capsys):
    """The JSON report on the recipe."""
    assert main(["data", "check", str(recipe), "--json", "-"]) == 1
    return json.loads(capsys.readouterr().out)


def test_the_check_of_a_recipe_reports_every_fault_of_its_rows(faults):
    counts = {kind: item["count"] for kind, item in faults["splits"]["train"]["problems"].items()}
    assert (counts["missing files"], counts["unreadable audio"], counts["clips without captions"]) == (1, 1, 1)


def test_the_check_of_a_recipe_reports_the_leaks_that_training_leaves_out(faults):
    (leak,) = faults["between_splits"]["same recording"]["findings"]
    assert leak == {"clips": {"train": ["a.wav"], "test": ["c.wav"]}, "detail": "1"}


def test_the_check_of_a_recipe_looks_at_each_corpus_of_its_mixture_in_full(recipe):
    folder = recipe.parent / "clips"
    part = f"{{corpus: audiofolder, data_dir: {folder}, weight: 1}}"
    recipe.write_text(f"data:\n  data_dir: {folder}\n  corpora: [{part}, {part}]\n  epoch_size: 2\n")
    assert {name: len(rows) for name, rows in open_recipe(parse_recipe([str(recipe)])[1], keep_bad=True).items()} == {
        "audiofolder": 4,
        "audiofolder_1": 4,
    }


def test_the_check_of_a_recipe_reads_what_it_would_stream(recipe):
    folder = recipe.parent / "clips"
    recipe.write_text(
        f"data:\n  data_dir: {folder}\n  train_file: metadata.csv\n  caption_columns: [caption]\n  streaming: true\n"
    )
    assert len(open_recipe(parse_recipe([str(recipe)])[1], keep_bad=True)["train"]) == 6


@pytest.mark.parametrize("more", [["--corpus", "esc50"], ["--option", "caption_columns=[caption]"]])
def test_options_next_to_a_recipe_are_refused(recipe, more, capsys):
    assert main(["data", "check", str(recipe), *more]) == 1
    assert "a recipe names its corpora and their options itself" in capsys.readouterr().err


def test_the_splits_of_a_table_are_those_of_its_column_as_in_a_folder(recipe):
    folder = recipe.parent / "clips"
    table, whole = open_rows(folder / "metadata.csv", keep_bad=True), open_rows(folder, keep_bad=True)
    assert {split: [row["id"] for row in rows] for split, rows in table.items()} == {
        split: [row["id"] for row in rows] for split, rows in whole.items()
    }
    assert check_splits(table, progress=False)["between_splits"]["same recording"]["count"] == 1


def test_a_split_of_a_table_can_be_chosen(recipe):
    table = recipe.parent / "clips/metadata.csv"
    assert open_rows(table, splits=["val"], keep_bad=True).keys() == {"validation"}
    with pytest.raises(DataError, match="has no split nope; it has train, test, validation"):
        open_rows(table, splits=["nope"])


def test_an_option_that_is_no_yaml_is_named(recipe, capsys):
    assert main(["data", "check", str(recipe.parent / "clips"), "--option", "caption_columns=[caption"]) == 1
    assert "'[caption' is not YAML" in capsys.readouterr().err
