"""Hashes of the manifest are kept: a start reads again only what has changed."""

import json
import os

import datasets
import pytest

from supclap.cli.train import train
from supclap.data import audio_hashes, build_manifest, load_corpus
from supclap.data.audio_hashes import AUDIO_HASHES
from supclap.data.corpora.hub import DatasetRows


@pytest.fixture
def hashed(monkeypatch):
    """What was hashed, as it is hashed."""
    seen, content_hash = [], audio_hashes.content_hash

    def note(audio):
        seen.append(audio)
        return content_hash(audio)

    monkeypatch.setattr(audio_hashes, "content_hash", note)
    return seen


@pytest.fixture
def rows(tmp_path):
    files = [tmp_path / f"{name}.wav" for name in "abc"]
    for file in files:
        file.write_bytes(file.name.encode())
    return [{"id": file.stem, "audio": str(file), "captions": ["a sound"]} for file in files]


def manifest(rows, folder):
    return build_manifest({"train": rows}, known_hashes=folder / AUDIO_HASHES)


def test_a_second_start_of_a_run_hashes_no_file(recipe, tmp_path, hashed):
    train([str(recipe), "--max_steps", "2", "--save_steps", "2"])
    assert len(hashed) == 24
    first = json.loads((tmp_path / "run" / "data_manifest.json").read_text())
    hashed.clear()
    train([str(recipe), "--max_steps", "2", "--save_steps", "2"])
    assert hashed == []
    assert json.loads((tmp_path / "run" / "data_manifest.json").read_text()) == first


def test_a_file_that_was_changed_is_hashed_again(rows, tmp_path, hashed):
    before = manifest(rows, tmp_path)["splits"]["train"]["clips"]
    hashed.clear()
    (tmp_path / "b.wav").write_bytes(b"b.xyz")
    os.utime(tmp_path / "b.wav", ns=(1, 1))  # of the same size, at another time
    after = manifest(rows, tmp_path)["splits"]["train"]["clips"]
    assert hashed == [str(tmp_path / "b.wav")]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_a_line_that_a_kill_tore_is_hashed_again_and_the_others_are_not(rows, tmp_path, hashed):
    expected = manifest(rows, tmp_path)
    kept = tmp_path / AUDIO_HASHES
    kept.write_text(kept.read_text()[:-20])
    for times in (1, 0):
        hashed.clear()
        assert manifest(rows, tmp_path) == expected
        assert len(hashed) == times


def test_the_file_of_hashes_names_no_folder(rows, tmp_path):
    manifest(rows, tmp_path)
    assert tmp_path.name not in (tmp_path / AUDIO_HASHES).read_text()


def test_clips_of_a_shard_are_known_by_their_place(shards, tmp_path, hashed):
    expected = manifest(load_corpus("webdataset", shards), tmp_path)
    assert len(hashed) == 12
    hashed.clear()
    assert manifest(load_corpus("webdataset", shards), tmp_path) == expected
    assert hashed == []


def test_clips_of_a_saved_dataset_are_known_by_their_place(tmp_path, hashed):
    records = {"audio": [b"one", b"two"], "caption": ["a sound", "a noise"]}
    datasets.Dataset.from_dict(records).save_to_disk(tmp_path / "set")

    def load():
        return DatasetRows(datasets.load_from_disk(tmp_path / "set"))

    expected = manifest(load(), tmp_path)
    assert len({digest for _, digest in expected["splits"]["train"]["clips"]}) == 2
    hashed.clear()
    assert manifest(load(), tmp_path) == expected
    assert hashed == []


def test_rows_in_memory_are_hashed_each_time(tmp_path, hashed):
    rows = [{"id": "a", "audio": b"sound", "captions": ["a sound"]}]
    assert manifest(rows, tmp_path) == manifest(rows, tmp_path)
    assert hashed == [b"sound", b"sound"]
