"""Clips to log-mel spectrograms in dB with a mask, in torch, on CPU or GPU."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import BatchFeature, SequenceFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from .audio_supclap import as_clips, load_waveform


if TYPE_CHECKING:
    # Transformers before 5.8 opens a folder with the files alone that a file names itself.
    from .decoding_supclap import decode  # noqa: F401


@contextmanager
def clip_workers() -> Iterator[Callable]:
    """Gives a `map` that works on as many clips at once as torch has threads, each on one of them.

    The operations on a clip are too small to share: that gains nothing, and where other processes use the cores,
    waiting for the slower thread at the end of each operation takes up to a hundred times as long as the work. Threads
    that start while torch is set to one thread keep that setting. Off the main thread all is done in sequence: there,
    the setting that another call made for a moment could be mistaken for the one to restore.
    """
    threads = torch.get_num_threads()
    if threads == 1 or threading.current_thread() is not threading.main_thread():
        yield map
        return
    torch.set_num_threads(1)
    inference = torch.is_inference_mode_enabled()  # each thread has a mode of its own, and they write into one tensor

    def parallel_map(function: Callable, *items) -> Iterator:
        def call(*arguments):
            with torch.inference_mode(inference):
                return function(*arguments)

        return pool.map(call, *items)

    try:
        with ThreadPoolExecutor(threads) as pool:
            yield parallel_map
    finally:
        torch.set_num_threads(threads)


class SupClapFeatureExtractor(SequenceFeatureExtractor):
    r"""Log-mel spectrograms as the CED encoders were trained on (https://arxiv.org/abs/2308.11957).

    Periodic Hann window, frames centred on multiples of the hop with reflected edges, power spectrum, HTK mel filters
    without normalisation, `10 log10(max(power, 1e-10))`, and nothing below `top_db` under the loudest value *of the
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
    """

    _auto_class = "AutoFeatureExtractor"
    model_input_names = ["input_features", "input_features_mask"]

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
        # These two names are the ones that the base class leaves out of the saved JSON.
        self.mel_filters = mel_filter_bank(
            num_frequency_bins=n_fft // 2 + 1,
            num_mel_filters=feature_size,
            min_frequency=f_min,
            max_frequency=f_max,
            sampling_rate=sampling_rate,
            norm=None,
            mel_scale="htk",
        ).astype(np.float32)
        margin = n_fft - win_length
        self.window = np.pad(np.hanning(win_length + 1)[:-1], (margin // 2, margin - margin // 2)).astype(np.float32)

    def num_frames(self, num_samples: int) -> int:
        """Frames of a clip of `num_samples` at the extractor's rate."""
        return 1 + num_samples // self.hop_length

    @torch.no_grad()
    def __call__(
        self,
        raw_speech: Any,
        sampling_rate: int | None = None,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        truncation: bool | None = None,
        return_tensors: str | None = "pt",
        device: str | torch.device | None = None,
    ) -> BatchFeature:
        """Computes the features of one clip, or of a list of clips.

        Args:
            raw_speech: A clip in any form that [`load_waveform`] takes (path, bytes, array, tensor, dict, decoder), or
                a list of clips. A list of plain numbers is one clip. A 2-D array is one multi-channel clip, never a
                batch: pass a batch as a list.
            sampling_rate: Rate in Hz of bare arrays, which are resampled when it differs from the extractor's. Files,
                dicts and decoders carry their own.
            padding: `True` or `"longest"` pads to the longest clip, `"max_length"` to `max_length`; `False` pads
                nothing and needs clips of one length.
            max_length: Frames (not samples) to pad to with `padding="max_length"`.
            pad_to_multiple_of: Rounds the number of frames up to a multiple of this.
            truncation: Refused: an embedding is a function of the whole clip, and the model windows long ones.
            return_tensors: `"pt"` or `"np"`.
            device: Where to compute; results of `"pt"` stay there.

        Returns:
            `input_features`, float32 dB, (batch, time, feature_size), and `input_features_mask`, int64,
            (batch, time), 1 for real frames.

        Raises:
            ValueError: No clip; padding options that contradict each other or would cut; and whatever
                [`load_waveform`] raises, with the position of the clip in the list.
        """
        if truncation:
            raise ValueError("truncation is not supported: features cover the whole clip. Cut the audio beforehand.")
        if getattr(return_tensors, "value", return_tensors) not in ("pt", "np", None):
            raise ValueError(f"return_tensors must be 'pt' or 'np', got {return_tensors!r}.")
        clips = as_clips(raw_speech)
        names = [f"audio[{i}]" for i in range(len(clips))] if len(clips) > 1 else ["audio"]
        filters, window = torch.from_numpy(self.mel_filters).to(device), torch.from_numpy(self.window).to(device)

        def load(clip: Any, name: str) -> torch.Tensor:
            return load_waveform(clip, sampling_rate, self.sampling_rate, name, self.hop_length)

        # Clip by clip rather than one transform of the padded batch: nothing can leak between neighbours, no time is
        # lost on padding, and a clip fits in the cache, which on the CPU is three times as fast.
        def compute(features: torch.Tensor, mask: torch.Tensor, waveform: torch.Tensor, length: int) -> None:
            features[:length] = self._log_mel(waveform.to(device), filters, window)
            mask[:length] = 1

        with clip_workers() as parallel_map:
            waveforms = list(parallel_map(load, clips, names))
            lengths = [self.num_frames(len(waveform)) for waveform in waveforms]
            padded_length = self._padded_length(lengths, padding, max_length, pad_to_multiple_of)
            features = filters.new_full((len(clips), padded_length, self.feature_size), self.padding_value)
            mask = filters.new_zeros((len(clips), padded_length), dtype=torch.long)
            # The current stream of a GPU belongs to this thread.
            compute_map = parallel_map if filters.device.type == "cpu" else map
            list(compute_map(compute, features, mask, waveforms, lengths))
        inputs = {"input_features": features, "input_features_mask": mask}
        if getattr(return_tensors, "value", return_tensors) == "pt":
            return BatchFeature(inputs)
        return BatchFeature({key: value.cpu().numpy() for key, value in inputs.items()})

    @staticmethod
    def _padded_length(
        lengths: list[int], padding: bool | str, max_length: int | None, pad_to_multiple_of: int | None
    ) -> int:
        padding = getattr(padding, "value", padding)
        if padding not in (True, False, "longest", "max_length", "do_not_pad"):
            raise ValueError(f"padding must be True, 'longest', 'max_length' or False, got {padding!r}.")
        if (padding == "max_length") != (max_length is not None):
            raise ValueError("padding='max_length' and max_length (in frames) belong together: pass both or neither.")
        longest = max(lengths)
        if padding in (False, "do_not_pad"):
            if min(lengths) != longest:
                raise ValueError(f"padding=False needs clips of one length, got {lengths} frames. Use padding=True.")
            return longest
        if max_length is not None:
            if longest > max_length:
                raise ValueError(
                    f"audio[{lengths.index(longest)}] has {longest} frames, more than max_length={max_length}. Raise "
                    "max_length (clips are never cut), or cut the audio beforehand."
                )
            longest = max_length
        if pad_to_multiple_of:
            longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
        return longest

    def _log_mel(self, waveform: torch.Tensor, filters: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """(samples,) to dB of shape (time, feature_size)."""
        length = self.num_frames(len(waveform))
        margin = self.n_fft // 2
        if len(waveform) <= margin:  # reflection needs more samples than it mirrors
            waveform = torch.nn.functional.pad(waveform, (0, margin + 1 - len(waveform)))
        before, after = waveform[1 : margin + 1].flip(0), waveform[-margin - 1 : -1].flip(0)
        frames = torch.cat((before, waveform, after)).unfold(0, self.n_fft, self.hop_length)[:length]
        # Squared in place and added as two strided halves: the fastest of the equal ways on the CPU.
        squares = torch.view_as_real(torch.fft.rfft(frames * window)).square_()
        power = squares[..., 0] + squares[..., 1]
        # An outer autocast would run this product in half precision.
        with torch.autocast(waveform.device.type, enabled=False):
            decibels = (power @ filters).clamp_(min=1e-10).log10_().mul_(10)
        return decibels.clamp_(min=decibels.max() - self.top_db)


__all__ = ["SupClapFeatureExtractor", "clip_workers"]
