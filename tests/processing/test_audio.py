"""From any form of a sound to one mono waveform: the right samples, or an error that names the clip and the fix."""

import http.server
import io
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from processing_supclap import load_waveform
from processing_supclap.audio_supclap import to_mono
from processing_supclap.decoding_supclap import check_not_truncated
from support.shared_data import SHARED, on_shared_data


def sine(rate, seconds=1.0, frequency=440.0):
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("subtype", "dtype"), [("PCM_16", "int16"), ("PCM_32", "int32")])
def test_integer_arrays_give_what_libsndfile_gives_as_float(tmp_path, subtype, dtype):
    path = tmp_path / "clip.wav"
    soundfile.write(path, sine(16000), 16000, subtype=subtype)
    integers, rate = soundfile.read(path, dtype=dtype)
    floats, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_array_equal(load_waveform(integers, rate).numpy(), floats)


def test_unsigned_bytes_give_what_libsndfile_gives_as_float(tmp_path):
    path = tmp_path / "clip.wav"
    soundfile.write(path, sine(16000), 16000, subtype="PCM_U8")
    raw = np.frombuffer(path.read_bytes()[-16000:], dtype=np.uint8)
    floats, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_array_equal(load_waveform(raw, 16000).numpy(), floats)


def test_full_scale_int16_spans_minus_one_to_one():
    waveform = load_waveform(np.array([-32768, 0, 16384] * 100, dtype=np.int16), 16000)
    assert waveform[:3].tolist() == [-1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    "convert", [np.float64, torch.from_numpy, np.ndarray.tolist], ids=["float64", "torch", "list"]
)
def test_float_forms_agree(convert):
    wave = sine(16000)
    torch.testing.assert_close(load_waveform(convert(wave), 16000), torch.from_numpy(wave))


def test_bfloat16_tensor_is_read_at_its_own_values():
    wave = torch.from_numpy(sine(16000)).bfloat16()
    torch.testing.assert_close(load_waveform(wave, 16000), wave.float(), rtol=0, atol=0)


def test_tensor_that_requires_grad_is_read():
    assert not load_waveform(torch.zeros(160, requires_grad=True), 16000).requires_grad


@pytest.mark.filterwarnings("error")
def test_the_waveform_shares_no_memory_with_a_read_only_array():
    wave = sine(16000)
    wave.flags.writeable = False
    assert not np.shares_memory(load_waveform(wave, 16000).numpy(), wave)


def test_digital_silence_is_accepted():
    assert load_waveform(np.zeros(16000, dtype=np.int16), 16000).abs().max() == 0


# --- channels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [(2, 4000), (4000, 2), (1, 4000), (4000, 6)])
def test_channels_are_averaged_in_either_layout(layout):
    samples = np.random.default_rng(0).uniform(-1, 1, layout).astype(np.float32)
    expected = samples.mean(axis=int(np.argmin(layout)))
    np.testing.assert_allclose(load_waveform(samples, 16000).numpy(), expected, atol=1e-6)


def test_stereo_int16_is_scaled_then_averaged():
    samples = np.stack([np.full(400, 16384), np.full(400, 0)]).astype(np.int16)
    assert load_waveform(samples, 16000).unique().tolist() == [0.25]


def test_stereo_file_is_averaged(tmp_path):
    stereo = np.stack([sine(16000), np.zeros(16000, dtype=np.float32)], axis=1)
    soundfile.write(tmp_path / "stereo.wav", stereo, 16000, subtype="FLOAT")
    np.testing.assert_allclose(load_waveform(tmp_path / "stereo.wav").numpy(), sine(16000) / 2, atol=1e-7)


def test_twelve_channels_of_a_file_are_known_by_the_file(tmp_path):
    samples = np.random.default_rng(0).uniform(-1, 1, (400, 12)).astype(np.float32)
    soundfile.write(tmp_path / "array.wav", samples, 16000, subtype="FLOAT")
    np.testing.assert_allclose(load_waveform(tmp_path / "array.wav").numpy(), samples.mean(1), atol=1e-6)


@pytest.mark.parametrize("shape", [(16, 4000), (4, 8), (2, 2, 4000), ()])
def test_unclear_layout_is_refused_with_advice(shape):
    with pytest.raises(ValueError, match=r"kick\.wav: .*(transpose|as a list)"):
        load_waveform(np.zeros(shape, dtype=np.float32), 16000, name="kick.wav")


# --- rates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_resampled_sine_is_the_sine_sampled_at_16_khz(rate):
    waveform = load_waveform(sine(rate), rate).numpy()
    expected = sine(16000)
    assert len(waveform) == len(expected)
    # The ends hear the silence beyond them.
    np.testing.assert_allclose(waveform[200:-200], expected[200:-200], atol=2e-3)


