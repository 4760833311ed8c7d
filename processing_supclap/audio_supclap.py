"""Turns anything that holds a sound into a mono float32 waveform at one rate.

The steps are: decode, convert to float, average the channels, resample. Each either gives the right samples or raises an
error that names the clip and says what to do. No step crops, and none is random: the waveform depends on the clip alone.
"""

import math
import numbers
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .decoding_supclap import decode


# 7.1 surround is the widest layout that everyday files have. A clip of so few *samples* would be far shorter than one mel
# frame, so an axis this short next to a longer one can only be that of the channels.
MAX_CHANNELS = 8
# Float audio lies in [-1, 1]. Loud masters go beyond that by a few times, integers stored as floats by hundreds and more.
MAX_FLOAT_PEAK = 64.0
# In Hz. A lower number, such as 16 or 44.1, is a rate in kHz; the highest rate in use is 5.6 MHz, of 1-bit recordings.
MIN_SAMPLING_RATE, MAX_SAMPLING_RATE = 1000, 10_000_000

ACCEPTED = (
    "a path, bytes, a NumPy array, a torch tensor, a list of floats, a dict with 'array' (or 'raw') and "
    "'sampling_rate', a dict with 'path' or 'bytes', or a torchcodec AudioDecoder"
)


def load_waveform(
    audio: Any,
    sampling_rate: int | None = None,
    target_sampling_rate: int = 16000,
    name: str = "audio",
    min_samples: int = 160,
) -> torch.Tensor:
    """Turns one clip, in any accepted form, into a mono waveform at `target_sampling_rate`.

    Args:
        audio: A path or http(s) address (`str` or `Path`), the bytes of a sound file, an array (NumPy, torch, list of
            floats), a dict `{"array" | "raw": ..., "sampling_rate": ...}` or `{"path": ..., "bytes": ...}`, or an
            object with `get_all_samples()` (torchcodec, `datasets`). Integer PCM is scaled by its range; channels are
            averaged; arrays may be (samples,), (channels, samples) or (samples, channels).
        sampling_rate: Rate in Hz of a bare array. Files, dicts and decoders carry their own, which wins.
        target_sampling_rate: Rate in Hz of the result; other rates are resampled.
        name: What error messages call this clip.
        min_samples: Shortest accepted length in samples at the target rate (one mel hop).

    Returns:
        Float32 CPU tensor of shape (samples,).

    Raises:
        TypeError: The input is none of the accepted forms, or its numbers are not real PCM.
        ValueError: No rate, a bad rate, empty, too short, NaN or infinite, unscaled, of unclear layout, undecodable.
        FileNotFoundError: The path does not exist.
        ImportError: A package needed to decode or resample is missing.
    """
    # The axis of the channels is known for files and decoders; for an array it has to be found out.
    channel_axis = None
    if isinstance(audio, dict):
        audio, sampling_rate, name = _open_dict(audio, sampling_rate, name)
    if isinstance(audio, str | Path | bytes | bytearray | memoryview):
        if isinstance(audio, str | Path):
            name = f"{name} ({audio})"
        samples, sampling_rate = decode(audio, name)
        channel_axis = 1
    elif hasattr(audio, "get_all_samples"):
        decoded = audio.get_all_samples()
        samples, sampling_rate = to_array(decoded.data, name), decoded.sample_rate
        channel_axis = 0
    else:
        samples = to_array(audio, name)
    if sampling_rate is None:
        raise ValueError(
            f"{name}: a bare array has no sampling rate. Pass sampling_rate=... in Hz, or a dict "
            "{'array': ..., 'sampling_rate': ...}."
        )
    sampling_rate = check_sampling_rate(sampling_rate, name)
    waveform = torch.from_numpy(to_mono(to_float(samples, name), name, channel_axis))
    waveform = resample(waveform, sampling_rate, target_sampling_rate, name)
    if len(waveform) < min_samples:
        raise ValueError(
            f"{name}: too short, {len(waveform)} samples ({1000 * len(waveform) / target_sampling_rate:.1f} ms) at "
            f"{target_sampling_rate} Hz; at least {min_samples} samples "
            f"({1000 * min_samples / target_sampling_rate:.1f} ms) are needed. Drop the clip or pad it with silence."
        )
    return waveform


