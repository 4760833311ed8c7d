"""`supclap data prepare`."""

import io
import json
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
import torch

from processing_supclap import load_waveform
from supclap.data import CaptionedClips, load_corpus, load_splits
from supclap.data.arguments import DataArguments
from supclap.data.open_rows import open_recipe
from supclap.data.rows import caption_languages
from supclap.data.shards import _Shard, prepare
from supclap.errors import DataError
from supclap.recipes.parser import parse_recipe
from supclap_cli import main
from support.builders import RATE, tone
from support.shared_data import SHARED, on_shared_data


@pytest.fixture
def originals(tmp_path):
    """Seven clips at three rates, one of them in stereo, with captions in two languages."""
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(0)
    table = ["file_name,captions,language,licence,label"]
    for i in range(7):
        rate = (44100, RATE, 22050)[i % 3]
        wave = 0.1 * rng.standard_normal((rate // 2, 2 if i == 3 else 1))
        soundfile.write(folder / f"{i}.wav", wave, rate, subtype="PCM_16")
        table.append(f'{i}.wav,"[""c{i}"", ""d{i}""]",en,CC0,kind {i}')
    (folder / "metadata.csv").write_text("\n".join(table))
    return folder


def test_training_from_shards_equals_training_from_the_originals(originals, tmp_path, processor):
    rows = load_corpus("audiofolder", originals, label_column="label")
    report = prepare(rows, tmp_path / "out", "train", clips_per_shard=3, progress=False)
    assert [shard["clips"] for shard in report["shards"]] == [3, 3, 1]
    shards = load_corpus("webdataset", tmp_path / "out")
    assert [row["id"] for row in shards] == [row["id"] for row in rows]
    assert [(row["label"], row["licence"], row["language"]) for row in shards] == [
        (row["label"], row["licence"], row["language"]) for row in rows
    ]
    recipe = DataArguments(corpus="webdataset", data_dir=str(tmp_path / "out"))
    assert [row["id"] for row in load_splits(recipe)["train"]] == [row["id"] for row in rows]
    ours, theirs = CaptionedClips(shards, max_duration=0.2), CaptionedClips(rows, max_duration=0.2)
    for index in range(7):
        a, b = ours[index], theirs[index]
        assert (a["text"], a["group"], a["draw"]) == (b["text"], b["group"], b["draw"])
        # half a step of 16 bits, and nothing at all where the original has 16 bits at this rate
        np.testing.assert_allclose(a["audio"], b["audio"], atol=0 if index in (1, 4) else 0.5 / 32768 + 1e-7)
        mel = [processor(audio=x["audio"], sampling_rate=RATE)["input_features"] for x in (a, b)]
        torch.testing.assert_close(*mel, atol=0.1, rtol=0)  # dB


def files(folder) -> dict[str, bytes]:
    """The shards and reports, without what only this machine needs."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name[0] not in "._"}


def test_a_run_that_was_stopped_goes_on_to_the_same_files(originals, tmp_path, monkeypatch):
    rows = load_corpus("audiofolder", originals)
    prepare(rows, tmp_path / "whole", "train", clips_per_shard=2, progress=False)

    class Stop(Exception):
        pass

    written = []
    write = _Shard.write

    def stopping(shard, *arguments):
        if len(written) == 2:
            raise Stop
        written.append(shard.path.name)
        return write(shard, *arguments)

    monkeypatch.setattr(_Shard, "write", stopping)
    with pytest.raises(Stop):
        prepare(rows, tmp_path / "out", "train", clips_per_shard=2, progress=False)
    assert not (tmp_path / "out/train.json").exists()
    monkeypatch.setattr(_Shard, "write", lambda shard, *a: (written.append(shard.path.name), write(shard, *a))[1])
    prepare(rows, tmp_path / "out", "train", clips_per_shard=2, progress=False)
    assert written == [f"train-{number:06d}.tar" for number in range(4)]
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_damaged_shard_is_written_again(originals, tmp_path):
    rows = load_corpus("audiofolder", originals)
    prepare(rows, tmp_path / "out", "train", clips_per_shard=4, progress=False)
    before = files(tmp_path / "out")
    path = tmp_path / "out/train-000001.tar"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    prepare(rows, tmp_path / "out", "train", clips_per_shard=4, progress=False)
    assert files(tmp_path / "out") == before


def test_other_rows_or_settings_are_not_mixed_into_a_folder(originals, tmp_path):
    rows = load_corpus("audiofolder", originals)
    prepare(rows, tmp_path / "out", "train", progress=False)
    with pytest.raises(DataError, match="of another run: sampling_rate differ"):
        prepare(rows, tmp_path / "out", "train", sampling_rate=8000, progress=False)
    with pytest.raises(DataError, match="of another run: rows differ"):
        prepare(rows[:3], tmp_path / "out", "train", progress=False)


@pytest.fixture
def written(monkeypatch):
    """Names of the shards that are written from here on."""
    names = []
    write = _Shard.write
    monkeypatch.setattr(_Shard, "write", lambda shard, *a: (names.append(shard.path.name), write(shard, *a))[1])
    return names


def test_a_shard_is_written_again_when_the_audio_of_a_clip_changes(originals, tmp_path, written):
    rows = load_corpus("audiofolder", originals)
    prepare(rows, tmp_path / "out", "train", clips_per_shard=3, progress=False)
    soundfile.write(originals / "4.wav", tone(), RATE, subtype="PCM_16")
    written.clear()
    prepare(rows, tmp_path / "out", "train", clips_per_shard=3, progress=False)
    assert written == ["train-000001.tar"]
    clip = soundfile.read(io.BytesIO(load_corpus("webdataset", tmp_path / "out")[4]["audio"]))[0]
    np.testing.assert_allclose(clip, tone(), atol=1 / 32768)


@pytest.mark.parametrize("change", [{"language": "de"}, {"licence": "BY"}, {"recording": "r"}, {"captions": ["new"]}])
def test_a_shard_is_written_again_when_what_is_said_of_a_clip_changes(originals, tmp_path, written, change):
    rows = load_corpus("audiofolder", originals)
    prepare(rows, tmp_path / "out", "train", clips_per_shard=3, progress=False)
    rows[6] |= change
    written.clear()
    prepare(rows, tmp_path / "out", "train", clips_per_shard=3, progress=False)
    assert written == ["train-000002.tar"]
    assert change.items() <= load_corpus("webdataset", tmp_path / "out")[6].items()


def test_nothing_is_written_again_when_the_originals_have_moved(originals, tmp_path, written):
    prepare(load_corpus("audiofolder", originals), tmp_path / "out", "train", progress=False)
    moved = originals.rename(tmp_path / "moved")
    written.clear()
    prepare(load_corpus("audiofolder", moved), tmp_path / "out", "train", progress=False)
    assert written == []


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_clip_that_was_repaired_is_taken_in_by_the_same_command(originals, tmp_path, skip_bad):
    good = (originals / "3.wav").read_bytes()
    (originals / "3.wav").write_bytes(b"RIFF nothing")
    command = ["data", "prepare", str(originals), str(tmp_path / "out"), "--quiet"]
    assert main([*command, *["--skip-bad"] * skip_bad]) == 1 - skip_bad
    (originals / "3.wav").write_bytes(good)
    assert main(command) == 0
    assert json.loads((tmp_path / "out/train.json").read_text())["removed"] == []
    assert len(load_corpus("webdataset", tmp_path / "out")) == 7


def test_a_clip_is_taken_in_when_what_its_decoder_lacked_is_installed(originals, tmp_path, monkeypatch):
    import supclap.data.shards as module

    def without_decoder(audio, **options):
        if str(audio).endswith("3.wav"):
            raise ImportError("install torchcodec")
        return load_waveform(audio, **options)

    rows = load_corpus("audiofolder", originals)
    monkeypatch.setattr(module, "load_waveform", without_decoder)
    assert prepare(rows, tmp_path / "out", "train", skip_bad=True, progress=False)["n_clips"] == 6
    monkeypatch.setattr(module, "load_waveform", load_waveform)
    assert prepare(rows, tmp_path / "out", "train", skip_bad=True, progress=False)["n_clips"] == 7


def test_clips_without_a_language_have_none_in_their_shards(originals, tmp_path):
    rows = [
        {key: value for key, value in row.items() if key != "language"}
        for row in load_corpus("audiofolder", originals)
    ]
    prepare(rows, tmp_path / "out", "train", progress=False)
    assert {row.get("language") for row in load_corpus("webdataset", tmp_path / "out")} == {None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clips-per-shard", "0"], "clips_per_shard must be at least 1, got 0"),
        (["--clips-per-shard", "-3"], "clips_per_shard must be at least 1, got -3"),
        (["--sampling-rate", "0"], "sampling_rate must be a whole number of Hz from 1000 to 10000000, got 0"),
        (
            ["--codec", "opus", "--sampling-rate", "22050"],
            "sampling_rate 22050 is none of Opus, which has 8000, 12000",
        ),
    ],
)
def test_settings_of_prepare_that_are_out_of_range_are_refused_by_name(originals, tmp_path, capsys, options, message):
    assert main(["data", "prepare", str(originals), str(tmp_path / "out"), "--quiet", *options]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["[]", "{}"])
def test_a_file_in_the_place_of_the_report_is_not_overwritten(originals, tmp_path, content):
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(DataError, match="train.json is not a report of `supclap data prepare`"):
        prepare(load_corpus("audiofolder", originals), tmp_path, "train", progress=False)


def test_what_a_killed_run_left_half_written_is_removed(originals, tmp_path):
    for name in (
        "train-000000.tar.part47",
        "train.progress.json.part47",
        "train.json.part47",
        "test-000000.tar.part47",
    ):
        (tmp_path / name).write_bytes(b"half")
    prepare(load_corpus("audiofolder", originals), tmp_path, "train", progress=False)
    assert [path.name for path in tmp_path.glob("*.part*")] == ["test-000000.tar.part47"]


def test_a_second_run_on_the_same_split_is_refused_while_the_first_writes(originals, tmp_path, monkeypatch):
    rows = load_corpus("audiofolder", originals)
    write = _Shard.write

    def meanwhile(shard, *arguments):
        with pytest.raises(DataError, match="Another run is writing train"):
            prepare(rows, tmp_path, "train", progress=False)
        return write(shard, *arguments)

    monkeypatch.setattr(_Shard, "write", meanwhile)
    assert prepare(rows, tmp_path, "train", progress=False)["n_clips"] == 7


@pytest.mark.parametrize("codec", ["flac", "opus"])
def test_parquet_shards_load_with_the_original_rows_and_the_audio_of_tar_shards(
    originals, tmp_path, monkeypatch, codec
):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = load_corpus("audiofolder", originals, label_column="label")
    command = ["data", "prepare", str(originals), str(tmp_path / "out"), "--option", "label_column=label", "--quiet"]
    assert main([*command, "--format", "parquet", "--codec", codec, "--clips-per-shard", "3"]) == 0
    names = [f"train-{number:05d}-of-00003.parquet" for number in range(3)]
    assert sorted(path.name for path in (tmp_path / "out/data").iterdir()) == names
    columns = {"id_column": "id", "label_column": "label"}
    shards = load_corpus("hub", tmp_path / "out", "train", **columns)
    assert [row["id"] for row in shards] == [f"{number}.wav" for number in range(7)]
    for ours, theirs in zip(shards, rows, strict=True):
        assert {name: ours[name] for name in ("captions", "label", "licence")} == {
            name: theirs[name] for name in ("captions", "label", "licence")
        }
        assert caption_languages(ours) == caption_languages(theirs)
    recipe = DataArguments(corpus="hub", data_dir=str(tmp_path / "out"), corpus_options=columns)
    prepare(rows, tmp_path / "tar", "train", progress=False, codec=codec)
    tar = load_corpus("webdataset", tmp_path / "tar")
    for ours, theirs in zip(load_splits(recipe)["train"], tar, strict=True):
        np.testing.assert_array_equal(load_waveform(ours["audio"]), load_waveform(theirs["audio"]))


def test_parquet_shards_go_on_and_are_checked_as_tar_shards_are(originals, tmp_path, written):
    rows = load_corpus("audiofolder", originals)
    options = {"clips_per_shard": 3, "progress": False, "form": "parquet"}
    report = prepare(rows, tmp_path, "train", **options)
    before = files(tmp_path / "data")
    assert {shard["name"]: shard["bytes"] for shard in report["shards"]} == {
        f"data/{name}": len(data) for name, data in before.items()
    }
    path = tmp_path / "data/train-00001-of-00003.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    written.clear()
    assert prepare(rows, tmp_path, "train", **options) == report
    assert written == [path.name]
    assert files(tmp_path / "data") == before
    with pytest.raises(DataError, match="of another run: form, codec differ"):
        prepare(rows, tmp_path, "train", codec="opus", clips_per_shard=3, progress=False)


def test_a_language_that_is_not_known_is_null_in_parquet_shards(tmp_path):
    rows = [{"id": "x", "audio": {"array": tone(), "sampling_rate": RATE}, "captions": ["a", "b"]}]
    prepare(rows, tmp_path, "train", progress=False, form="parquet")
    (record,) = pq.read_table(tmp_path / "data/train-00000-of-00001.parquet").to_pylist()
    assert record["language"] == [None, None]


def test_a_split_that_datasets_has_no_name_for_is_refused_as_parquet(originals, tmp_path):
    with pytest.raises(DataError, match="'my-split' is no name of a split of `datasets`"):
        prepare(load_corpus("audiofolder", originals), tmp_path, "my-split", progress=False, form="parquet")


def chord(seconds: float = 2.0) -> np.ndarray:
    """Four decaying tones under noise 40 dB below: what a codec is made for, unlike noise alone."""
    rng = np.random.default_rng(0)
    wave = sum(tone(hertz, seconds, level=0.1) for hertz in (220, 554, 1320, 3100))
    return wave * np.exp(-np.arange(len(wave)) / RATE) + 0.001 * rng.standard_normal(len(wave))


def test_opus_shards_train_as_the_originals_do_but_for_a_thousandth_of_the_sound(tmp_path, processor):
    rows = [{"id": "x", "audio": {"array": chord(), "sampling_rate": RATE}, "captions": ["a chord"]}]
    prepare(rows, tmp_path, "train", progress=False, codec="opus")
    with tarfile.open(tmp_path / "train-000000.tar") as tar:
        assert tar.getnames() == ["00000000.opus", "00000000.json"]
    ours = CaptionedClips(load_corpus("webdataset", tmp_path))[0]["audio"]
    theirs = CaptionedClips(rows)[0]["audio"]
    assert len(ours) == len(theirs)
    noise = np.sum((ours - theirs) ** 2) / np.sum(theirs**2)
    assert noise < 1e-3  # 4e-4, -34 dB, was measured
    got, expected = [processor(audio=x, sampling_rate=RATE)["input_features"] for x in (ours, theirs)]
    loud = expected > expected.max() - 40  # dB; Opus does not keep what is masked
    assert (got - expected).abs()[loud].mean() < 0.2  # dB; 0.11 was measured


@on_shared_data
def test_opus_changes_the_mel_spectrograms_of_recordings_by_less_than_a_decibel(tmp_path, processor):
    paths = sorted((SHARED / "sounds/esc10").glob("*.ogg"))[::12]
    rows = [{"id": path.name, "audio": str(path), "captions": ["a sound"]} for path in paths]
    prepare(rows, tmp_path, "train", progress=False, codec="opus")
    shards = load_corpus("webdataset", tmp_path)
    changes = []
    for ours, theirs in zip(CaptionedClips(shards), CaptionedClips(rows)):
        mel = [processor(audio=x["audio"], sampling_rate=RATE)["input_features"] for x in (ours, theirs)]
        changes.append((mel[0] - mel[1]).abs().mean().item())
    assert np.mean(changes) < 0.6  # dB; 0.39 was measured


def test_missing_shards_are_noticed_before_training(originals, tmp_path):
    prepare(load_corpus("audiofolder", originals), tmp_path, "train", clips_per_shard=4, progress=False)
    (tmp_path / "train-000001.tar").unlink()
    with pytest.raises(DataError, match=r"missing or incomplete: train-000001.tar \(0 of"):
        load_corpus("webdataset", tmp_path)


def test_clips_that_cannot_be_decoded_stop_it_or_are_listed(originals, tmp_path, capsys):
    (originals / "3.wav").write_bytes(b"RIFF nothing")
    assert main(["data", "prepare", str(originals), str(tmp_path / "out"), "--quiet"]) == 1
    assert "1 of 7 clips cannot be used: clip '3.wav'" in capsys.readouterr().err
    assert main(["data", "prepare", str(originals), str(tmp_path / "out"), "--quiet", "--skip-bad"]) == 0
    assert "train: 6 clips" in capsys.readouterr().out
    report = json.loads((tmp_path / "out/train.json").read_text())
    assert [item["id"] for item in report["removed"]] == ["3.wav"]


def test_what_was_left_out_stays_listed_when_prepare_runs_again(originals, tmp_path):
    (originals / "3.wav").write_bytes(b"RIFF nothing")
    command = ["data", "prepare", str(originals), str(tmp_path / "out"), "--quiet", "--skip-bad"]
    assert main(command) == 0
    first = (tmp_path / "out/train.json").read_text()
    assert main(command) == 0
    assert (tmp_path / "out/train.json").read_text() == first
    (removed,) = json.loads(first)["removed"]
    assert removed["id"] == "3.wav"
    assert str(originals) not in removed["reason"]


def test_training_from_shards_takes_the_splits_that_are_there(originals, tmp_path):
    rows = load_corpus("audiofolder", originals)
    for split, chosen in {"train": rows[:4], "validation": rows[4:6]}.items():
        prepare(chosen, tmp_path, split, progress=False)
    recipe = DataArguments(corpus="webdataset", data_dir=str(tmp_path))
    assert {name: len(part) for name, part in load_splits(recipe).items()} == {"train": 4, "validation": 2}


def test_a_waveform_over_full_scale_is_made_quieter_not_clipped(tmp_path):
    wave = 1.5 * tone(level=1.0)
    rows = [{"id": "x", "audio": {"array": wave, "sampling_rate": RATE}, "captions": ["loud"]}]
    assert prepare(rows, tmp_path, "train", progress=False)["peak_reduced"] == 1
    sample = CaptionedClips(load_corpus("webdataset", tmp_path))[0]["audio"]
    np.testing.assert_allclose(sample, wave / np.abs(wave).max(), atol=1 / 32768)


def test_shards_are_tar_files_of_flac_and_json_by_key(originals, tmp_path):
    prepare(load_corpus("audiofolder", originals), tmp_path / "out", "train", clips_per_shard=4, progress=False)
    with tarfile.open(tmp_path / "out/train-000001.tar") as tar:
        names = tar.getnames()
        assert names == [f"{key:08d}.{kind}" for key in (4, 5, 6) for kind in ("flac", "json")]
        details = json.loads(tar.extractfile(names[1]).read())
        audio = soundfile.info(io.BytesIO(tar.extractfile(names[0]).read()))
    assert details["captions"] == ["c4", "d4"]
    assert (audio.samplerate, audio.channels, audio.subtype) == (RATE, 1, "PCM_16")


@pytest.fixture
def clotho(tmp_path):
    """The test split of Clotho with one clip there and one missing."""
    folder = tmp_path / "clotho"
    folder.mkdir()
    header = ",".join(["file_name", *(f"caption_{i}" for i in range(1, 6))])
    table = f"{header}\na.wav,a,b,c,d,e\ngone.wav,a,b,c,d,e\n"
    (folder / "clotho_captions_evaluation.csv").write_text(table)
    (folder / "renamed.csv").write_text(table)
    soundfile.write(folder / "a.wav", tone(), RATE)
    return folder


def test_the_command_takes_the_names_of_splits_and_options_that_load_corpus_takes(clotho, capsys):
    command = ["data", "check", str(clotho), "--corpus", "clotho", "--quiet"]
    assert main([*command, "--split", "evaluation"]) == 1  # a file is missing
    assert "evaluation: 2 clips" in capsys.readouterr().out
    assert main([*command, "--split", "nope"]) == 1
    assert "clotho has no split 'nope'" in capsys.readouterr().err
    assert main([*command, "--option", "nope=1"]) == 1
    assert "clotho has no option nope" in capsys.readouterr().err
    assert main(["data", "check", str(clotho / "renamed.csv"), "--quiet", "--option", "nope=1"]) == 1
    assert "a table has no option nope" in capsys.readouterr().err
    (clotho / "clotho_captions_evaluation.csv").unlink()
    assert main([*command, "--option", "annotations=renamed.csv"]) == 1
    assert "train: 2 clips" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["table", "folder", "corpus", "recipe"])
def test_prepare_leaves_missing_files_out_of_anything_with_skip_bad(originals, clotho, tmp_path, kind):
    (originals / "3.wav").unlink()
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"data:\n  data_dir: {originals}\n  train_file: metadata.csv\n")
    source = {
        "table": [str(originals / "metadata.csv")],
        "folder": [str(originals)],
        "corpus": [str(clotho), "--corpus", "clotho"],
        "recipe": [str(recipe)],
    }[kind]
    command = ["data", "prepare", *source[:1], str(tmp_path / "out"), *source[1:], "--quiet"]
    assert main(command) == 1
    assert main([*command, "--skip-bad"]) == 0
    (report,) = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")]
    assert len(report["removed"]) == 1


def test_prepare_writes_each_corpus_of_a_mixture_in_full(originals, tmp_path):
    recipe = tmp_path / "r.yaml"
    part = f"{{corpus: audiofolder, data_dir: {originals}, weight: 1}}"
    recipe.write_text(f"data:\n  data_dir: {originals}\n  corpora: [{part}, {part}]\n  epoch_size: 4\n")
    rows = open_recipe(parse_recipe([str(recipe)])[1])
    assert {name: len(part) for name, part in rows.items()} == {"audiofolder": 7, "audiofolder_1": 7}
    assert main(["data", "prepare", str(recipe), str(tmp_path / "out"), "--quiet"]) == 0
    assert len(load_corpus("webdataset", tmp_path / "out", "audiofolder")) == 7