def test_a_clip_of_another_rate_is_what_soxr_makes_of_it():
    import soxr

    expected = soxr.resample(sine(44100), 44100, 16000)
    np.testing.assert_array_equal(load_waveform(sine(44100), 44100).numpy(), expected)


def test_coprime_rates_are_resampled():
    waveform = load_waveform(sine(44101), 44101).numpy()
    np.testing.assert_allclose(waveform[400:-400], sine(16000)[400:-400], atol=2e-3)


def test_without_soxr_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(ImportError, match="pip install soxr"):
        load_waveform(sine(8000), 8000)


def test_resampling_ignores_an_outer_autocast():
    expected = load_waveform(sine(44100), 44100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(load_waveform(sine(44100), 44100), expected, rtol=0, atol=0)


@pytest.mark.parametrize("rate", [16000.0, np.int64(16000), np.float32(16000)])
def test_whole_number_of_any_type_is_a_rate(rate):
    assert len(load_waveform(sine(16000), rate)) == 16000


@pytest.mark.parametrize("rate", [0, -16000, 16, 44.1, 16000.5, float("nan"), float("inf"), True, "16000", [16000]])
def test_bad_rate_is_refused(rate):
    with pytest.raises((ValueError, TypeError), match=r"clip 3: sampling_rate must be a whole number of Hz"):
        load_waveform(sine(16000), rate, name="clip 3")


def test_bare_array_without_a_rate_is_refused():
    with pytest.raises(ValueError, match="clip 3: a bare array has no sampling rate. Pass sampling_rate="):
        load_waveform(sine(16000), name="clip 3")


# --- lengths -------------------------------------------------------------------------------------------------------


def test_two_minutes_stay_two_minutes():
    assert len(load_waveform(sine(8000, seconds=120), 8000)) == 120 * 16000


def test_twenty_milliseconds_are_enough():
    assert len(load_waveform(sine(48000, seconds=0.02), 48000)) == 320


def test_less_than_a_hop_is_refused_with_length_and_minimum():
    with pytest.raises(ValueError, match=r"clip 3: too short, 80 samples \(5.0 ms\).*160 samples \(10.0 ms\)"):
        load_waveform(sine(48000, seconds=0.005), 48000, name="clip 3")


# --- broken samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [0, (0, 2), (2, 0)])
def test_empty_array_is_refused(shape):
    with pytest.raises(ValueError, match="clip 3: the audio is empty"):
        load_waveform(np.zeros(shape, dtype=np.float32), 16000, name="clip 3")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_first_sample_that_is_not_finite_is_named(value):
    wave = sine(16000)
    wave[[1234, 2000]] = value
    with pytest.raises(ValueError, match=f"clip 3: sample 1234 is {value}"):
        load_waveform(wave, 16000, name="clip 3")


def test_nan_in_one_channel_is_named():
    stereo = np.zeros((2, 4000), dtype=np.float32)
    stereo[1, 7] = np.nan
    with pytest.raises(ValueError, match=r"sample \(1, 7\) is nan"):
        load_waveform(stereo, 16000)


def test_integers_stored_as_floats_are_refused_with_the_scale():
    with pytest.raises(ValueError, match=r"clip 3: float samples reach 16384, .*Divide by full scale \(32768"):
        load_waveform(sine(16000) * 32768, 16000, name="clip 3")


def test_loud_master_above_one_is_accepted():
    assert load_waveform(4 * sine(16000), 16000).max() > 1.9


@pytest.mark.parametrize("dtype", [bool, np.complex64, np.int64, object, "U4"])
def test_dtype_without_a_pcm_scale_is_refused(dtype):
    with pytest.raises((ValueError, TypeError), match="clip 3: .*(Convert|Cast)"):
        load_waveform(np.zeros(16000).astype(dtype), 16000, name="clip 3")


@pytest.mark.parametrize("audio", [None, 7, {1.0, 2.0}, object()])
def test_unknown_form_is_refused_with_the_accepted_ones(audio):
    with pytest.raises(TypeError, match="clip 3: cannot read audio from .*a dict with 'array'"):
        load_waveform(audio, 16000, name="clip 3")


def test_ragged_lists_are_refused():
    with pytest.raises(ValueError, match="clip 3: the nested lists are ragged"):
        load_waveform([[0.1, 0.2], [0.3]], 16000, name="clip 3")


# --- containers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["array", "raw"])
def test_dict_carries_its_own_rate(key):
    clip = {key: sine(8000), "sampling_rate": 8000, "path": "ignored.wav"}
    torch.testing.assert_close(load_waveform(clip, sampling_rate=48000), load_waveform(sine(8000), 8000))


def test_dict_without_a_rate_takes_the_given_one():
    assert len(load_waveform({"array": sine(8000)}, sampling_rate=8000)) == 16000


def test_undecoded_datasets_row_is_read_from_bytes_or_path(tmp_path):
    path = tmp_path / "clip.wav"
    soundfile.write(path, sine(16000), 16000)
    from_bytes = load_waveform({"path": "clip.wav", "bytes": path.read_bytes()})
    torch.testing.assert_close(load_waveform({"path": str(path), "bytes": None}), from_bytes)


def test_bad_bytes_in_a_dict_are_named_by_their_path():
    with pytest.raises(ValueError, match=r"audio \(rain\.wav\): cannot be decoded"):
        load_waveform({"path": "rain.wav", "bytes": b"not a sound" * 100})


def test_dict_without_audio_is_refused_with_its_keys():
    with pytest.raises(ValueError, match=r"keys \['sampling_rate', 'wave'\] holds no audio"):
        load_waveform({"wave": sine(16000), "sampling_rate": 16000})


def test_decoder_object_is_read_with_its_rate_and_layout():
    # Few samples of many channels: only the decoder's fixed layout (channels, samples) tells them apart.
    data = torch.rand(12, 400)
    decoder = SimpleNamespace(get_all_samples=lambda: SimpleNamespace(data=data, sample_rate=16000))
    torch.testing.assert_close(load_waveform(decoder), data.mean(0))


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "tolerance"), [("wav", 1e-4), ("flac", 1e-4), ("ogg", 0.05), ("mp3", 0.05)])
@pytest.mark.parametrize(
    "form", [str, lambda path: path, lambda path: path.read_bytes()], ids=["str", "Path", "bytes"]
)
def test_file_formats_are_decoded(tmp_path, suffix, tolerance, form):
    path = tmp_path / f"clip.{suffix}"
    soundfile.write(path, sine(44100), 44100)
    waveform = load_waveform(form(path)).numpy()
    np.testing.assert_allclose(waveform[400:15600], load_waveform(sine(44100), 44100)[400:15600], atol=tolerance)


