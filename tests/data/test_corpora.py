"""The corpora: rows of the shape of the published files, one per quirk."""

import json
from pathlib import Path

import pytest

from supclap.data import load_corpus
from supclap.data.audio_index import AudioIndex
from supclap.data.corpora import CORPORA, corpus_module
from supclap.data.leaks import exclude_leaks, read_leak_list
from supclap.data.text_files import read_csv
from supclap.errors import DataError
from support.builders import write_sounds


VIDEO = "-AbCdEfGhI0"  # ids may begin with a hyphen
OTHER = "_bCdEfGhIj1"


def text(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))
    return path


def lines(*rows: str, end: str = "\n") -> str:
    return end.join(rows) + end


AUDIOCAPS = (
    "audiocap_id,youtube_id,start_time,caption",
    f'1,{VIDEO},30,"Rain, then thunder"',
    f"2,{OTHER},0,A dog’s bark ",
    f"3,{VIDEO},30,Rain falls",
)
# the same, saved anew by a spreadsheet with a semicolon as its delimiter
RESAVED = (
    "audiocap_id;youtube_id;start_time;caption;",
    f"1;{VIDEO};30,0;Rain, then thunder;",
    f"2;{OTHER};0;A dog’s bark ;",
    f'3;{VIDEO};30,0;"Rain falls";',
)


@pytest.fixture
def audiocaps(tmp_path):
    text(tmp_path / "test.csv", lines(*AUDIOCAPS, end="\r\n"))
    write_sounds(tmp_path, f"audio/Y{VIDEO}.wav", f"audio/{OTHER}_0.flac")
    return tmp_path