def load_waveforms(
    audio: Any,
    sampling_rate: int | None = None,
    target_sampling_rate: int = 16000,
    min_samples: int = 160,
    run: Callable = map,
) -> list[torch.Tensor]:
    """Loads a clip or a list of clips as [`load_waveform`] does, by `run` in place of `map`. Errors name the position."""
    is_list = isinstance(audio, list | tuple)
    if is_list and len(audio) == 0:
        raise ValueError("audio is an empty list. Pass at least one clip.")
    clips = audio if is_list and not is_number(audio[0]) else [audio]  # a list of plain numbers is one clip
    names = [f"audio[{i}]" for i in range(len(clips))] if len(clips) > 1 else ["audio"]
    rates = sampling_rate, target_sampling_rate
    return list(run(lambda clip, name: load_waveform(clip, *rates, name, min_samples), clips, names))


def _open_dict(audio: dict, sampling_rate: int | None, name: str) -> tuple[Any, int | None, str]:
    for key in ("array", "raw"):
        if audio.get(key) is not None:
            own_rate = audio.get("sampling_rate")
            return audio[key], sampling_rate if own_rate is None else own_rate, name
    if audio.get("bytes") is not None:
        return audio["bytes"], sampling_rate, f"{name} ({audio['path']})" if audio.get("path") else name
    if audio.get("path") is not None:
        return audio["path"], sampling_rate, name
    raise ValueError(f"{name}: a dict with keys {sorted(map(str, audio))} holds no audio. Pass {ACCEPTED}.")


def to_array(audio: Any, name: str) -> np.ndarray:
    """Converts any array-like to NumPy without a change of its numbers (bfloat16, which NumPy lacks, becomes float32)."""
    if isinstance(audio, torch.Tensor):
        audio = audio.detach().cpu()
        return (audio.float() if audio.is_floating_point() else audio).numpy()
    if not isinstance(audio, list | tuple) and not hasattr(audio, "__array__"):
        raise TypeError(f"{name}: cannot read audio from {type(audio).__name__}. Pass {ACCEPTED}.")
    try:
        return np.asarray(audio)
    except ValueError as error:
        raise ValueError(
            f"{name}: the nested lists are ragged, so they are no single clip ({error}). Of a pair (rate, samples) make "
            "a dict {'array': samples, 'sampling_rate': rate}."
        ) from error


def is_number(value: Any) -> bool:
    """Tells whether a value is a single number of Python, NumPy or torch."""
    return isinstance(value, numbers.Real) or (
        getattr(value, "ndim", None) == 0 and not isinstance(value, str | bytes)
    )


def check_sampling_rate(sampling_rate: Any, name: str) -> int:
    """Returns a sampling rate in Hz as an `int`, or raises an error where it is no whole number or not possible."""
    if getattr(sampling_rate, "ndim", None) == 0:  # a number of NumPy or torch
        sampling_rate = sampling_rate.item()
    if isinstance(sampling_rate, bool) or not isinstance(sampling_rate, numbers.Real):
        raise TypeError(
            f"{name}: sampling_rate must be a whole number of Hz, got {sampling_rate!r}. Pass for example 44100."
        )
    if not MIN_SAMPLING_RATE <= sampling_rate <= MAX_SAMPLING_RATE or sampling_rate != int(sampling_rate):
        raise ValueError(
            f"{name}: sampling_rate must be a whole number of Hz from {MIN_SAMPLING_RATE} to {MAX_SAMPLING_RATE}, got "
            f"{sampling_rate!r}. Pass the rate the clip was recorded at in Hz (not kHz), for example 44100."
        )
    return int(sampling_rate)


