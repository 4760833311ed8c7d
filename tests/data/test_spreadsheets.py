"""Annotation files that a spreadsheet or a program saved anew: read as what they were, or refused with the place."""

import json

import pytest

from supclap.data import CaptionedClips, build_manifest, load_corpus, read_table
from supclap.data.tables import table_rows
from supclap.errors import DataError
from support.builders import write_sounds


VIDEO = "-AbCdEfGhI0"
OTHER = "_bCdEfGhIj1"


def text(path, *lines: str):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_duration_with_a_decimal_comma_is_a_number_for_manifest_and_lengths(tmp_path):
    text(tmp_path / "metadata.csv", "file_name;caption;duration", "a.wav;rain;3600,0", "b.wav;wind;0,5")
    write_sounds(tmp_path, "a.wav", "b.wav")
    rows = load_corpus("audiofolder", tmp_path)
    assert CaptionedClips(rows).lengths == [3600.0, 0.5]
    assert build_manifest({"train": rows})["splits"]["train"]["hours"] == pytest.approx(3600.5 / 3600)


def test_a_duration_that_is_no_number_is_refused_with_its_row(tmp_path):
    text(tmp_path / "metadata.csv", "file_name,caption,duration", "a.wav,rain,5", "b.wav,wind,5 s")
    with pytest.raises(DataError, match=r"metadata.csv, row 1, duration: '5 s' is no number of seconds"):
        load_corpus("audiofolder", tmp_path)


def test_a_value_that_is_not_a_number_counts_as_an_empty_cell(tmp_path):
    write_sounds(tmp_path, "a.wav")
    text(tmp_path / "metadata.jsonl", '{"file_name": "a.wav", "caption": "rain", "duration": NaN, "id": NaN}')
    (row,) = load_corpus("audiofolder", tmp_path)
    assert "duration" not in row
    assert row["id"] == "a.wav"


@pytest.mark.parametrize("number", ["123", "123,0", "123.00", "0123"])
def test_a_freesound_number_with_decimals_is_still_the_recording(tmp_path, number):
    text(tmp_path / "UrbanSound8K.csv", "slice_file_name;fsID;fold;class", f"123-3-0-0.wav;{number};1;dog_bark")
    write_sounds(tmp_path, "123-3-0-0.wav")
    assert load_corpus("urbansound8k", tmp_path, 1)[0]["recording"] == "freesound:123"


# ---- AudioSet ----


@pytest.fixture
def audioset(tmp_path):
    text(tmp_path / "class_labels_indices.csv", "index,mid,display_name", "0,/m/0,Speech", '1,/m/1,"Bark, yip"')
    write_sounds(tmp_path, f"{VIDEO}_30000.wav", f"{OTHER}.wav")
    return tmp_path


def test_audioset_segments_may_have_a_plain_header(audioset):
    header = "YTID,start_seconds,end_seconds,positive_labels"
    text(audioset / "eval_segments.csv", header, f'{VIDEO},30.000,40.000,"/m/0,/m/1"', f"{OTHER},0,10,/m/1")
    assert [row["labels"] for row in load_corpus("audioset", audioset, "test")] == [
        ["Speech", "Bark, yip"],
        ["Bark, yip"],
    ]


def test_audioset_segments_with_decimal_commas_are_read_by_their_semicolons(audioset):
    # divided by commas these lines have four fields too
    text(audioset / "eval_segments.csv", f"{VIDEO};30,000;40,000;/m/0,/m/1", f"{OTHER};0,000;10,000;/m/1,/m/0")
    assert [row["id"] for row in load_corpus("audioset", audioset, "test")] == [
        f"audioset/{VIDEO}_30",
        f"audioset/{OTHER}_0",
    ]


STRONG = ("segment_id\tstart_time_seconds\tend_time_seconds\tlabel", f"{VIDEO}_30000\t4,0\t5,0\t/m/0")


def test_strong_labels_with_decimal_commas_are_in_the_order_of_their_events(audioset):
    text(audioset / "audioset_eval_strong.tsv", *STRONG, f"{VIDEO}_30000\t0,5\t1,0\t/m/1")
    assert load_corpus("audioset", audioset, "strong_test")[0]["labels"] == ["Bark, yip", "Speech"]


def test_a_strong_label_without_a_time_is_refused_with_file_and_row(audioset):
    text(audioset / "audioset_eval_strong.tsv", *STRONG, f"{VIDEO}_30000\tsoon\t1,0\t/m/1")
    with pytest.raises(DataError, match=r"audioset_eval_strong.tsv, row 2: 'soon' is no time"):
        load_corpus("audioset", audioset, "strong_test")


def test_audioset_captions_of_records_that_are_named_by_wav_alone(audioset):
    text(audioset / "eval_segments.csv", f"{VIDEO}, 30.000, 40.000, /m/0", f"{OTHER}, 0.000, 10.000, /m/1")
    record = {"wav": f"waveforms/Y{VIDEO}.wav", "caption": "a man speaks"}
    text(audioset / "as.json", json.dumps({"num_captions_per_audio": 1, "data": [record]}))
    (row,) = load_corpus("audioset", audioset, "test", captions="as.json")
    assert row["captions"] == ["a man speaks"]


# ---- Labels ----


