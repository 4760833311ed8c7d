"""The data of a recipe: own files, corpora, mixtures, languages, what is left out, and the manifest."""

import json

import numpy as np
import pytest
import soundfile

from supclap.data import CaptionedClips, CorpusMixture, build_manifest, load_corpus, load_splits, read_table
from supclap.data.arguments import DataArguments
from supclap.data.columns import ColumnMapping
from supclap.data.dataset import draw_caption
from supclap.data.languages import tokenizer_codes
from supclap.data.manifest import save_manifest, source_of
from supclap.data.open_rows import open_rows
from supclap.data.tables import table_rows
from supclap.data.waveform_cache import WaveformCache
from supclap.errors import DataError
from supclap.files import MANIFEST


RATE = 16000


def sound(path, seed=0, samples=1600):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.1 * np.random.default_rng(seed).standard_normal(samples).clip(-3, 3), RATE)


@pytest.fixture
def esc(tmp_path):
    """Ten clips in five folds, two a fold; the first two folds share a recording."""
    table = ["filename,fold,target,category,esc10,src_file,take"]
    for i in range(10):
        name = f"{i // 2 + 1}-{i}-A-0.wav"
        table.append(f"{name},{i // 2 + 1},0,{'dog' if i % 2 else 'rain'},True,{1 if i == 2 else i},A")
        sound(tmp_path / "audio" / name, i)
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/esc50.csv").write_text("\n".join(table))
    return tmp_path


def esc_arguments(folder, **changes) -> DataArguments:
    splits = {"train_splits": [1, 3, 4], "validation_splits": [5], "test_splits": [2]}
    return DataArguments(**{"corpus": "esc50", "data_dir": str(folder), **splits, **changes})


def test_a_recipe_names_a_corpus_and_its_splits(esc, capsys):
    splits = load_splits(esc_arguments(esc))
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 5, "validation": 2, "test": 2}
    # recording 1 is in fold 2, the test
    assert "dropped 1 training clips" in capsys.readouterr().out
    assert splits["train"].removed == [
        {"id": "esc50/1-1-A-0.wav", "reason": "leak: freesound:1 is in validation or test"}
    ]


def test_a_corpus_without_official_splits_needs_them_named(esc):
    with pytest.raises(DataError, match="train_splits is not set"):
        load_splits(esc_arguments(esc, train_splits=None))


@pytest.mark.parametrize(
    "key", ["train_file", "split_column", "audio_column", "caption_columns", "label_column", "label_captions"]
)
def test_keys_of_a_table_next_to_a_corpus_are_refused(esc, key):
    value = {"caption_columns": ["text"], "label_captions": {"dog": ["a dog"]}}.get(key, "x")
    with pytest.raises(DataError, match=f"corpus is set .*is {key}, which .*corpus_options"):
        load_splits(esc_arguments(esc, **{key: value}))


def test_a_recipe_leaves_out_the_recordings_of_leak_lists(esc):
    listed = {"AudioSet": [], "FreeSound": ["4", "6"]}
    (esc / "blacklist_exclude_test_ac.json").write_text(json.dumps(listed))
    rows = load_splits(esc_arguments(esc, exclude_leaks_of=["clotho"]))["train"]
    assert sorted(row["recording"] for row in rows) == ["freesound:0", "freesound:5", "freesound:7"]