def test_audiocaps_rows_of_a_clip_are_joined_wherever_they_stand(audiocaps):
    first, second = load_corpus("audiocaps", audiocaps, "test")
    assert first["captions"] == ["Rain, then thunder", "Rain falls"]
    assert second["captions"] == ["A dog’s bark"]
    assert first["id"] == f"audiocaps/{VIDEO}"
    assert first["recording"] == f"youtube:{VIDEO}"
    assert [Path(row["audio"]).name for row in (first, second)] == [f"Y{VIDEO}.wav", f"{OTHER}_0.flac"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_table_saved_anew_by_a_spreadsheet_gives_the_same_rows(audiocaps, encoding, end):
    published = load_corpus("audiocaps", audiocaps, "test")
    text(audiocaps / "test.csv", lines(*RESAVED, end=end), encoding)
    assert load_corpus("audiocaps", audiocaps, "test") == published


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https\noid sha256:00\nsize 1\n", "Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html>\n<html></html>", "is a web page"),
        (b"PK\x03\x04 and so on", "an archive or a spreadsheet"),
        (b" \n", "is empty"),
        ("\n".join(AUDIOCAPS).encode("cp1252"), "line 3: byte 0x92 is not UTF-8"),
        ("\n".join(AUDIOCAPS).replace(VIDEO, "#NAME?").encode(), "row 1: '#NAME.' is no YouTube id"),
        (
            "\n".join(AUDIOCAPS).replace('"Rain, then thunder"', "Rain, then").encode(),
            "line 2: 5 fields .* should be 4",
        ),
        ("\n".join(AUDIOCAPS).replace('thunder"', "thunder").encode(), "line [34]: .*unbalanced quote"),
        ("\n".join(AUDIOCAPS).replace("caption", "captoin").encode(), "lacks some of the columns"),
        ("\n".join(AUDIOCAPS).replace(",30,", ",0x1e,").encode(), "'0x1e' is no whole number"),
    ],
)
def test_a_table_that_cannot_be_read_right_is_refused_with_the_reason(audiocaps, content, message):
    (audiocaps / "test.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_corpus("audiocaps", audiocaps, "test")


def test_an_unclosed_quote_at_the_end_of_a_file_is_refused(tmp_path):
    text(tmp_path / "a.csv", 'name,caption\na.wav,"never closed\nb.wav,lost\n')
    with pytest.raises(DataError, match="a.csv, line 3: .*unbalanced quote"):
        read_csv(tmp_path / "a.csv")


def test_captions_in_another_language_are_joined_with_their_codes(audiocaps):
    text(audiocaps / "ja" / "test.csv", lines(AUDIOCAPS[0], f"1,{VIDEO},30,雨が降る", f"2,{OTHER},0,犬が吠える"))
    first, second = load_corpus("audiocaps", audiocaps, "test", languages=["en", "ja"])
    assert first["captions"] == ["Rain, then thunder", "Rain falls", "雨が降る"]
    assert first["language"] == ["en", "en", "ja"]
    only = load_corpus("audiocaps", audiocaps, "test", languages=["ja"])
    assert [row["captions"] for row in only] == [["雨が降る"], ["犬が吠える"]]


def caption_json(path: Path, *records: dict, captions: int = 2) -> Path:
    return text(path, json.dumps({"num_captions_per_audio": captions, "data": records}))


def test_the_json_form_takes_the_file_here_and_the_languages_it_says(tmp_path):
    record = {"caption_1": "one", "caption_2": "zwei", "source_lang_1": "eng_Latn", "source_lang_2": "deu_Latn"}
    record |= {"wav": f"AudioCaps/test/Y{VIDEO}.wav", "audio": f"/elsewhere/Y{VIDEO}.wav", "id": f"Y{VIDEO}.wav"}
    caption_json(tmp_path / "AudioCaps_test.json", record | {"duration": 10})
    write_sounds(tmp_path, f"wavs/Y{VIDEO}.wav")
    (row,) = load_corpus("audiocaps", tmp_path, "test")
    assert row["audio"] == str(tmp_path / f"wavs/Y{VIDEO}.wav")
    assert (row["captions"], row["language"]) == (["one", "zwei"], ["eng_Latn", "deu_Latn"])
    assert (row["id"], row["duration"]) == (f"audiocaps/{VIDEO}", 10.0)


def test_the_json_form_is_refused_where_it_contradicts_itself(tmp_path):
    caption_json(tmp_path / "test.json", {"caption_1": "one", "id": f"Y{VIDEO}.wav"}, captions=5)
    with pytest.raises(DataError, match="record 0 .* has 1 captions, should have 5"):
        load_corpus("audiocaps", tmp_path, "test")


def test_the_csv_form_of_wavcaps_is_read_as_audiocaps(tmp_path):
    text(tmp_path / "csv_files/val.csv", lines("file_name,caption_1,caption_2", f'Y{VIDEO}.wav,one,"two, three"'))
    write_sounds(tmp_path, f"Y{VIDEO}.wav")
    (row,) = load_corpus("audiocaps", tmp_path, "val")
    assert (row["id"], row["captions"]) == (f"audiocaps/{VIDEO}", ["one", "two, three"])


def test_clotho_names_with_spaces_commas_and_entities_are_found(tmp_path):
    rows = [" rain.wav", '"a, b#1.wav.wav"', "bells &amp; birds.wav", "Caf\u00e9.wav"]
    header = "file_name," + ",".join(f"caption_{k}" for k in range(1, 6))
    text(tmp_path / "clotho_captions_evaluation.csv", lines(header, *(f"{row},1a, 2a ,3a,4a,5a" for row in rows)))
    decomposed = "Cafe\u0301.flac"
    write_sounds(
        tmp_path, *(f"evaluation/{name}" for name in ("rain.wav", "a, b#1.wav.wav", "bells & birds.wav", decomposed))
    )
    found = load_corpus("clotho", tmp_path, "evaluation")
    assert [Path(row["audio"]).name for row in found][:3] == ["rain.wav", "a, b#1.wav.wav", "bells & birds.wav"]
    assert found[0]["captions"] == ["1a", "2a", "3a", "4a", "5a"]
    assert found[0]["id"] == "clotho/test/rain.wav"


def test_clotho_audio_of_a_split_comes_from_its_folder(tmp_path):
    for split in ("development", "validation"):
        text(tmp_path / f"clotho_captions_{split}.csv", lines("file_name,caption_1", "rain.wav,rain"))
        write_sounds(tmp_path, f"{split}/rain.wav")
    (row,) = load_corpus("clotho", tmp_path, "validation")
    assert row["audio"] == str(tmp_path / "validation/rain.wav")
    both = load_corpus("clotho", tmp_path, ["train", "validation"])
    assert len({row["id"] for row in both}) == 2


def test_a_name_that_two_folders_have_is_refused(tmp_path):
    write_sounds(tmp_path, "a/rain.wav", "b/rain.wav")
    with pytest.raises(DataError, match="Several files go by the name 'rain.wav'.*audio_dir"):
        AudioIndex(tmp_path).find("rain.wav")


def test_clotho_metadata_in_latin_1_gives_recording_licence_and_author(tmp_path):
    text(
        tmp_path / "development_captions.csv",
        lines("fname,raw_text,text", "a.wav,A B.,a b", "b.wav,C,c", "a.wav,D!,d"),
    )
    header = "file_name,keywords,sound_id,sound_link,start_end_samples,manufacturer,license"
    metadata = lines(header, 'a.wav,x;y,0123,link,"[0, 1]",J\u00f6rg,CC0', "b.wav,,Not found,,,,")
    text(tmp_path / "clotho_metadata_development.csv", metadata, "latin-1")
    write_sounds(tmp_path, "a.wav", "b.wav")
    first, second = load_corpus("clotho", tmp_path)
    assert first["captions"] == ["A B.", "D!"]
    assert (first["recording"], first["licence"], first["author"]) == ("freesound:123", "CC0", "J\u00f6rg")
    assert "recording" not in second


def test_wavcaps_sources_are_told_apart_and_recordings_spelt_alike(tmp_path):
    caption_json(
        tmp_path / "json_files/AudioSet_SL/as_final.json", {"id": f"Y{VIDEO}.wav", "caption": "x"}, captions=1
    )
    caption_json(tmp_path / "json_files/FreeSound/fsd_final.json", {"id": "77", "caption": "y"}, captions=1)
    sb = {"id": "77", "caption": "z", "audio": "wav_path", "download_link": "link", "author": "someone"}
    caption_json(tmp_path / "json_files/SoundBible/sb_final.json", sb, captions=1)
    write_sounds(
        tmp_path, f"waveforms/AudioSet_SL/Y{VIDEO}.flac", "waveforms/FreeSound/77.flac", "waveforms/SoundBible/77.flac"
    )
    rows = load_corpus("wavcaps", tmp_path, sources=["audioset", "freesound", "soundbible"])
    assert [row["recording"] for row in rows] == [f"youtube:{VIDEO}", "freesound:77", "soundbible:77"]
    assert [Path(row["audio"]).parent.name for row in rows] == ["AudioSet_SL", "FreeSound", "SoundBible"]
    assert rows[2]["author"] == "someone"
    with pytest.raises(DataError, match="No WavCaps file of bbc"):
        load_corpus("wavcaps", tmp_path)


def wavcaps_numbers(folder: Path, *audio: str) -> Path:
    """FreeSound and SoundBible with a clip 77 each."""
    caption_json(folder / "json_files/FreeSound/fsd_final.json", {"id": "77", "caption": "y"}, captions=1)
    caption_json(folder / "json_files/SoundBible/sb_final.json", {"id": "77", "caption": "z"}, captions=1)
    write_sounds(folder, *audio)
    return folder


@pytest.mark.parametrize("sources", [["freesound", "soundbible"], ["soundbible"]])
def test_wavcaps_never_takes_the_audio_of_another_source(tmp_path, sources):
    wavcaps_numbers(tmp_path, "waveforms/FreeSound/77.flac")
    with pytest.raises(DataError, match="row .*wavcaps/soundbible/77|none of the 1 clips"):
        load_corpus("wavcaps", tmp_path, sources=sources)


def test_wavcaps_looks_for_the_folder_of_a_source_in_audio_dir(tmp_path):
    wavcaps_numbers(tmp_path, "other/FreeSound/77.flac", "other/deep/SoundBible_flac/77.flac")
    rows = load_corpus("wavcaps", tmp_path, sources=["freesound", "soundbible"], audio_dir="other")
    assert [Path(row["audio"]).parent.name for row in rows] == ["FreeSound", "SoundBible_flac"]
    (row,) = load_corpus("wavcaps", tmp_path, sources=["soundbible"], audio_dir="other/deep/SoundBible_flac")
    assert Path(row["audio"]).parent.name == "SoundBible_flac"


def test_records_with_wav_alone_are_named_by_it(tmp_path):
    caption_json(tmp_path / "wc/sb_final.json", {"wav": "a/5.wav", "caption": "x"}, captions=1)
    caption_json(tmp_path / "clotho/test.json", {"wav": "b.wav", "caption": "x"}, captions=1)
    write_sounds(tmp_path, "wc/5.wav", "clotho/b.wav")
    (row,) = load_corpus("wavcaps", tmp_path / "wc", sources=["soundbible"])
    assert (row["id"], row["recording"]) == ("wavcaps/soundbible/5.wav", "soundbible:5")
    (row,) = load_corpus("clotho", tmp_path / "clotho", "test")
    assert (row["id"], row.get("recording")) == ("clotho/test/b.wav", None)


def test_macs_takes_the_sentences_of_all_annotators(tmp_path):
    entry = "- filename: park-lyon-1-2-a.wav\n  annotations:\n"
    for number, sentence in enumerate(("birds sing", "people: talking")):
        entry += f"  - {{annotator_id: {number}, sentence: '{sentence}', tags: [birds]}}\n"
    text(tmp_path / "MACS.yaml", "files:\n" + entry)
    write_sounds(tmp_path, "audio/park-lyon-1-2-a.wav")
    (row,) = load_corpus("macs", tmp_path)
    assert row["captions"] == ["birds sing", "people: talking"]
    assert row["recording"] == "tau:park-lyon-1"


@pytest.fixture
def audioset(tmp_path):
    text(tmp_path / "class_labels_indices.csv", lines("index,mid,display_name", "0,/m/0,Speech", '1,/m/1,"Bark, yip"'))
    comments = ("# Segments csv created Sun Mar  5 10:54:31 2017", "# num_ytids=2", "# YTID, start_seconds, …")
    rows = (f'{VIDEO}, 30.000, 40.000, "/m/0,/m/1"', f'{OTHER}, 0.000, 10.000, "/m/1"')
    text(tmp_path / "eval_segments.csv", lines(*comments, *rows))
    write_sounds(tmp_path, f"{VIDEO}_30000_40000.wav", f"{OTHER}.wav")
    return tmp_path


def test_audioset_segments_have_labels_in_words(audioset):
    first, second = load_corpus("audioset", audioset, "eval", template="{}")
    assert first["labels"] == ["Speech", "Bark, yip"]
    assert second["captions"] == ["Bark, yip"]


def test_audioset_captions_of_a_file_take_the_place_of_the_template(audioset):
    caption_json(audioset / "as_final.json", {"id": f"Y{VIDEO}.wav", "caption": "a dog answers"}, captions=1)
    (row,) = load_corpus("audioset", audioset, "test", captions="as_final.json")
    assert row["captions"] == ["a dog answers"]


def test_audioset_strong_labels_come_in_the_order_of_their_events(audioset):
    events = (f"{VIDEO}_30000\t4.0\t5.0\t/m/0", f"{VIDEO}_30000\t0.5\t1.0\t/m/1", f"{VIDEO}_30000\t6.0\t7.0\t/m/1")
    header = "segment_id\tstart_time_seconds\tend_time_seconds\tlabel"
    text(audioset / "audioset_eval_strong.tsv", lines(header, *events))
    (row,) = load_corpus("audioset", audioset, "strong_test")
    assert row["labels"] == ["Bark, yip", "Speech"]


def test_esc50_folds_and_esc10(tmp_path):
    header = "filename,fold,target,category,esc10,src_file,take"
    rows = ("1-1-A-0.wav,1,0,dog,True,1,A", "1-2-A-37.wav,1,37,clock_alarm,False,2,A", "2-3-A-0.wav,2,0,dog,True,3,A")
    text(tmp_path / "meta/esc50.csv", lines(header, *rows))
    write_sounds(tmp_path, *(f"audio/{row.split(',')[0]}" for row in rows))
    fold = load_corpus("esc50", tmp_path, 1)
    assert [row["captions"] for row in fold] == [["This is a sound of dog."], ["This is a sound of clock alarm."]]
    assert fold[1]["label"] == "clock_alarm"
    assert fold[0]["recording"] == "freesound:1"
    assert [row["id"] for row in load_corpus("esc10", tmp_path, [1, 2])] == ["esc50/1-1-A-0.wav", "esc50/2-3-A-0.wav"]
    # a German spreadsheet writes its own word for True
    text(tmp_path / "meta/esc50.csv", lines(header, *rows).replace("True", "WAHR").replace(",", ";"))
    assert len(load_corpus("esc10", tmp_path, [1, 2])) == 2


@pytest.mark.parametrize("column", ["class", "class_name"])
def test_urbansound8k_reads_both_names_of_its_label_column(tmp_path, column):
    header = f"slice_file_name,fsID,start,end,salience,fold,classID,{column}"
    row = "100032-3-0-0.wav,100032,0,0.317551,1,5,3,dog_bark"
    text(tmp_path / "metadata/UrbanSound8K.csv", lines(header, row, end="\r\n"))
    write_sounds(tmp_path, "audio/fold5/100032-3-0-0.wav")
    (clip,) = load_corpus("urbansound8k", tmp_path, 5)
    assert (clip["label"], clip["recording"]) == ("dog_bark", "freesound:100032")


def test_vggsound_is_read_in_both_of_its_forms(tmp_path):
    write_sounds(tmp_path, f"{VIDEO}_000010.wav", f"{OTHER}_000300.wav")
    text(tmp_path / "test.csv", lines(f'{OTHER}_000300.mp4,"bee, wasp, etc. buzzing"', end="\r\n"))
    (row,) = load_corpus("vggsound", tmp_path, "test")
    assert (row["label"], row["id"]) == ("bee, wasp, etc. buzzing", f"vggsound/{OTHER}_000300")
    full = (f'{VIDEO},10,"bee, wasp, etc. buzzing",train', f"{OTHER},300,dog barking,test")
    text(tmp_path / "vggsound.csv", lines(*full))
    assert [row["id"] for row in load_corpus("vggsound", tmp_path, "train")] == [f"vggsound/{VIDEO}_000010"]


def test_fsd50k_takes_its_validation_from_the_development_set(tmp_path):
    rows = ('10,"Bark,Dog",/m/1,train', "11,Rain,/m/2,val")
    text(tmp_path / "FSD50K.ground_truth/dev.csv", lines("fname,labels,mids,split", *rows))
    info = {"11": {"license": "CC0", "uploader": "someone"}}
    text(tmp_path / "FSD50K.metadata/dev_clips_info_FSD50K.json", json.dumps(info))
    write_sounds(tmp_path, "FSD50K.dev_audio/10.wav", "FSD50K.dev_audio/11.wav")
    (row,) = load_corpus("fsd50k", tmp_path, "train")
    assert (row["labels"], row["recording"]) == (["Bark", "Dog"], "freesound:10")
    (row,) = load_corpus("fsd50k", tmp_path, "validation")
    assert (row["licence"], row["author"]) == ("CC0", "someone")


def test_missing_audio_names_the_first_twenty_rows_and_the_count(tmp_path):
    rows = [f"{number},{VIDEO[:-2]}{number:02d},0,caption {number}" for number in range(31)]
    text(tmp_path / "train.csv", lines(AUDIOCAPS[0], *rows))
    write_sounds(tmp_path, f"{VIDEO[:-2]}00.wav")
    with pytest.raises(DataError, match="30 of 31 audio files are missing") as error:
        load_corpus("audiocaps", tmp_path)
    assert str(error.value).count("(id ") == 20
    assert "and 10 more" in str(error.value)
    kept = load_corpus("audiocaps", tmp_path, skip_bad=True)
    assert [row["id"] for row in kept] == [f"audiocaps/{VIDEO[:-2]}00"]
    assert len(kept.removed) == 30
    assert "no audio file" in kept.removed[0]["reason"]


def test_an_empty_caption_is_refused_or_left_out_with_the_clip(audiocaps):
    text(audiocaps / "test.csv", lines(*AUDIOCAPS[:3], f"3,{VIDEO},30,  "))
    with pytest.raises(DataError, match=f"1 of 2 rows cannot be used.*{VIDEO}.*non-empty"):
        load_corpus("audiocaps", audiocaps, "test")
    assert len(load_corpus("audiocaps", audiocaps, "test", skip_bad=True)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "audiocap"}, "there are audiocaps"),
        ({"split": "eval"}, "has no split 'eval'; it has train, validation, test"),
        ({"colour": 1}, "no option colour; its options are annotations"),
        ({"data_dir": "nowhere"}, "is not a folder"),
        ({"version": 3}, "versions 1 and 2"),
        ({"split": "train"}, "No en captions of AudioCaps train"),
    ],
)
def test_wrong_arguments_are_named(audiocaps, arguments, message):
    with pytest.raises(DataError, match=message):
        load_corpus(**{"name": "audiocaps", "data_dir": audiocaps, "split": "test"} | arguments)


