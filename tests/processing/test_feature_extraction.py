"""Log-mel features: the published values, and a function of the clip alone."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from processing_supclap import (
    SupClapEncoderFeatureExtractor,
    SupClapFeatureExtractor,
    load_waveform,
)
from processing_supclap.feature_extraction_supclap import mel_filter_bank
from support.paths import REFERENCE


EXPECTED = REFERENCE / "ced_expected.npz"


@pytest.fixture(scope="module")
def extractor():
    return SupClapFeatureExtractor()


@pytest.fixture(scope="module")
def reference():
    with np.load(EXPECTED) as file:
        return [(file[f"wave_{i}"], file[f"mel_db_{i}"].T) for i in range(3)]


def noise(samples, level=0.1, seed=0):
    return (level * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0, 1, 2])
def test_features_of_a_clip_are_the_published_ones(extractor, reference, clip):
    wave, mel = reference[clip]
    features = extractor(wave, sampling_rate=16000).input_features
    assert features.shape == (1, *mel.shape)
    np.testing.assert_allclose(features[0].numpy(), mel, atol=1e-3)


def test_features_in_a_padded_batch_are_the_published_ones(extractor, reference):
    batch = extractor([wave for wave, _ in reference], sampling_rate=16000)
    for features, mask, (_, mel) in zip(batch.input_features, batch.input_features_mask, reference, strict=True):
        assert mask.sum() == len(mel)
        np.testing.assert_allclose(features[: len(mel)].numpy(), mel, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [{}, {"feature_size": 80, "n_fft": 1024, "win_length": 800, "f_min": 50.0, "f_max": 7000.0, "top_db": 60.0}],
)
def test_features_are_those_of_torchaudio(options):
    from torchaudio.transforms import AmplitudeToDB, MelSpectrogram

    extractor = SupClapFeatureExtractor(**options)
    mel = MelSpectrogram(
        sample_rate=16000,
        n_fft=extractor.n_fft,
        win_length=extractor.win_length,
        hop_length=extractor.hop_length,
        f_min=extractor.f_min,
        f_max=extractor.f_max,
        n_mels=extractor.feature_size,
    )
    wave = noise(30000)
    expected = AmplitudeToDB(top_db=extractor.top_db)(mel(torch.from_numpy(wave)))
    features = extractor(wave, sampling_rate=16000).input_features[0]
    torch.testing.assert_close(features, expected.T, atol=1e-3, rtol=0)


FILTER_BANKS = [(257, 64, 0.0, 8000.0, 16000), (513, 80, 50.0, 7000.0, 16000), (1025, 128, 20.0, 5512.0, 11025)]


@pytest.mark.parametrize("bank", FILTER_BANKS)
def test_the_mel_filters_are_those_of_transformers(bank):
    from transformers.audio_utils import mel_filter_bank as theirs  # until they remove it

    num_bins, num_mels, f_min, f_max, rate = bank
    expected = theirs(num_bins, num_mels, f_min, f_max, rate, norm=None, mel_scale="htk")
    np.testing.assert_array_equal(mel_filter_bank(*bank), expected.astype(np.float32))


@pytest.mark.parametrize("bank", FILTER_BANKS)
def test_the_mel_filters_are_those_of_torchaudio(bank):
    from torchaudio.functional import melscale_fbanks

    num_bins, num_mels, f_min, f_max, rate = bank
    expected = melscale_fbanks(num_bins, f_min, f_max, num_mels, rate)
    np.testing.assert_allclose(mel_filter_bank(*bank), expected, atol=2e-5)  # torchaudio computes in float32


def test_digital_silence_is_the_floor_of_minus_100_db(extractor):
    features = extractor(np.zeros(16000, dtype=np.float32), sampling_rate=16000).input_features
    assert features.unique().tolist() == [-100.0]


@pytest.mark.parametrize("top_db", [40.0, 80.0])
def test_nothing_lies_below_the_dynamic_range_of_the_clip(top_db):
    tone = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    features = SupClapFeatureExtractor(top_db=top_db)(tone, sampling_rate=16000).input_features
    assert features.max() - features.min() == pytest.approx(top_db, abs=1e-4)


# --- a function of the clip alone ----------------------------------------------------------------------------------


def test_a_clip_has_the_same_features_alone_and_in_a_batch(extractor, clips):
    batch = extractor(clips, sampling_rate=16000)
    for i, clip in enumerate(clips):
        alone = extractor(clip, sampling_rate=16000).input_features[0]
        torch.testing.assert_close(batch.input_features[i, : len(alone)], alone, atol=1e-5, rtol=0)


def test_a_loud_neighbour_does_not_lift_the_floor_of_a_quiet_clip(extractor):
    quiet = 1e-4 * np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    alone = extractor(quiet, sampling_rate=16000).input_features[0]
    beside = extractor([noise(16000, level=1.0), quiet], sampling_rate=16000).input_features[1]
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)


def test_an_outer_autocast_changes_nothing(extractor):
    expected = extractor(noise(16000), sampling_rate=16000).input_features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = extractor(noise(16000), sampling_rate=16000).input_features
    torch.testing.assert_close(features, expected, atol=0, rtol=0)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_clips_worked_on_in_parallel_have_the_features_of_one_thread(extractor, clips, two_threads):
    in_parallel = extractor(clips * 4, sampling_rate=16000).input_features
    torch.set_num_threads(1)
    torch.testing.assert_close(extractor(clips * 4, sampling_rate=16000).input_features, in_parallel, atol=0, rtol=0)


def test_the_number_of_threads_survives_a_call_and_an_error(extractor, two_threads):
    extractor(noise(16000), sampling_rate=16000)
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match=r"audio\[1\]: the audio is empty"):
        extractor([noise(16000), np.zeros(0)], sampling_rate=16000)
    assert torch.get_num_threads() == 2


def test_features_off_the_main_thread_are_the_same(extractor, clips, two_threads):
    expected = extractor(clips, sampling_rate=16000).input_features
    with ThreadPoolExecutor(1) as pool:
        features = pool.submit(extractor, clips, sampling_rate=16000).result().input_features
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)


# --- frames, padding, mask -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [160, 256, 257, 319, 320, 16000, 16159, 120 * 16000])
def test_a_clip_of_n_samples_has_one_frame_per_hop_and_one_more(extractor, samples):
    assert extractor(noise(samples), sampling_rate=16000).input_features.shape == (1, 1 + samples // 160, 64)


def test_a_clip_too_short_to_reflect_is_padded_with_silence(extractor):
    wave = noise(200)
    padded = np.pad(wave, (0, 57))
    short, long = (extractor(w, sampling_rate=16000).input_features for w in (wave, padded))
    torch.testing.assert_close(short, long, atol=0, rtol=0)


def test_padded_frames_are_zero_and_masked(extractor):
    batch = extractor([noise(16000), noise(8000)], sampling_rate=16000)
    assert batch.input_features_mask.dtype == torch.int64
    assert batch.input_features_mask.sum(1).tolist() == [101, 51]
    assert batch.input_features_mask[1, :51].all()
    assert batch.input_features[1, 51:].abs().max() == 0


def test_max_length_pads_to_that_many_frames(extractor):
    batch = extractor(noise(16000), sampling_rate=16000, padding="max_length", max_length=150)
    assert batch.input_features.shape == (1, 150, 64)
    assert batch.input_features_mask.sum() == 101


def test_frames_are_rounded_up_to_a_multiple(extractor):
    assert extractor(noise(16000), sampling_rate=16000, pad_to_multiple_of=16).input_features.shape[1] == 112


def test_padding_false_keeps_clips_of_one_length(extractor):
    assert extractor([noise(16000)] * 2, 16000, padding=False).input_features.shape == (2, 101, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": False}, r"padding=False needs clips of one length, got \[101, 51\] frames. Use padding=True"),
        ({"padding": "max_length", "max_length": 100}, r"audio\[0\] has 101 frames, more than max_length=100"),
        ({"padding": "max_length"}, "belong together"),
        ({"max_length": 100}, "belong together"),
        ({"padding": "repeatpad"}, "padding must be True"),
        ({"truncation": True}, "truncation is not supported"),
        ({"return_tensors": "tf"}, "return_tensors must be 'pt' or 'np'"),
    ],
)
def test_options_that_cannot_be_met_are_refused(extractor, options, message):
    with pytest.raises(ValueError, match=message):
        extractor([noise(16000), noise(8000)], sampling_rate=16000, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": False}, "padding=False needs clips of one length"),
        ({"padding": "max_length", "max_length": 100}, r"audio\[0\] has 16000 frames, more than max_length=100"),
        ({"max_length": 100}, "belong together"),
        ({"truncation": True}, "truncation is not supported"),
        ({"return_tensors": "tf"}, "return_tensors must be 'pt' or 'np'"),
    ],
)
def test_the_features_of_other_encoders_refuse_the_same_options(options, message):
    waveforms = SupClapEncoderFeatureExtractor({"feature_extractor_type": "Wav2Vec2FeatureExtractor"})
    with pytest.raises(ValueError, match=message):
        waveforms([noise(16000), noise(8000)], sampling_rate=16000, **options)


def test_the_features_of_other_encoders_are_padded_as_asked():
    waveforms = SupClapEncoderFeatureExtractor({"feature_extractor_type": "Wav2Vec2FeatureExtractor"})
    batch = waveforms(noise(8000), sampling_rate=16000, padding="max_length", max_length=9000, pad_to_multiple_of=4096)
    assert batch["input_features"].shape == (1, 12288)
    assert batch["input_features_mask"].sum() == 8000


def test_numpy_is_returned_on_request(extractor):
    batch = extractor(noise(16000), sampling_rate=16000, return_tensors="np")
    assert batch["input_features"].dtype == np.float32
    assert batch["input_features_mask"].dtype == np.int64


# --- forms of input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transpose", [False, True], ids=["(2, n)", "(n, 2)"])
def test_a_stereo_array_is_one_clip_of_its_mean(extractor, transpose):
    stereo = np.stack([noise(16000, seed=1), noise(16000, seed=2)])
    expected = extractor(stereo.mean(0), sampling_rate=16000).input_features
    features = extractor(stereo.T if transpose else stereo, sampling_rate=16000).input_features
    assert features.shape == (1, 101, 64)
    torch.testing.assert_close(features, expected, atol=1e-3, rtol=0)


def test_a_batch_as_one_array_is_refused(extractor):
    with pytest.raises(ValueError, match="pass several clips as a list"):
        extractor(np.stack([noise(16000)] * 16), sampling_rate=16000)


def test_int16_gives_the_features_of_the_scaled_floats(extractor):
    integers = (32768 * noise(16000)).astype(np.int16)
    expected = extractor(integers / 32768, sampling_rate=16000).input_features
    torch.testing.assert_close(extractor(integers, sampling_rate=16000).input_features, expected, atol=0, rtol=0)


@pytest.mark.parametrize("rate", [8000, 48000])
def test_other_rates_are_resampled(extractor, rate):
    wave = noise(rate)
    expected = extractor(load_waveform(wave, rate), sampling_rate=16000).input_features
    torch.testing.assert_close(extractor(wave, sampling_rate=rate).input_features, expected, atol=0, rtol=0)


def test_every_dict_of_a_list_keeps_its_own_rate(extractor):
    batch = extractor([{"array": noise(rate), "sampling_rate": rate} for rate in (8000, 16000, 48000)])
    assert batch.input_features_mask.sum(1).tolist() == [101, 101, 101]


@pytest.mark.parametrize("form", [np.ndarray.tolist, list, lambda c: list(torch.from_numpy(c))])
def test_a_list_of_numbers_is_one_clip(extractor, form):
    expected = extractor(noise(1600), sampling_rate=16000).input_features
    torch.testing.assert_close(extractor(form(noise(1600)), 16000).input_features, expected, atol=0, rtol=0)


def test_a_bad_clip_is_named_by_its_position(extractor):
    with pytest.raises(ValueError, match=r"audio\[1\]: sample 5 is nan"):
        extractor([noise(1600), np.where(np.arange(1600) == 5, np.nan, 0.0)], sampling_rate=16000)


@pytest.mark.parametrize(
    ("audio", "rate", "message"),
    [
        ([], 16000, "empty list"),
        (np.zeros(0), 16000, "the audio is empty"),
        (noise(16000), None, "Pass sampling_rate="),
        (noise(16000), 0, "sampling_rate must be a whole number of Hz"),
    ],
)
def test_bad_input_is_refused(extractor, audio, rate, message):
    with pytest.raises(ValueError, match=message):
        extractor(audio, sampling_rate=rate)


# --- saving --------------------------------------------------------------------------------------------------------


def test_saved_and_loaded_it_gives_the_same_features(tmp_path):
    extractor = SupClapFeatureExtractor(feature_size=32, top_db=90.0, f_max=7000.0)
    extractor.save_pretrained(tmp_path)
    loaded = SupClapFeatureExtractor.from_pretrained(tmp_path)
    assert loaded.to_dict() == extractor.to_dict()
    expected = extractor(noise(16000), sampling_rate=16000).input_features
    torch.testing.assert_close(loaded(noise(16000), sampling_rate=16000).input_features, expected, atol=0, rtol=0)


def test_the_saved_file_holds_settings_and_no_arrays(tmp_path):
    SupClapFeatureExtractor().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert not any(isinstance(value, list) for value in saved.values())


@pytest.mark.parametrize(("options", "named"), [({"f_max": 9000.0}, "f_max"), ({"win_length": 600}, "win_length")])
def test_settings_that_do_not_fit_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        SupClapFeatureExtractor(**options)


def test_features_under_inference_mode_are_the_same_on_several_threads():
    clips = [np.random.default_rng(seed).standard_normal(8000).astype(np.float32) for seed in range(3)]
    extractor = SupClapFeatureExtractor()
    expected = extractor(clips, sampling_rate=16000)["input_features"]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.inference_mode():
            found = extractor(clips, sampling_rate=16000)["input_features"]
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