def to_float(samples: np.ndarray, name: str) -> np.ndarray:
    """Converts samples to float32 in about [-1, 1]. Empty, not finite and unscaled audio is an error.

    Integer PCM of b bits is divided by 2^(b-1); 2^(b-1) is first subtracted from unsigned PCM.
    """
    kind = samples.dtype.kind
    if samples.size == 0:
        raise ValueError(f"{name}: the audio is empty (shape {samples.shape}). Drop this clip.")
    if kind in "iu":
        bits = 8 * samples.dtype.itemsize
        if bits > 32:
            raise ValueError(
                f"{name}: {samples.dtype} is no PCM width, so its scale is unknown. Cast to the width of the "
                "recording, for example astype('int16'), or to float scaled into [-1, 1]."
            )
        half = 2.0 ** (bits - 1)
        # A 32-bit integer has more digits than float32, so it is shifted and scaled in float64 and rounded once.
        wide = samples.astype(np.float64 if bits == 32 else np.float32)
        return ((wide - half if kind == "u" else wide) / half).astype(np.float32, copy=False)
    if kind != "f":
        raise TypeError(f"{name}: audio must be float or integer PCM, got dtype {samples.dtype}. Convert it first.")
    # `min`, `max` and `maximum` all return NaN where there is one, so these two passes check everything. Only for a bad
    # clip is the bad sample searched.
    peak = float(np.maximum(-samples.min(), samples.max()))
    if not math.isfinite(peak):
        bad = np.unravel_index(np.argmin(np.isfinite(samples)), samples.shape)
        raise ValueError(
            f"{name}: sample {bad[0] if len(bad) == 1 else tuple(map(int, bad))} is {samples[bad]}. "
            "Repair or drop this clip; the audio must be finite."
        )
    if peak > MAX_FLOAT_PEAK:
        raise ValueError(
            f"{name}: float samples reach {peak:g}, far outside [-1, 1], which looks like integers without their "
            "scale. Divide by full scale (32768 for 16 bits) or pass the integer array itself."
        )
    # A copy, so that the waveform never shares memory with the caller's array, which may be read-only.
    return samples.astype(np.float32)


def to_mono(samples: np.ndarray, name: str, channel_axis: int | None = None) -> np.ndarray:
    """Averages the channels. The result `(samples,)` is contiguous.

    Without `channel_axis`, the channels of a 2-D array are the axis of at most `MAX_CHANNELS` next to a longer one.
    """
    if samples.ndim == 1:
        return np.ascontiguousarray(samples)
    if samples.ndim != 2:
        raise ValueError(
            f"{name}: expected (samples,), (channels, samples) or (samples, channels), got shape {samples.shape}. "
            "Pass several clips as a list."
        )
    if channel_axis is None:
        few = [axis for axis in (0, 1) if samples.shape[axis] <= MAX_CHANNELS]
        if len(few) != 1:
            raise ValueError(
                f"{name}: shape {samples.shape} does not tell channels from samples (one axis must be at most "
                f"{MAX_CHANNELS}, the other longer). Pass mono, or transpose to (channels, samples); pass several "
                "clips as a list."
            )
        channel_axis = few[0]
    samples = np.moveaxis(samples, channel_axis, 1)
    channels = samples.shape[1]
    if channels == 1:
        return np.ascontiguousarray(samples[:, 0])
    # The channels are added one after another. np.mean over an axis this short is ten times slower, and a product with a
    # constant vector rounds by the number of threads of the linear algebra library.
    mono = samples[:, 0] * (1 / channels)
    for channel in range(1, channels):
        mono += samples[:, channel] * (1 / channels)
    return mono


def resample(waveform: torch.Tensor, sampling_rate: int, target_sampling_rate: int, name: str) -> torch.Tensor:
    """Resamples a waveform `(samples,)` with the band-limiting filter of soxr."""
    if sampling_rate == target_sampling_rate:
        return waveform
    try:
        import soxr
    except ImportError as error:
        raise ImportError(
            f"{name}: resampling from {sampling_rate} Hz to {target_sampling_rate} Hz needs soxr (pip install soxr). "
            "Install it, or pass audio at the target rate."
        ) from error
    return torch.from_numpy(soxr.resample(waveform.numpy(), sampling_rate, target_sampling_rate))