def test_audio_that_cannot_be_opened_is_named_or_left_out_and_noted(esc):
    (esc / "audio/3-4-A-0.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(DataError, match=r"train: the audio of 1 of 5 clips cannot be used: row .*3-4-A-0.wav"):
        load_splits(esc_arguments(esc))
    rows = load_splits(esc_arguments(esc, skip_bad=True))["train"]
    assert "esc50/3-4-A-0.wav" not in [row["id"] for row in rows]
    assert [item["id"] for item in rows.removed] == ["esc50/1-1-A-0.wav", "esc50/3-4-A-0.wav"]


def test_the_list_of_what_was_left_out_names_no_folder(esc, tmp_path):
    (esc / "audio/3-4-A-0.wav").write_bytes(b"RIFF no sound")
    reason = load_splits(esc_arguments(esc, skip_bad=True))["train"].removed[-1]["reason"]
    assert "3-4-A-0.wav" in reason
    assert str(tmp_path) not in reason


@pytest.mark.parametrize("form", [bytes, memoryview, lambda data: {"bytes": data, "path": None}])
def test_audio_held_as_bytes_is_opened_and_not_decoded(tmp_path, monkeypatch, form):
    from supclap.data import inspection

    sound(tmp_path / "a.wav")
    audio = form((tmp_path / "a.wav").read_bytes())
    monkeypatch.setattr(inspection, "decode", lambda *_: pytest.fail("decoded"))
    rows = [{"id": "a", "audio": audio}, {"id": "b", "audio": {"bytes": None, "path": str(tmp_path / "a.wav")}}]
    assert inspection.drop_undecodable(rows, "train", skip_bad=False) is rows


def test_bytes_that_are_no_audio_are_refused():
    from supclap.data.inspection import drop_undecodable

    with pytest.raises(DataError, match="1 of 1 clips cannot be used"):
        drop_undecodable([{"id": "a", "audio": {"bytes": b"RIFF no sound"}}], "train", skip_bad=False)


def test_rows_of_folds_say_their_fold(esc):
    assert [row["fold"] for row in load_corpus("esc50", esc, [5, 1])] == [5, 5, 1, 1]


def test_skip_bad_finds_files_that_break_off_in_the_middle(esc):
    path = esc / "audio/3-4-A-0.flac"
    (esc / "audio/3-4-A-0.wav").unlink()
    sound(path, samples=RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert soundfile.info(path).frames == RATE  # its head is whole
    rows = load_splits(esc_arguments(esc, skip_bad=True))["train"]
    assert "esc50/3-4-A-0.wav" not in [row["id"] for row in rows]


def test_a_file_that_breaks_off_is_named_before_training_and_no_other_is_decoded(esc, monkeypatch):
    from supclap.data import inspection

    path = esc / "audio/3-4-A-0.flac"
    (esc / "audio/3-4-A-0.wav").unlink()
    sound(path, samples=RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    decoded, decode = [], inspection.decode
    monkeypatch.setattr(inspection, "decode", lambda file, name: decoded.append(name) or decode(file, name))
    with pytest.raises(DataError, match="1 of 5 clips cannot be used: row 1: clip .esc50/3-4-A-0.wav"):
        load_splits(esc_arguments(esc))
    assert decoded == ["clip 'esc50/3-4-A-0.wav'"]


def test_a_clip_shorter_than_a_frame_is_named_before_training(esc):
    sound(esc / "audio/3-4-A-0.wav", samples=48)
    with pytest.raises(DataError, match="1 of 5 clips cannot be used: row .*too short, 3.0 ms"):
        load_splits(esc_arguments(esc))


@pytest.mark.parametrize("max_duration", [None, 0.05])
def test_bad_audio_met_in_training_is_named_with_how_to_find_all_of_it(tmp_path, max_duration):
    soundfile.write(tmp_path / "a.wav", np.full(1600, np.nan, np.float32), RATE, subtype="FLOAT")
    (tmp_path / "metadata.csv").write_text("file_name,caption\na.wav,rain")
    args = DataArguments(data_dir=str(tmp_path), train_file="metadata.csv", caption_columns=["caption"])
    rows = load_splits(args)["train"]  # the file opens
    with pytest.raises(DataError, match="clip 'a.wav'.* is nan.*`supclap data check`.*skip_bad: true"):
        CaptionedClips(rows, max_duration=max_duration)[0]


# ---- Tables of your own ----


def test_one_row_a_caption_is_one_clip_wherever_the_rows_stand(tmp_path):
    sound(tmp_path / "a.wav")
    (tmp_path / "t.csv").write_text("file_name;caption;language\na.wav;one;en\nb.wav;two;en\na.wav;drei;de\n")
    first, second = table_rows(read_table(tmp_path / "t.csv"), tmp_path / "t.csv")
    assert (first["captions"], first["language"]) == (["one", "drei"], ["en", "de"])
    assert (second["captions"], second["audio"]) == (["two"], None)


def json_lines(path, *records):
    path.write_text("\n".join(map(json.dumps, records)))
    return list(table_rows(read_table(path), path, ColumnMapping("file_name", [], "label")))


def test_labels_that_are_numbers_are_labels_and_minus_one_or_nothing_is_none(tmp_path):
    sound(tmp_path / "a.wav")
    values = [0, 3, "7", -1, "-1", None, "", float("nan")]
    rows = json_lines(
        tmp_path / "t.jsonl", *({"id": i, "file_name": "a.wav", "label": v} for i, v in enumerate(values))
    )
    assert [row.get("label") for row in rows] == ["0", "3", "7", *[None] * 5]
    assert [row.get("group") for row in rows] == ["0", "3", "7", *[None] * 5]
    assert [row["captions"] for row in rows[:1] + rows[3:]] == [["This is a sound of 0."], *[[]] * 5]
    assert [row["id"] for row in rows] == [str(i) for i in range(8)]


def test_captions_by_label_take_numbers_and_refuse_or_leave_out_unlabelled_clips(tmp_path):
    sound(tmp_path / "a.wav")
    records = [{"id": i, "file_name": "a.wav", "label": label} for i, label in enumerate((0, 1, -1))]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, records)))
    options = {"data_dir": str(tmp_path), "train_file": "t.jsonl", "label_column": "label"}
    options["label_captions"] = {0: ["rain"], 1: ["wind"]}
    with pytest.raises(DataError, match="1 of 3 rows cannot be used: row 2 .*needs `captions`"):
        load_splits(DataArguments(**options))
    rows = load_splits(DataArguments(**options, skip_bad=True))["train"]
    assert [(row["captions"], row["group"]) for row in rows] == [(["rain"], "0"), (["wind"], "1")]
    assert [item["id"] for item in rows.removed] == ["2"]