# ---- Leaks ----


def test_leak_lists_spell_recordings_as_the_rows_do(tmp_path):
    listed = {"AudioSet": [f"Y{VIDEO}.wav"], "FreeSound": ["77", 78]}
    text(tmp_path / "list.json", json.dumps(listed))
    assert read_leak_list(tmp_path / "list.json") == {f"youtube:{VIDEO}", "freesound:77", "freesound:78"}


def test_rows_on_the_leak_list_of_an_evaluation_are_left_out_and_noted(audiocaps):
    listed = {"AudioSet": [f"Y{OTHER}.wav"], "FreeSound": []}
    text(audiocaps / "blacklist/blacklist_exclude_ub8k_esc50_vggsound.json", json.dumps(listed))
    rows = load_corpus("audiocaps", audiocaps, "test", exclude_leaks_of=["esc50"])
    assert [row["recording"] for row in rows] == [f"youtube:{VIDEO}"]
    assert rows.removed == [{"id": f"audiocaps/{OTHER}", "reason": f"leak: youtube:{OTHER} is in esc50"}]


def test_a_missing_leak_list_or_unknown_recordings_are_errors(audiocaps):
    rows = load_corpus("audiocaps", audiocaps, "test")
    with pytest.raises(DataError, match="blacklist_exclude_test_ac.json, is not under"):
        exclude_leaks(rows, ["clotho"], audiocaps)
    with pytest.raises(DataError, match="'fsd50k' is no evaluation set"):
        exclude_leaks(rows, ["fsd50k"], audiocaps)
    text(audiocaps / "own.csv", lines("recording", f"youtube:{VIDEO}"))
    assert len(exclude_leaks(rows, [str(audiocaps / "own.csv")], audiocaps)) == 1
    for row in rows:
        del row["recording"]
    with pytest.raises(DataError, match="no clip of .* says what recording"):
        exclude_leaks(rows, [str(audiocaps / "own.csv")], audiocaps)


def test_every_corpus_of_the_registry_has_a_loader_that_is_described():
    for name in CORPORA:
        assert corpus_module(name).load.__doc__


def test_a_missing_annotation_file_is_data_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="No captions of Clotho test"):
        load_corpus("clotho", tmp_path, "test")
    with pytest.raises(FileNotFoundError, match="No file at"):
        load_corpus("clotho", tmp_path, "test", annotations="no.csv")
