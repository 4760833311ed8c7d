"""Rows, samples, augmentation and batches."""

import json

import numpy as np
import pytest
import soundfile
import torch

from processing_supclap import load_waveform
from supclap.data import (
    CaptionedClips,
    ContrastiveCollator,
    LengthGroupedSampler,
    SpectrogramAugment,
    WaveformAugment,
    load_splits,
    read_table,
)
from supclap.data.arguments import DataArguments
from supclap.data.cropping import load_crop
from supclap.errors import DataError


RATE = 16000


def rows(n: int = 4, seconds: float = 1.0) -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "id": f"clip{i}",
            "audio": {"array": rng.standard_normal(int(seconds * RATE)).astype(np.float32), "sampling_rate": RATE},
            "captions": [f"caption {i}.{k}" for k in range(5)],
        }
        for i in range(n)
    ]


@pytest.fixture
def folder(tmp_path):
    """Four clips and a table with a column of JSON lists, ids that look like numbers, and a split."""
    lines = ["id,file_name,captions,label,recording,split"]
    for i, split in enumerate(("train", "train", "validation", "test")):
        soundfile.write(tmp_path / f"{i}.wav", np.full(1600, 0.1), RATE)
        captions = json.dumps([f"sound {i}", f"noise {i}"]).replace('"', '""')
        lines.append(f'00{i},{i}.wav,"{captions}",kind {i},{"same" if i in (1, 3) else i},{split}')
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    return tmp_path


def arguments(folder, **changes) -> DataArguments:
    names = ("train", "validation", "test")
    fields = {f"{name}_file": "metadata.csv" for name in names} | {f"{name}_splits": [name] for name in names}
    return DataArguments(**{"data_dir": str(folder), "split_column": "split", **fields, **changes})


def test_a_table_becomes_rows_with_all_captions_and_ids_as_they_stand(folder):
    row = load_splits(arguments(folder))["train"][0]
    assert row["id"] == "000"
    assert row["captions"] == ["sound 0", "noise 0"]
    assert row["audio"].endswith("0.wav")


def test_several_caption_columns_are_joined(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(1600, 0.1), RATE)
    (tmp_path / "t.csv").write_text("file_name,caption_1,caption_2\na.wav,one,two")
    args = DataArguments(data_dir=str(tmp_path), train_file="t.csv", caption_columns=["caption_1", "caption_2"])
    assert load_splits(args)["train"][0]["captions"] == ["one", "two"]


def test_json_lines_load_too(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(1600, 0.1), RATE)
    (tmp_path / "t.jsonl").write_text('{"file_name": "a.wav", "captions": ["one", "two"]}\n')
    args = DataArguments(data_dir=str(tmp_path), train_file="t.jsonl")
    assert load_splits(args)["train"][0]["captions"] == ["one", "two"]


def test_a_recording_that_is_also_in_the_test_is_dropped_from_training_and_counted(folder, capsys):
    splits = load_splits(arguments(folder, group_column="recording"))
    assert [row["id"] for row in splits["train"]] == ["000"]
    assert "dropped 1 training clips" in capsys.readouterr().out


def test_clips_with_a_blank_group_are_recordings_of_their_own(folder):
    table = folder / "metadata.csv"
    table.write_text(table.read_text().replace(",same,", ",,"))
    splits = load_splits(arguments(folder, group_column="recording"))
    assert [row["id"] for row in splits["train"]] == ["000", "001"]
    assert "recording" not in splits["test"][0]


def test_captions_by_label_make_a_class_one_group(folder):
    captions = {f"kind {i}": ["a", "b"] for i in range(4)}
    row = load_splits(arguments(folder, label_column="label", label_captions=captions))["train"][0]
    assert row["captions"] == ["a", "b"]
    assert row["group"] == "kind 0"


