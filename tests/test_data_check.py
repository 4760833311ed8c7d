"""What `supclap data check` finds, and that training finds the same."""

import io

import datasets
import numpy as np
import pytest
import soundfile

from supclap.data import DataError
from supclap.data.check import check_splits
from supclap.data.corpora.hub import DatasetRows
from supclap.data.inspection import drop_undecodable, inspect_clip


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