def test_address_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    soundfile.write(tmp_path / "clip.wav", sine(16000), 16000)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=tmp_path)

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        torch.testing.assert_close(load_waveform(f"{address}/clip.wav"), load_waveform(tmp_path / "clip.wav"))
        with pytest.raises(ValueError, match="none.wav.*cannot be downloaded.*404"):
            load_waveform(f"{address}/none.wav")
    finally:
        server.shutdown()
        server.server_close()


def test_text_file_named_wav_is_refused_by_name(tmp_path):
    path = tmp_path / "notes.wav"
    path.write_text("these are notes, not sound\n" * 50)
    with pytest.raises(ValueError, match=r"notes\.wav\): cannot be decoded .*If it is no sound file, drop it"):
        load_waveform(path)


def test_m4a_is_refused_with_what_to_install(tmp_path):
    path = tmp_path / "voice.m4a"
    path.write_bytes(b"\x00\x00\x00\x20ftypM4A \x00\x00\x00\x00" + bytes(1000))
    with pytest.raises(
        ValueError, match=r"voice\.m4a\): cannot be decoded .*install torchcodec and FFmpeg, or convert"
    ):
        load_waveform(path)


def test_what_soundfile_refuses_goes_to_torchcodec(tmp_path, monkeypatch):
    opened = []

    class AudioDecoder:
        def __init__(self, source):
            opened.append(source)

        def get_all_samples(self):
            return SimpleNamespace(data=torch.full((2, 400), 0.25), sample_rate=16000)

    monkeypatch.setitem(sys.modules, "torchcodec", SimpleNamespace())
    decoders = SimpleNamespace(AudioDecoder=AudioDecoder)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    path = tmp_path / "voice.m4a"
    path.write_bytes(b"\x00\x00\x00\x20ftypM4A " + bytes(1000))
    assert load_waveform(path).unique().tolist() == [0.25]
    assert opened == [str(path)]


def test_without_soundfile_the_error_says_what_to_install(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "clip.wav", sine(16000), 16000)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ValueError, match="pip install soundfile"):
        load_waveform(tmp_path / "clip.wav")


def test_headerless_file_is_refused(tmp_path):
    (tmp_path / "samples.raw").write_bytes(bytes(1000))
    with pytest.raises(ValueError, match=r"samples\.raw\): cannot be decoded"):
        load_waveform(tmp_path / "samples.raw")


@pytest.mark.parametrize("form", [str, lambda path: path], ids=["str", "Path"])
def test_missing_file_is_named(tmp_path, form):
    with pytest.raises(FileNotFoundError, match=r"gone\.wav\): the path does not exist"):
        load_waveform(form(tmp_path / "gone.wav"))


def test_directory_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a directory"):
        load_waveform(tmp_path)


def test_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.wav").touch()
    with pytest.raises(ValueError, match=r"empty\.wav\): the file is empty \(0 bytes\)"):
        load_waveform(tmp_path / "empty.wav")