def test_missing_audio_is_named_by_row(folder):
    (folder / "1.wav").unlink()
    with pytest.raises(DataError, match=r"1 of 2 audio files are missing .*: row 1 \(id '001'\): '1.wav'"):
        load_splits(arguments(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_dir": None}, "data_dir is not set"),
        ({"train_file": None}, "train_file is not set"),
        ({"train_file": "no.csv"}, "No table"),
        ({"split_column": "fold"}, "no column 'fold'"),
        ({"audio_column": "path"}, "no column 'path'; its columns are"),
        ({"label_column": "label", "label_captions": {}}, "label 'kind 0' has no entry"),
    ],
)
def test_wrong_arguments_are_named(folder, changes, message):
    with pytest.raises(DataError, match=message):
        load_splits(arguments(folder, **changes))


def test_a_table_of_another_kind_or_without_rows_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("a")
    with pytest.raises(DataError, match=".csv"):
        read_table(tmp_path / "t.txt")
    (tmp_path / "t.csv").write_text("file_name,caption\n")
    with pytest.raises(DataError, match="t.csv.*no rows"):
        read_table(tmp_path / "t.csv")


def test_a_sample_is_a_function_of_seed_epoch_and_clip():
    data = CaptionedClips(
        rows(), max_duration=0.5, augment=WaveformAugment(speeds=(90, 110), noise_db=(10, 20)), seed=3
    )
    again = CaptionedClips(
        rows(), max_duration=0.5, augment=WaveformAugment(speeds=(90, 110), noise_db=(10, 20)), seed=3
    )
    again[0]
    np.testing.assert_array_equal(data[2]["audio"], again[2]["audio"])
    assert data[2]["text"] == again[2]["text"]
    data.set_epoch(1)
    assert not np.array_equal(data[2]["audio"][:1000], again[2]["audio"][:1000])


def test_every_caption_is_drawn_over_the_epochs():
    data = CaptionedClips(rows(n=1))
    drawn = set()
    for epoch in range(40):
        data.set_epoch(epoch)
        drawn.add(data[0]["text"])
    assert drawn == set(rows(n=1)[0]["captions"])


def test_speed_changes_length_and_pitch_together():
    wave = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    faster = WaveformAugment(speeds=(125,))(wave, np.random.default_rng(0))
    assert len(faster) == pytest.approx(RATE / 1.25, abs=2)
    spectrum = np.abs(np.fft.rfft(faster * np.hanning(len(faster))))
    assert np.argmax(spectrum) * RATE / len(faster) == pytest.approx(1250, abs=2)


def test_noise_is_added_at_the_asked_level():
    wave = np.sin(2 * np.pi * 1000 * np.arange(10 * RATE) / RATE).astype(np.float32)
    noise = WaveformAugment(noise_db=(20, 20))(wave, np.random.default_rng(0)) - wave
    assert 20 * np.log10(np.std(wave) / np.std(noise)) == pytest.approx(20, abs=0.1)


def test_spectrogram_masks_take_the_mean_of_the_clip_and_leave_padding_alone():
    torch.manual_seed(0)
    features = torch.randn(2, 50, 64)
    mask = torch.ones(2, 50, dtype=torch.long)
    mask[1, 30:] = 0
    features = features * mask[..., None]
    augment = SpectrogramAugment(frequency_masks=1, frequency_width=20, time_masks=1, time_width=20)
    changed = augment(features, mask, torch.Generator().manual_seed(5))
    for clip, length in ((0, 50), (1, 30)):
        different = changed[clip] != features[clip]
        assert different.any()
        assert not different[length:].any()
        torch.testing.assert_close(
            changed[clip][different], features[clip, :length].mean().expand(int(different.sum()))
        )


def test_the_random_response_is_the_same_for_all_frames_of_a_clip_and_bounded():
    features, mask = torch.zeros(3, 10, 64), torch.ones(3, 10, dtype=torch.long)
    changed = SpectrogramAugment(response_db=6.0)(features, mask, torch.Generator().manual_seed(0))
    assert changed.abs().max() <= 6
    assert changed.std() > 1
    torch.testing.assert_close(changed, changed[:, :1].expand_as(changed))


def test_a_batch_holds_both_inputs_and_equal_ids_for_equal_groups(processor):
    samples = [CaptionedClips(rows())[i] for i in (0, 1, 2)]
    samples[2]["group"] = samples[0]["group"]
    batch = ContrastiveCollator(processor)(samples)
    ids = batch["clip_ids"]
    assert batch["input_features"].shape[0] == batch["input_ids"].shape[0] == 3
    assert ids[0] == ids[2] != ids[1]


