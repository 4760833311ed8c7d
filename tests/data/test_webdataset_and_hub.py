"""Rows from WebDataset shards and from any data set of `datasets`."""

import json
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile

from supclap.data import load_corpus
from supclap.data.corpora import hub
from supclap.data.corpora.hub import DatasetRows
from supclap.errors import DataError


RATE = 16000


def shard(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    return path


def flac(value: float = 0.1) -> bytes:
    buffer = BytesIO()
    soundfile.write(buffer, np.full(1600, value), RATE, format="FLAC")
    return buffer.getvalue()


def test_shards_of_three_kinds_are_read_by_place(tmp_path):
    shard(
        tmp_path / "train-0.tar",
        a__flac=flac(0.1),
        a__json=json.dumps({"captions": {"eng_Latn": ["one"], "deu_Latn": ["eins", "uno"]}}).encode(),
        b__json=json.dumps({"text": ["two", "three"], "tag": []}).encode(),
        b__flac=flac(0.2),
    )
    shard(tmp_path / "train-1.tar", a__txt=b"four\n", a__flac=flac(0.3))
    rows = load_corpus("webdataset", tmp_path)
    assert [row["captions"] for row in rows] == [["one", "eins", "uno"], ["two", "three"], ["four"]]
    assert rows[0]["language"] == ["eng_Latn", "deu_Latn", "deu_Latn"]
    assert [row["id"] for row in rows] == ["a", "b", "train-1/a"]
    levels = [soundfile.read(BytesIO(row["audio"]))[0][0] for row in rows]
    assert levels == pytest.approx([0.1, 0.2, 0.3], abs=1e-4)


@pytest.mark.parametrize(
    ("details", "captions", "language"),
    [
        ({"captions": {"zh": "狗在叫"}}, ["狗在叫"], ["zh"]),
        ({"captions": {"en": None, "de": ["ein Hund"], "fr": "un chien"}}, ["ein Hund", "un chien"], ["de", "fr"]),
        ({"caption": "a dog"}, ["a dog"], None),
    ],
)
def test_a_caption_that_stands_by_itself_is_one_caption(tmp_path, details, captions, language):
    shard(tmp_path / "train-0.tar", a__flac=flac(), a__json=json.dumps(details).encode())
    (row,) = load_corpus("webdataset", tmp_path)
    assert (row["captions"], row.get("language")) == (captions, language)


@pytest.mark.parametrize("details", [{"text": 5}, {"captions": [1.5]}, {"captions": {"en": {"a": 1}}}])
def test_a_caption_of_a_shard_that_is_no_text_is_refused_by_name(tmp_path, details):
    shard(tmp_path / "train-0.tar", a__flac=flac(), a__json=json.dumps(details).encode())
    with pytest.raises(DataError, match=r"row 0 \(id 'a'\) has the caption .*; captions must be non-empty strings"):
        load_corpus("webdataset", tmp_path)


def test_null_instead_of_captions_and_id_counts_as_missing(tmp_path):
    shard(tmp_path / "train-0.tar", a__flac=flac(), a__json=b'{"id": null, "captions": {"en": null}}')
    with pytest.raises(DataError, match=r"row 0 \(id 'a'\) needs `captions`"):
        load_corpus("webdataset", tmp_path)


def test_two_clips_of_one_id_in_a_shard_are_refused(tmp_path):
    same = b'{"id": 7, "caption": "one"}'
    shard(tmp_path / "train-0.tar", a__flac=flac(), a__json=same, b__flac=flac(), b__json=same)
    with pytest.raises(DataError, match="train-0.tar: the clips a and b have the same id '7'"):
        load_corpus("webdataset", tmp_path)


def test_captions_of_shards_have_no_language_unless_one_is_given(tmp_path):
    shard(tmp_path / "train-0.tar", a__flac=flac(), a__txt=b"four")
    assert "language" not in load_corpus("webdataset", tmp_path)[0]
    assert load_corpus("webdataset", tmp_path, language="fr")[0]["language"] == "fr"


@pytest.mark.parametrize("keep", [100, 1600, 2000])
def test_a_shard_that_ends_early_is_refused(tmp_path, keep):
    path = shard(
        tmp_path / "train-0.tar", a__json=b'{"caption": "one"}', a__flac=flac(), b__flac=np.random.bytes(2000)
    )
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="train-0.tar: .*ends early"):
        load_corpus("webdataset", tmp_path)


def audio_dataset():
    from datasets import Audio, ClassLabel, Dataset, Features, Value

    audio = [{"bytes": flac(level), "path": None} for level in (0.1, 0.2, 0.3)]
    data = Dataset.from_dict(
        {"sound": audio, "sentence": ["one", "two", "three"], "kind": [1, 0, 1], "clip": ["x", "y", "x"]},
        features=Features(
            {
                "sound": {"bytes": Value("binary"), "path": Value("string")},
                "sentence": Value("string"),
                "kind": ClassLabel(names=["dog", "rain"]),
                "clip": Value("string"),
            }
        ),
    )
    return data.cast_column("sound", Audio())


def test_any_dataset_becomes_rows_grouped_by_id_without_decoding():
    rows = DatasetRows(
        audio_dataset(), audio_column="sound", label_column="kind", caption_columns=["sentence"], id_column="clip"
    )
    assert [(row["id"], row["captions"], row["label"]) for row in rows] == [
        ("x", ["one", "three"], "rain"),
        ("y", ["two"], "dog"),
    ]
    assert soundfile.read(BytesIO(rows[1]["audio"]["bytes"]))[0][0] == pytest.approx(0.2, abs=1e-4)
    labelled = DatasetRows(audio_dataset(), audio_column="sound", label_column="kind", template="sound of {}")
    assert labelled[0]["captions"] == ["sound of rain"]


def test_minus_one_is_no_class_of_a_dataset():
    data = audio_dataset()
    unlabelled = data.remove_columns("kind").add_column("kind", [-1, 0, 1]).cast_column("kind", data.features["kind"])
    rows = DatasetRows(unlabelled, audio_column="sound", label_column="kind", caption_columns=[])
    assert [row.get("label") for row in rows] == [None, "dog", "rain"]
    assert [row["captions"] for row in rows] == [[], ["This is a sound of dog."], ["This is a sound of rain."]]


def test_a_dataset_saved_to_disk_is_a_corpus(tmp_path):
    audio_dataset().save_to_disk(tmp_path / "set")
    rows = load_corpus("hub", tmp_path / "set", audio_column="sound")
    assert [row["captions"] for row in rows] == [["one"], ["two"], ["three"]]
    # of one split, and without the folder of this machine
    assert [row["id"] for row in rows] == ["set/train/0", "set/train/1", "set/train/2"]
    assert rows[0]["source"] == "set"
    with pytest.raises(DataError, match="has no column 'audio'; its columns are"):
        load_corpus("hub", tmp_path / "set")


def test_a_streamed_dataset_gives_the_same_rows(tmp_path):
    audio_dataset().save_to_disk(tmp_path / "set")
    columns = {"audio_column": "sound", "label_column": "kind"}
    streamed, listed = (read(tmp_path / "set", "train", **columns) for read in (hub.stream, hub.load))
    # all but the ids, as a worker does not know the number of a record
    assert [row | {"id": None} for row in streamed] == [row | {"id": None} for row in listed]