def test_a_group_zero_is_a_group():
    array = {"array": np.zeros(RATE, np.float32), "sampling_rate": RATE}
    assert CaptionedClips([{"id": "x", "audio": array, "captions": ["a"], "group": 0}])[0]["group"] == 0


def test_records_that_lack_a_key_count_as_rows_without_its_value(tmp_path):
    sound(tmp_path / "a.wav")
    records = [{"file_name": "a.wav"}, {"file_name": "a.wav", "id": "b", "text": "x"}, {"text": "y"}, {"text": "z"}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, records)))
    rows = list(table_rows(read_table(tmp_path / "t.jsonl"), tmp_path / "t.jsonl"))
    assert [(row["id"], row["audio"] is None, row["captions"]) for row in rows] == [
        ("a.wav", False, []),
        ("b", False, ["x"]),
        ("row 2", True, ["y"]),
        ("row 3", True, ["z"]),
    ]


def test_parquet_and_json_lines_hold_captions_as_lists(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"file_name": "a.wav", "captions": ["one", "two"]}, {"file_name": "b.wav", "captions": ["three"]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("t.parquet", "t.jsonl"):
        found = table_rows(read_table(tmp_path / name), tmp_path / name)
        assert [row["captions"] for row in found] == [["one", "two"], ["three"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", '{"file_name": "a"}\n{"file_name":', "t.jsonl, line 2: not JSON"),
        ("t.jsonl", "[1, 2]", "one object a line"),
        ("t.parquet", "version x\noid sha256:0\n", "Git LFS pointer"),
        ("t.csv", "file_name,caption,caption\na,b,c\n", "has the column caption twice"),
        ("t.csv", 'file_name,caption\na.wav,"[""one"","\n', "no JSON list of captions"),
        ("t.csv", "file_name,words\na.wav,b\n", "no column of captions that can be told"),
    ],
)
def test_a_broken_table_is_refused_with_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        list(table_rows(read_table(tmp_path / name), tmp_path / name))


def test_an_audiofolder_has_its_classes_or_its_metadata_by_folder(tmp_path):
    for name in ("train/dog/1.wav", "train/big_cat/2.wav", "test/dog/train.wav"):
        sound(tmp_path / name)
    rows = load_corpus("audiofolder", tmp_path, "train", template="a {}")
    assert [(row["label"], row["captions"]) for row in rows] == [("big_cat", ["a big cat"]), ("dog", ["a dog"])]
    # a file called train is no split of its own, as it is in `datasets`
    assert len(load_corpus("audiofolder", tmp_path, "test")) == 1
    (tmp_path / "train/metadata.csv").write_text("file_name,text,licence\ndog/1.wav,a dog,CC0\n")
    (row,) = load_corpus("audiofolder", tmp_path, "train")
    assert (row["captions"], row["licence"]) == (["a dog"], "CC0")


def test_the_metadata_of_an_audiofolder_wins_over_its_folders(tmp_path):
    for name in ("train/1.wav", "dog/2.wav", "val/3.wav", "test/4.wav"):
        sound(tmp_path / name)
    lines = ["file_name,caption", "train/1.wav,one", "dog/2.wav,two", "val/3.wav,three", "test/4.wav,four"]
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    found = {split: load_corpus("audiofolder", tmp_path, split) for split in ("train", "validation", "test")}
    assert {split: [row["captions"] for row in rows] for split, rows in found.items()} == {
        "train": [["one"], ["two"]],
        "validation": [["three"]],
        "test": [["four"]],
    }
    assert {split: len(rows) for split, rows in open_rows(tmp_path).items()} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }


def test_the_split_column_of_an_audiofolder_tells_the_splits(tmp_path):
    for name in "abc":
        sound(tmp_path / f"{name}.wav")
    table = tmp_path / "metadata.csv"
    table.write_text("file_name,caption,split\na.wav,one,train\nb.wav,two,val\nc.wav,three,test\n")
    for split, caption in (("train", "one"), ("validation", "two"), ("test", "three")):
        assert [row["captions"] for row in load_corpus("audiofolder", tmp_path, split)] == [[caption]]
    assert list(open_rows(tmp_path)) == ["train", "validation", "test"]
    with pytest.raises(DataError, match="no row is of the split 'other'; there are test, train, validation"):
        load_corpus("audiofolder", tmp_path, "other")
    table.write_text("file_name,caption,split\na.wav,one,train\nb.wav,two,\n")
    with pytest.raises(DataError, match="row 1: no value in the column split"):
        load_corpus("audiofolder", tmp_path)


def test_clips_of_two_splits_have_ids_of_their_own(tmp_path):
    for split in ("train", "test"):
        sound(tmp_path / split / "1.wav")
        (tmp_path / split / "metadata.csv").write_text("file_name,caption\n1.wav,x\n")
    ids = [row["id"] for split in ("train", "test") for row in load_corpus("audiofolder", tmp_path, split)]
    assert ids == ["train/1.wav", "test/1.wav"]


# ---- Mixtures ----


def parts(**sizes) -> dict[str, list[dict]]:
    return {
        name: [{"id": f"{name}/{i}", "audio": "", "captions": [name]} for i in range(size)]
        for name, size in sizes.items()
    }


def test_each_corpus_gives_its_share_of_an_epoch():
    mixture = CorpusMixture(parts(a=100, b=10), {"a": 3, "b": 1}, size=40)
    sources = [row["captions"][0] for row in mixture]
    assert {name: sources.count(name) for name in "ab"} == {"a": 30, "b": 10}


def test_epochs_walk_through_a_corpus_before_a_clip_comes_again():
    mixture = CorpusMixture(parts(a=100, b=10), {"a": 1, "b": 1}, size=50)
    seen = []
    for epoch in range(4):
        mixture.set_epoch(epoch)
        seen += [row["id"] for row in mixture if row["captions"] == ["a"]]
    assert len(set(seen)) == 100
    again = CorpusMixture(parts(a=100, b=10), {"a": 1, "b": 1}, size=50)
    again.set_epoch(3)
    assert [row["id"] for row in again] == [row["id"] for row in mixture]


def test_a_clip_that_an_epoch_repeats_is_cropped_anew():
    wave = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    row = {"id": "one", "audio": {"array": wave, "sampling_rate": RATE}, "captions": ["a"]}
    data = CaptionedClips(CorpusMixture({"a": [row]}, size=4), max_duration=0.1)
    starts = {tuple(data[index]["audio"][:4]) for index in range(4)}
    assert len(starts) == 4


@pytest.mark.parametrize("weights", [{"a": 1}, {"a": 1, "b": 0}, {"a": 1, "b": -1}])
def test_wrong_weights_are_named(weights):
    with pytest.raises(DataError, match="a weight above 0"):
        CorpusMixture(parts(a=2, b=2), weights)


