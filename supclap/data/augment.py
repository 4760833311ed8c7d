"""Augmentation for training: of waveforms before mixing, of spectrograms in the collator. Never used in evaluation."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class WaveformAugment:
    """Random speed, level, shift and noise of a waveform.

    Args:
        speeds: Speeds in percent, one drawn per waveform (pitch and length change together); 100 is unchanged.
        gain_db: Largest change of level in dB, up or down.
        roll: Whether to rotate the waveform in time, which suits clips without a beginning and an end.
        noise_db: Range of the level of white noise below the waveform's RMS level in dB; none when omitted.
    """

    speeds: tuple[int, ...] = (100,)
    gain_db: float = 0.0
    roll: bool = False
    noise_db: tuple[float, float] | None = None

    def __call__(self, waveform: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        speed = int(self.speeds[rng.integers(len(self.speeds))])
        waveform = change_speed(waveform, speed)
        if self.roll:
            waveform = np.roll(waveform, rng.integers(len(waveform)))
        if self.noise_db is not None:
            level = np.sqrt(np.mean(np.square(waveform))) * 10 ** (-rng.uniform(*self.noise_db) / 20)
            waveform = waveform + level * rng.standard_normal(len(waveform), np.float32)
        return (waveform * 10 ** (rng.uniform(-self.gain_db, self.gain_db) / 20)).astype(np.float32)


def change_speed(waveform: np.ndarray, speed: int) -> np.ndarray:
    """Returns a waveform at so many percent of its speed; pitch and length change together.

    It is resampled by soxr, which computes with one thread: a convolution of torch would round by the number of torch's
    threads, and a scene would not be a function of seed, epoch and index alone.
    """
    if speed == 100:
        return waveform
    import soxr

    changed = soxr.resample(waveform, speed, 100)
    # At a high speed soxr rounds the length of one sample, such as a trimmed click, to zero.
    return changed if len(changed) else waveform[:1]


@dataclass
class SpectrogramAugment:
    """SpecAugment masks and a random frequency response, on log-mel features in dB.

    Args:
        frequency_masks: Number of masks over mel bands.
        frequency_width: Largest width of such a mask in bands.
        time_masks: Number of masks over frames.
        time_width: Largest width of such a mask in frames.
        response_db: Largest gain of a random, piecewise linear frequency response (FilterAugment,
            https://arxiv.org/abs/2110.03282) in dB; it stands for rooms and microphones.
        response_points: Corners of that response.
    """

    frequency_masks: int = 0
    frequency_width: int = 8
    time_masks: int = 0
    time_width: int = 32
    response_db: float = 0.0
    response_points: int = 4

    def __call__(self, features: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Augments `(batch, time, mels)` features in dB; padding stays zero.

        Masked cells take the mean of their clip, so that a mask carries no level of its own.
        """
        batch, length, bins = features.shape
        real = mask[..., None].to(features.dtype)
        if self.response_db:
            corners = torch.rand(batch, 1, self.response_points, generator=generator) * 2 - 1
            response = torch.nn.functional.interpolate(corners, bins, mode="linear", align_corners=True)
            features = (features + response.to(features) * self.response_db) * real
        if self.frequency_masks or self.time_masks:
            mean = features.sum((1, 2), keepdim=True) / (real.sum((1, 2), keepdim=True) * bins)
            hidden = torch.zeros(batch, length, bins, dtype=torch.bool)
            for _ in range(self.frequency_masks):
                hidden |= _stripes(batch, bins, self.frequency_width, generator)[:, None, :]
            for _ in range(self.time_masks):
                hidden |= _stripes(batch, length, self.time_width, generator)[:, :, None]
            features = torch.where(hidden.to(features.device), mean, features) * real
        return features


def _stripes(batch: int, size: int, largest: int, generator: torch.Generator) -> torch.Tensor:
    """One random stripe per item, `(batch, size)`, of a width between 0 and `largest`."""
    width = torch.rand(batch, 1, generator=generator) * largest
    start = torch.rand(batch, 1, generator=generator) * (size - width)
    positions = torch.arange(size)
    return (positions >= start) & (positions < start + width)