def test_vggsound_with_semicolons_is_read_where_its_first_label_holds_a_comma(tmp_path):
    text(tmp_path / "test.csv", f"{OTHER}_000300.mp4;bee, buzzing", f"{VIDEO}_000010.mp4;dog barking")
    write_sounds(tmp_path, f"{VIDEO}_000010.wav", f"{OTHER}_000300.wav")
    assert [row["label"] for row in load_corpus("vggsound", tmp_path, "test")] == ["bee, buzzing", "dog barking"]


def fsd50k(folder, labels: str):
    text(folder / "FSD50K.ground_truth/eval.csv", "fname,labels,mids", f'10,"{labels}",x', "11,Rain,/m/2")
    write_sounds(folder, "FSD50K.eval_audio/10.wav", "FSD50K.eval_audio/11.wav")
    return folder


def test_a_clip_of_fsd50k_without_labels_is_refused(tmp_path):
    with pytest.raises(DataError, match="1 of 2 rows cannot be used: row 0 .id 'fsd50k/10'. needs `captions`"):
        load_corpus("fsd50k", fsd50k(tmp_path, ""), "test")


def test_an_empty_label_among_others_is_no_class(tmp_path):
    rows = load_corpus("fsd50k", fsd50k(tmp_path, "Bark, ,Dog,"), "test")
    assert rows[0]["labels"] == ["Bark", "Dog"]
    assert rows[0]["captions"] == ["This is a sound of Bark, Dog."]


def test_macs_annotations_without_a_sentence_each_are_refused(tmp_path):
    text(tmp_path / "MACS.yaml", "files:", "- filename: a.wav", "  annotations: [birds sing]")
    with pytest.raises(DataError, match="entry 0: annotations must be a list with a `sentence` each"):
        load_corpus("macs", tmp_path)


# ---- One value where a list is due ----


def test_one_caption_column_needs_no_list(tmp_path):
    write_sounds(tmp_path, "a.wav")
    text(tmp_path / "metadata.csv", "file_name,said", "a.wav,rain")
    assert load_corpus("audiofolder", tmp_path, caption_columns="said")[0]["captions"] == ["rain"]


def test_one_source_of_wavcaps_needs_no_list(tmp_path):
    write_sounds(tmp_path, "5.wav")
    text(tmp_path / "sb_final.json", json.dumps({"data": [{"id": "5", "caption": "x"}]}))
    assert [row["id"] for row in load_corpus("wavcaps", tmp_path, sources="soundbible")] == ["wavcaps/soundbible/5"]


def test_one_language_of_audiocaps_needs_no_list(tmp_path):
    write_sounds(tmp_path, f"{VIDEO}.wav")
    text(tmp_path / "ja/test.csv", "audiocap_id,youtube_id,start_time,caption", f"1,{VIDEO},30,雨")
    assert load_corpus("audiocaps", tmp_path, "test", languages="ja")[0]["language"] == "ja"


def test_one_evaluation_set_to_leave_out_needs_no_list(tmp_path):
    write_sounds(tmp_path, "a.wav", "b.wav")
    text(tmp_path / "metadata.csv", "file_name,caption,recording", "a.wav,rain,freesound:1", "b.wav,wind,freesound:2")
    text(tmp_path / "blacklist_exclude_test_ac.json", json.dumps({"FreeSound": ["1"]}))
    rows = load_corpus("audiofolder", tmp_path, exclude_leaks_of="clotho")
    assert [row["id"] for row in rows] == ["b.wav"]


# ---- Parquet ----


@pytest.fixture
def parquet(tmp_path):
    """A table as `datasets` writes it, with the bytes of each clip."""
    import pyarrow
    import pyarrow.parquet

    write_sounds(tmp_path, "a.wav", "b.wav")
    held = [{"bytes": (tmp_path / name).read_bytes(), "path": name} for name in ("a.wav", "b.wav")]
    table = pyarrow.table({"audio": held, "caption": ["rain", "wind"]})
    pyarrow.parquet.write_table(table, tmp_path / "metadata.parquet")
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).unlink()
    return tmp_path / "metadata.parquet"


def test_parquet_that_holds_the_sound_itself_is_read(parquet):
    rows = load_corpus("audiofolder", parquet.parent, audio_column="audio")
    assert [row["id"] for row in rows] == ["a.wav", "b.wav"]
    assert len(CaptionedClips(rows)[1]["audio"]) == 1600


def test_parquet_that_was_cut_short_is_said_to_be_no_parquet(parquet):
    parquet.write_bytes(parquet.read_bytes()[:-200])
    with pytest.raises(DataError, match="metadata.parquet is not Parquet, or ends early: .*write it again"):
        read_table(parquet)


def test_parquet_that_is_a_pointer_is_said_to_be_one(tmp_path):
    path = text(tmp_path / "t.parquet", "version https", "oid sha256:00", "size 1")
    with pytest.raises(DataError, match="t.parquet is a Git LFS pointer"):
        read_table(path)


def test_a_cell_too_long_for_a_file_name_is_a_missing_file(tmp_path):
    table = [{"file_name": "x" * 5000, "caption": "rain"}]
    (row,) = table_rows(table, tmp_path / "t.csv")
    assert row["audio"] is None
