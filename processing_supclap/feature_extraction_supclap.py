"""Clips to log-mel spectrograms in dB with a mask, in torch, on CPU or GPU."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from .clip_features_supclap import ClipFeatureExtractor


if TYPE_CHECKING:
    # Transformers before 5.8 copies only the files that a file names itself, so this one names what its imports need.
    from .audio_supclap import load_waveform  # noqa: F401
    from .decoding_supclap import decode  # noqa: F401


def mel_filter_bank(num_bins: int, num_mels: int, f_min: float, f_max: float, sampling_rate: int) -> np.ndarray:
    """Returns triangular filters that are evenly spaced on the HTK mel scale, each with a peak of 1.

    The scale is `mel(f) = 2595 log10(1 + f / 700)`. On an even grid of `num_mels + 2` points from `mel(f_min)` to
    `mel(f_max)`, filter `m` rises from point `m` to point `m + 1` and falls to point `m + 2`, linearly in Hz.

    It is written out here because this file travels with every checkpoint and cannot be mended there, and Transformers
    plans to remove its function. All frequencies are in Hz; the result is float32, `(num_bins, num_mels)`.
    """
    lowest, highest = (2595.0 * np.log10(1.0 + frequency / 700.0) for frequency in (f_min, f_max))
    corners = 700.0 * (10.0 ** (np.linspace(lowest, highest, num_mels + 2) / 2595.0) - 1.0)
    # Half of an odd rate is rounded down, as torchaudio does, with which CED was trained.
    frequencies = np.linspace(0, sampling_rate // 2, num_bins)[:, None]
    widths = np.diff(corners)
    rising = (frequencies - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - frequencies) / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)


class SupClapFeatureExtractor(ClipFeatureExtractor):
    r"""Log-mel spectrograms as the CED encoders were trained on (https://arxiv.org/abs/2308.11957).

    Periodic Hann window, frames centered on multiples of the hop with reflected edges, power spectrum, HTK mel filters
    without normalization, `10 log10(max(power, 1e-10))`, and nothing below `top_db` under the loudest value *of the
    clip*. A clip's features are the same alone and in any batch.

    Args:
        feature_size (`int`): Number of mel bands.
        sampling_rate (`int`): Rate in Hz the features are computed at; every clip is resampled to it.
        padding_value (`float`): What padded frames hold.
        n_fft (`int`): Size of the Fourier transform in samples.
        win_length (`int`): Length of the window in samples, at most `n_fft`.
        hop_length (`int`): Samples between frames; also the shortest accepted clip.
        f_min (`float`): Lowest frequency in Hz.
        f_max (`float`): Highest frequency in Hz.
        top_db (`float`): Dynamic range in dB.

    Example:

    ```python
    >>> import numpy as np
    >>> from processing_supclap import SupClapFeatureExtractor

    >>> extractor = SupClapFeatureExtractor()
    >>> inputs = extractor([np.zeros(16000), np.zeros(8000)], sampling_rate=16000)
    >>> inputs["input_features"].shape, inputs["input_features_mask"].sum(1)
    (torch.Size([2, 101, 64]), tensor([101,  51]))
    ```
    """

    _auto_class = "AutoFeatureExtractor"
    computes_on_device = True

    def __init__(
        self,
        feature_size: int = 64,
        sampling_rate: int = 16000,
        padding_value: float = 0.0,
        n_fft: int = 512,
        win_length: int = 512,
        hop_length: int = 160,
        f_min: float = 0.0,
        f_max: float = 8000.0,
        top_db: float = 120.0,
        **kwargs,
    ):
        super().__init__(feature_size=feature_size, sampling_rate=sampling_rate, padding_value=padding_value, **kwargs)
        if min(feature_size, win_length, hop_length) < 1:
            raise ValueError(
                f"feature_size ({feature_size}), win_length ({win_length}) and hop_length ({hop_length}) must be at least 1."
            )
        if win_length > n_fft:
            raise ValueError(f"win_length ({win_length}) must be at most n_fft ({n_fft}).")
        if f_max > sampling_rate / 2:
            raise ValueError(f"f_max ({f_max} Hz) must be at most half the sampling_rate ({sampling_rate} Hz).")
        self.n_fft = n_fft
        self.win_length = win_length
        self.hop_length = hop_length
        self.f_min = f_min
        self.f_max = f_max
        self.top_db = top_db
        # The base class leaves out attributes of these two names when it saves, and no others.
        self.mel_filters = mel_filter_bank(n_fft // 2 + 1, feature_size, f_min, f_max, sampling_rate)
        margin = n_fft - win_length
        self.window = np.pad(np.hanning(win_length + 1)[:-1], (margin // 2, margin - margin // 2)).astype(np.float32)

    def compute(self, waveform: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        # `supclap.export` has the same steps in a form that can be traced for a whole batch; change both together.
        waveform = waveform.to(device)
        filters, window = torch.from_numpy(self.mel_filters).to(device), torch.from_numpy(self.window).to(device)
        length = 1 + len(waveform) // self.hop_length
        margin = self.n_fft // 2
        if len(waveform) <= margin:  # reflection needs more samples than it mirrors
            waveform = torch.nn.functional.pad(waveform, (0, margin + 1 - len(waveform)))
        before, after = waveform[1 : margin + 1].flip(0), waveform[-margin - 1 : -1].flip(0)
        frames = torch.cat((before, waveform, after)).unfold(0, self.n_fft, self.hop_length)[:length]
        # The power, real² + imaginary²: squared in place, then added as two strided halves. Of several ways with the same
        # result this is the fastest on a CPU.
        squares = torch.view_as_real(torch.fft.rfft(frames * window)).square_()
        power = squares[..., 0] + squares[..., 1]
        # An outer autocast would run this product in half precision.
        with torch.autocast(waveform.device.type, enabled=False):
            decibels = (power @ filters).clamp_(min=1e-10).log10_().mul_(10)
        decibels.clamp_(min=decibels.max() - self.top_db)
        return decibels, torch.ones(length, dtype=torch.long, device=device)


__all__ = ["SupClapFeatureExtractor", "mel_filter_bank"]
