"""`supclap data check`."""

import json

import numpy as np
import pytest
import soundfile

from supclap.data.check import check_splits, script_of
from supclap.data.inspection import inspect_clip
from supclap.data.open_rows import open_rows
from supclap_cli import main
from support.builders import RATE, tone


@pytest.fixture
def faulty(tmp_path):
    """A folder with one fault of each kind, in two splits."""
    train, test = tmp_path / "train", tmp_path / "test"
    train.mkdir(), test.mkdir()
    square = np.sign(tone(100)).astype(np.float32)
    half = np.concatenate([tone(300), np.zeros(6400, np.float32)])
    waves = {
        "good.wav": tone(),
        "same.wav": tone(),
        "silent.wav": np.zeros(3200, np.float32),
        "loud.wav": square,
        "padded.wav": half,
        "nocaption.wav": tone(500),
    }
    for name, wave in waves.items():
        soundfile.write(train / name, wave, RATE)
    (train / "broken.wav").write_bytes(b"RIFF nothing")
    captions = {name: name for name in waves} | {"broken.wav": "x", "gone.wav": "y", "nocaption.wav": ""}
    captions |= {"same.wav": "Good.wav.", "loud.wav": "..."}
    table = [f"{name},{caption},{i}" for i, (name, caption) in enumerate(captions.items())]
    (train / "metadata.csv").write_text("file_name,caption,recording\n" + "\n".join(table))
    steps = np.round(32768 * tone()).astype(np.int16)
    soundfile.write(train / "same.wav", steps, RATE)
    soundfile.write(train / "good.wav", steps, RATE)
    soundfile.write(test / "other.wav", steps / 32768, RATE, subtype="FLOAT")
    soundfile.write(test / "good.wav", tone(700, rate=8000), 8000)
    lines = ["file_name,caption,recording,id", "other.wav,蛙,0,", "good.wav,rana,99,train/good.wav"]
    (test / "metadata.csv").write_text("\n".join(lines))
    return tmp_path


def test_every_kind_of_fault_is_found_once(faulty):
    report = check_splits(open_rows(faulty, keep_bad=True), progress=False)
    problems = {name: item for name, item in report["splits"]["train"]["problems"].items() if item["count"]}
    assert {name: item["count"] for name, item in problems.items()} == {
        "missing files": 1,
        "unreadable audio": 1,
        "silent audio": 1,
        "clipped audio": 1,
        "mostly zeros": 1,
        "duplicate audio": 1,
        "clips without captions": 1,
        "captions without a letter": 1,
        "duplicate captions": 1,
    }
    assert problems["duplicate audio"]["findings"] == [{"clips": ["train/good.wav", "train/same.wav"], "detail": None}]
    assert problems["missing files"]["findings"] == [{"clips": ["train/gone.wav"], "detail": "'gone.wav'"}]
    assert "broken.wav" in problems["unreadable audio"]["findings"][0]["detail"]


def test_leaks_between_splits_are_found_by_id_recording_and_content(faulty):
    report = check_splits(open_rows(faulty, keep_bad=True), progress=False)
    clips = {
        kind: [finding["clips"] for finding in found["findings"]] for kind, found in report["between_splits"].items()
    }
    assert clips["same id"] == [{"train": ["train/good.wav"], "test": ["train/good.wav"]}]
    assert clips["same recording"] == [{"train": ["train/good.wav"], "test": ["test/other.wav"]}]
    # 32-bit floats there, 16-bit integers here: the samples are alike after rounding, the files are not
    assert clips["same audio"] == [{"train": ["train/good.wav", "train/same.wav"], "test": ["test/other.wav"]}]


def test_the_report_counts_lengths_rates_and_scripts(faulty):
    test = check_splits(open_rows(faulty, keep_bad=True), progress=False)["splits"]["test"]
    assert (test["n_clips"], test["n_captions"]) == (2, 2)
    assert test["sampling_rates"] == {RATE: 1, 8000: 1}
    assert test["hours"] == pytest.approx(2 * 0.2 / 3600)
    assert test["scripts"] == {"CJK": 1, "LATIN": 1}


def test_one_screen_and_the_exit_status_say_what_training_would_refuse(faulty, capsys):
    assert main(["data", "check", str(faulty), "--quiet", "--json", str(faulty / "r.json")]) == 1
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 40
    assert "1 missing files, e.g. train/gone.wav" in out
    written = json.loads((faulty / "r.json").read_text())
    assert written["n_problems"] == 12
    assert main(["data", "check", str(faulty), "--split", "test", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"].keys() == {"test"}


def test_the_command_names_what_it_cannot_read(tmp_path, capsys):
    assert main(["data", "check", str(tmp_path / "nowhere"), "--quiet"]) == 1
    assert "No file or folder" in capsys.readouterr().err


def test_a_folder_of_sounds_alone_is_checked_too(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(), RATE)
    rows = open_rows(tmp_path, keep_bad=True)
    assert [row["id"] for row in rows["all"]] == ["a.wav"]
    assert check_splits(rows, progress=False)["splits"]["all"]["problems"]["unreadable audio"]["count"] == 0


def test_short_peaks_at_full_scale_are_no_clipping(tmp_path):
    wave = tone()
    wave[100:102] = 1.0
    assert not inspect_clip({"array": wave, "sampling_rate": RATE}, "x").is_clipped
    wave[100:110] = 1.0
    assert inspect_clip({"array": wave, "sampling_rate": RATE}, "x").is_clipped


def test_the_script_is_that_of_most_letters():
    assert script_of("a 蛙 and a frog") == "LATIN"
    assert script_of("Лягушка") == "CYRILLIC"
    assert script_of("123") == "NONE"
