"""Loads a random crop of a clip; only that part is decoded and resampled where the format of the file allows it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from processing_supclap.audio_supclap import load_waveform, resample, to_float, to_mono
from processing_supclap.decoding_supclap import check_not_truncated

from .rows import encoded_audio


# Crops begin on a grid of 40 ms, which falls on whole samples at every usual rate: the samples of a crop are then those
# of the whole clip, whatever rate it is stored at.
GRID = 25  # per second
# What is decoded beyond the crop on either side, for the resampler's filter; in steps of the grid.
MARGIN = 5
# Formats in which libsndfile finds a sample exactly.
SEEKABLE = ("WAV", "WAVEX", "FLAC", "OGG", "AIFF", "AU", "W64", "RF64")


def header_duration(audio: Any) -> float | None:
    """Seconds of a sound file as its header tells them; `None` where it does not, or where there is no file."""
    import soundfile

    audio = encoded_audio(audio)
    if not isinstance(audio, str | Path):
        return None
    try:
        info = soundfile.info(str(audio))
    except (OSError, soundfile.SoundFileError):
        return None
    return info.frames / info.samplerate if info.frames > 0 else None


def load_crop(audio: Any, sampling_rate: int, longest: int, rng: np.random.Generator, name: str) -> np.ndarray:
    """Loads a clip, or a random crop of it where it is longer.

    Args:
        audio: A clip in any form that [`load_waveform`] takes.
        sampling_rate: Rate in Hz of the result.
        longest: Longest result in samples.
        rng: Draws the crop: one draw, whatever the length.
        name: What error messages call the clip.

    Returns:
        Float32 of shape (samples,).

    Raises:
        ValueError: What [`load_waveform`] refuses, or a file that ends before its header says.
    """
    draw = rng.random()
    waveform = _load_part(audio, sampling_rate, longest, draw, name)
    if waveform is None:
        waveform = load_waveform(audio, target_sampling_rate=sampling_rate, name=name).numpy()
        start = _start(len(waveform), sampling_rate, longest, draw)
        waveform = waveform[start : start + longest]
    return waveform


def _start(samples: int, sampling_rate: int, longest: int, draw: float) -> int:
    """Where the crop begins, in samples: at one of the places of the grid, each as likely as the others."""
    step = sampling_rate // GRID
    return int(draw * (max(samples - longest, 0) // step + 1)) * step


def _load_part(audio: Any, sampling_rate: int, longest: int, draw: float, name: str) -> np.ndarray | None:
    """The crop alone; `None` where the whole clip has to be loaded, or is hardly longer than the crop."""
    audio = encoded_audio(audio)
    if not isinstance(audio, str | Path | bytes) or sampling_rate % GRID:
        return None
    where = "" if isinstance(audio, bytes) else f" ({audio})"
    try:
        import soundfile

        audio = check_not_truncated(audio if isinstance(audio, bytes) else str(audio), f"{name}{where}")
        file = soundfile.SoundFile(io.BytesIO(audio) if isinstance(audio, bytes) else audio)
    except (ImportError, OSError, RuntimeError, TypeError):
        return None  # for another decoder, or to say what is wrong
    with file:
        # `samples`, `longest` and `step` count samples at the wanted rate; `first`, `start` and `last` count steps of the
        # grid; what is read from the file counts samples at its own rate, of which a step has rate // GRID.
        rate = file.samplerate
        samples = file.frames * sampling_rate // rate
        step = sampling_rate // GRID
        if rate % GRID or file.format not in SEEKABLE or samples < longest + 4 * MARGIN * step:
            return None
        start = _start(samples, sampling_rate, longest, draw) // step
        first = max(start - MARGIN, 0)
        last = start + -(-longest // step) + MARGIN
        wanted = min((last - first) * (rate // GRID), file.frames - first * (rate // GRID))
        try:
            file.seek(first * (rate // GRID))
            decoded = file.read(wanted, dtype="int16" if file.subtype == "PCM_16" else "float32", always_2d=True)
        except RuntimeError:  # of libsndfile
            decoded = np.zeros((0, 1), np.float32)
    if len(decoded) < wanted:
        raise ValueError(
            f"{name}{where}: the file ends before its header says. Get it again, or leave it out (skip_bad: true)."
        )
    waveform = torch.from_numpy(to_mono(to_float(decoded, name), name, 1))
    waveform = resample(waveform, rate, sampling_rate, name).numpy()
    skipped = (start - first) * step
    return waveform[skipped : skipped + longest]