def test_file_without_samples_is_refused(tmp_path):
    soundfile.write(tmp_path / "header.wav", np.zeros(0), 16000)
    with pytest.raises(ValueError, match=r"header\.wav\): the audio is empty"):
        load_waveform(tmp_path / "header.wav")


# --- files that end early ------------------------------------------------------------------------------------------


def encoded(wave=None, rate=16000, **form) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.random.default_rng(0).uniform(-0.5, 0.5, 40000) if wave is None else wave, rate, **form)
    return buffer.getvalue()


CUT = {
    "wav": ({"format": "WAV", "subtype": "PCM_16"}, r"80000 bytes of samples, and 39978 are there"),
    "float wav": ({"format": "WAV", "subtype": "FLOAT"}, r"160000 bytes of samples, and 79\d+ are there"),
    "rf64": ({"format": "RF64", "subtype": "PCM_16"}, r"80000 bytes of samples, and 399\d+ are there"),
    "aiff": ({"format": "AIFF", "subtype": "PCM_16"}, r"80008 bytes of samples, and 399\d+ are there"),
    "flac": ({"format": "FLAC", "subtype": "PCM_16"}, r"2\.500 s, and 1\.\d+ s can be decoded"),
    "mp3": ({"format": "MP3"}, r"2\.500 s, and 1\.\d+ s can be decoded"),
    "vorbis": ({"format": "OGG", "subtype": "VORBIS"}, r"its \d+ bytes end without the page that closes"),
    "opus": ({"format": "OGG", "subtype": "OPUS"}, r"its \d+ bytes end without the page that closes"),
}


@pytest.mark.parametrize("kind", CUT)
@pytest.mark.parametrize("form", [lambda path: path, lambda path: path.read_bytes()], ids=["path", "bytes"])
def test_half_a_file_is_refused_with_both_lengths(tmp_path, monkeypatch, kind, form):
    # no second decoder gets to read what is left
    monkeypatch.setitem(
        sys.modules, "torchcodec.decoders", SimpleNamespace(AudioDecoder=lambda s: pytest.fail("read"))
    )
    options, lengths = CUT[kind]
    data = encoded(**options)
    assert len(load_waveform(data)) == 40000
    path = tmp_path / "clip.x"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=rf"clip 3.*: the file was cut short: .*{lengths}"):
        load_waveform(form(path), name="clip 3")


@pytest.mark.parametrize("riff", [None, 0, 0xFFFFFFFF])
@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFDA])
def test_a_wav_written_to_a_pipe_is_read_to_its_end(riff, size):
    data = bytearray(encoded(format="WAV"))
    expected = load_waveform(bytes(data))
    data[40:44] = size.to_bytes(4, "little")
    if riff is not None:
        data[4:8] = riff.to_bytes(4, "little")
    torch.testing.assert_close(load_waveform(bytes(data)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("riff", [0, 0xFFFFFFFF])
def test_a_wav_whose_sizes_were_left_at_nought_is_read_to_its_end(tmp_path, riff):
    data = bytearray(encoded(format="WAV"))
    expected = load_waveform(bytes(data))
    data[40:44] = bytes(4)
    data[4:8] = riff.to_bytes(4, "little")
    path = tmp_path / "stream.wav"
    path.write_bytes(data)
    torch.testing.assert_close(load_waveform(path), expected, rtol=0, atol=0)


def test_a_wav_header_that_counts_itself_is_no_cut():
    data = bytearray(encoded(format="WAV"))
    data[40:44] = len(data).to_bytes(4, "little")
    assert len(load_waveform(bytes(data))) == 40000


def test_a_wav_with_chunks_before_and_after_the_samples_is_whole():
    data = encoded(format="WAV")
    odd = b"LIST\x03\x00\x00\x00abc\x00"  # padded to an even size
    for form in (data[:36] + odd + data[36:], data + odd, data + b"tail"):
        assert len(load_waveform(form)) == 40000


def test_bytes_after_the_last_page_of_an_ogg_are_no_cut():
    assert len(load_waveform(encoded(format="OGG") + b"TAG" + bytes(125))) == 40000


@on_shared_data
def test_no_published_ogg_is_taken_for_one_cut_short():
    files = sorted((SHARED / "sounds").rglob("*.ogg"))
    assert len(files) > 400
    for path in files:
        assert check_not_truncated(str(path), path.name) == str(path)


def test_the_mean_of_channels_has_the_same_bits_on_any_number_of_threads():
    from threadpoolctl import threadpool_limits

    samples = np.random.default_rng(0).standard_normal((6, 100_003)).astype(np.float32)
    means = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads):
            means.append(to_mono(samples, "clip"))
    np.testing.assert_array_equal(means[1], means[0])
    np.testing.assert_array_equal(means[2], means[0])