def test_a_recipe_mixes_corpora_for_training(esc, tmp_path):
    own = tmp_path / "own"
    for index in range(3):
        sound(own / f"frog/{index}.wav", 50 + index)
    corpora = [
        {"corpus": "esc50", "data_dir": str(esc), "splits": [1, 3], "weight": 1},
        {"corpus": "audiofolder", "data_dir": str(own), "weight": 3, "options": {"template": "a {}"}},
    ]
    arguments = esc_arguments(esc, train_splits=None, corpora=corpora, epoch_size=12)
    splits = load_splits(arguments)
    captions = [row["captions"][0] for row in splits["train"]]
    assert captions.count("a frog") == 9
    described = build_manifest(splits)["splits"]["train"]
    assert described["mixture"] == {"esc50": 3, "audiofolder": 9}
    assert described["n_clips"] == 3 + 3  # one of the four of ESC-50 leaks
    corpora[0]["colour"] = 1
    with pytest.raises(DataError, match="corpora, entry 0"):
        load_splits(arguments)


# ---- Languages ----

TRANSLATED = {"id": "x", "captions": ["one", "two", "three", "eins"], "language": ["en", "en", "en", "de"]}


def test_a_language_is_drawn_by_its_weight_whatever_the_number_of_its_captions():
    rng = np.random.default_rng(0)
    drawn = [draw_caption(TRANSLATED, rng, {"en": 1, "de": 1}) for _ in range(2000)]
    # a fair coin: four standard deviations
    assert np.mean(np.array(drawn) == 3) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(2000))
    assert {draw_caption(TRANSLATED, rng, {"de": 1}) for _ in range(20)} == {3}
    with pytest.raises(ValueError, match="captions in .'de', 'en'., and language_weights weights .'fr'"):
        draw_caption(TRANSLATED, rng, {"fr": 1})


def test_languages_reach_tokenizers_that_take_one_in_their_codes():
    class Nllb:
        src_lang = "eng_Latn"

    assert tokenizer_codes(Nllb(), ["en", "jpn_Jpan", "de"]) == ["eng_Latn", "jpn_Jpan", "deu_Latn"]
    assert tokenizer_codes(Nllb(), [None, None]) is None
    assert tokenizer_codes(object(), ["en"]) is None
    with pytest.raises(ValueError, match="others do not"):
        tokenizer_codes(Nllb(), ["en", None])


def test_a_sample_carries_the_language_of_its_caption(esc):
    row = load_splits(esc_arguments(esc))["train"][0]
    sample = CaptionedClips([row | {"captions": ["Hund"], "language": ["de"]}])[0]
    assert (sample["text"], sample["language"]) == ("Hund", "de")


# ---- Manifest and memory ----


def test_the_manifest_holds_ids_hashes_sources_licences_and_what_was_left_out(esc, tmp_path):
    import hashlib

    (esc / "audio/3-4-A-0.wav").unlink()
    manifest = build_manifest(load_splits(esc_arguments(esc, skip_bad=True)))
    saved = json.loads(save_manifest(manifest, tmp_path / "run").read_text())
    assert (tmp_path / "run" / MANIFEST).is_file()
    assert saved == json.loads(json.dumps(manifest))
    train = saved["splits"]["train"]
    digest = hashlib.blake2b((esc / "audio/1-0-A-0.wav").read_bytes(), digest_size=16).hexdigest()
    assert ["esc50/1-0-A-0.wav", digest] in train["clips"]
    assert train["sources"] == {"freesound": 4}
    assert train["licences"] == {"CC BY 3.0": 4}
    assert (train["n_clips"], train["n_captions"], train["n_removed"]) == (4, 4, 2)
    assert {item["reason"][:7] for item in train["removed"]} == {"no audi", "leak: f"}


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("youtube:abc", "youtube"),
        ("https://sounds.example.org/s/1/", "sounds.example.org"),
        ("a package: its/file.flac http://elsewhere.example.org/1", "a package"),
        (None, "not stated"),
    ],
)
def test_sources_are_counted_without_the_names_of_clips(source, kind):
    assert source_of({"source": source}) == kind


def test_the_cache_of_waveforms_is_bounded_by_bytes():
    loaded = []

    def load(key):
        loaded.append(key)
        return np.zeros(key, np.uint8)

    cache = WaveformCache(load, max_bytes=100)
    for key in (40, 50, 40, 30, 40, 50, 200):
        assert len(cache(key)) == key
        assert cache.size <= 100
    # 40 was used last when 30 pushed 50 out; 200 is never kept
    assert loaded == [40, 50, 30, 50, 200]