def test_length_grouping_keeps_every_clip_once_and_batches_like_lengths():
    lengths = np.random.default_rng(0).uniform(4, 8, 640)
    sampler = LengthGroupedSampler(lengths, batch_size=32, seed=1)
    order = list(sampler)
    assert sorted(order) == list(range(640))
    spread = np.ptp(lengths[np.array(order).reshape(-1, 32)], axis=1)
    assert spread.mean() < 0.5
    assert order == list(LengthGroupedSampler(lengths, batch_size=32, seed=1))
    sampler.set_epoch(1)
    assert order != list(sampler)


def test_lengths_come_from_rows_or_else_from_the_headers_of_files(tmp_path):
    for seconds in (1, 3):
        soundfile.write(tmp_path / f"{seconds}.wav", np.zeros(8000 * seconds), 8000)
    rows = [{"id": s, "audio": str(tmp_path / f"{s}.wav"), "captions": ["noise"]} for s in (1, 3)]
    assert CaptionedClips(rows).lengths == [1, 3]
    assert CaptionedClips(rows, max_duration=2).lengths == [1, 2]
    assert CaptionedClips([rows[0] | {"duration": 7}, rows[1]]).lengths == [7, 3]
    assert CaptionedClips([rows[0] | {"audio": str(tmp_path / "gone.wav")}, rows[1]]).lengths is None


def test_the_incomplete_batch_stays_last():
    order = list(LengthGroupedSampler(range(10), batch_size=4))
    assert sorted(order[:8] + order[8:]) == list(range(10))
    assert max(np.ptp(order[:4]), np.ptp(order[4:8])) <= 4


@pytest.mark.parametrize(("suffix", "rate"), [("wav", 44100), ("flac", 22050), ("ogg", 48000), ("wav", RATE)])
def test_a_crop_is_the_part_of_the_whole_clip_that_it_stands_for(tmp_path, suffix, rate):
    path = tmp_path / f"clip.{suffix}"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal((3 * rate, 2)), rate)
    whole = load_waveform(path).numpy()
    starts = set()
    for seed in range(8):
        part = load_crop(str(path), RATE, RATE // 2, np.random.default_rng(seed), "clip")
        draw = np.random.default_rng(seed).random()
        start = int(draw * ((len(whole) - RATE // 2) // 640 + 1)) * 640
        # the ends of the file are the resampler's, not the crop's
        np.testing.assert_allclose(part, whole[start : start + RATE // 2], atol=2e-5)
        starts.add(start)
    assert len(starts) == 8


def test_only_the_crop_of_a_long_file_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "long.wav"
    soundfile.write(path, np.zeros(RATE * 60), RATE)
    read = []
    original = soundfile.SoundFile.read

    def counting(self, frames=-1, **options):
        samples = original(self, frames, **options)
        read.append(len(samples))
        return samples

    monkeypatch.setattr(soundfile.SoundFile, "read", counting)
    load_crop(str(path), RATE, RATE, np.random.default_rng(0), "clip")
    assert sum(read) <= RATE * 1.5


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_no_crop_is_taken_from_a_file_that_is_cut_short(tmp_path, suffix):
    path = tmp_path / f"cut.{suffix}"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(20 * RATE), RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"clip 'cut' .*cut\.{suffix}\): the file was cut short"):
        load_crop(str(path), RATE, RATE, np.random.default_rng(0), "clip 'cut'")


def test_a_crop_beyond_the_end_of_a_cut_file_is_an_error(tmp_path):
    path = tmp_path / "cut.flac"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(RATE * 10), RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    rng = np.random.default_rng(5)
    assert np.random.default_rng(5).random() > 0.7  # a crop in the half that is missing
    with pytest.raises(ValueError, match=r"clip 'cut' \(.*cut.flac\): the file ends before its header says"):
        load_crop(str(path), RATE, RATE, rng, "clip 'cut'")
