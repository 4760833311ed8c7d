"""What all feature extractors share: clips of any form in, one padded batch of features with a mask out."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import BatchFeature, FeatureExtractionMixin

from .audio_supclap import load_waveforms


if TYPE_CHECKING:
    # Transformers before 5.8 copies only the files that a file names itself, so this one names what its imports need.
    from .decoding_supclap import decode  # noqa: F401


@contextmanager
def clip_workers() -> Iterator[Callable]:
    """Gives a `map` that works on as many clips at once as torch has threads, each clip on one thread.

    The operations on one clip are too small to be worth sharing among threads. Worse, where other processes use the
    cores, each operation waits at its end for the slowest thread, which can take a hundred times as long as the work.

    So torch is set to one thread for a while, and the threads of the pool, which start in that time, keep that setting.
    Outside the main thread everything is done in sequence. Otherwise, if two calls overlapped, the second one would find
    the one thread that the first has set, and restore that number at its end.
    """
    threads = torch.get_num_threads()
    if threads == 1 or threading.current_thread() is not threading.main_thread():
        yield map
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(threads)


class ClipFeatureExtractor(FeatureExtractionMixin):
    """Turns clips into the features of an audio encoder.

    The base class is the one that saves and loads. `SequenceFeatureExtractor` would add a `pad` that nothing here uses and
    that Transformers plans to change.
    """

    model_input_names = ["input_features", "input_features_mask"]
    # Whether the features are computed on the device that a caller asks for, or on the CPU and moved there.
    computes_on_device = False
    # The shortest accepted clip, in samples.
    hop_length: int

    def __init__(self, feature_size: int, sampling_rate: int, padding_value: float, **kwargs):
        self.feature_size = feature_size
        self.sampling_rate = sampling_rate
        self.padding_value = padding_value
        # Read by the pipelines of Transformers, and part of the saved file since the first version.
        self.padding_side = kwargs.pop("padding_side", "right")
        self.return_attention_mask = kwargs.pop("return_attention_mask", True)
        super().__init__(**kwargs)

    @abstractmethod
    def compute(self, waveform: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes the features of one waveform `(samples,)`: `(time, …)`, and which of them are real, int64 `(time,)`.

        `device` is the CPU unless the class `computes_on_device`.
        """

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
            max_length: Length to pad to with `padding="max_length"`, in frames; in samples for encoders of waveforms.
            pad_to_multiple_of: Rounds the length up to a multiple of this.
            truncation: Refused: an embedding is a function of the whole clip, and the model windows long ones.
            return_tensors: `"pt"` or `"np"`.
            device: Where the results of `"pt"` are put, and computed where the extractor can.

        Returns:
            `input_features`, float32, `(batch, time, feature_size)`, or `(batch, samples)` for encoders of waveforms, and
            `input_features_mask`, int64, `(batch, time)` or `(batch, samples)`, 1 for what is real.

        Raises:
            ValueError: No clip; options that contradict each other or would cut; and whatever [`load_waveform`]
                raises, with the position of the clip in the list.
        """
        if truncation:
            raise ValueError("truncation is not supported: features cover the whole clip. Cut the audio beforehand.")
        return_tensors = getattr(return_tensors, "value", return_tensors)
        if return_tensors not in ("pt", "np", None):
            raise ValueError(f"return_tensors must be 'pt' or 'np', got {return_tensors!r}.")
        compute_device = torch.device("cpu" if device is None or not self.computes_on_device else device)
        # Each clip is computed by itself and not the padded batch at once. So nothing can leak between neighbors, no time
        # is lost on padding, and a clip fits into the cache, which makes it three times as fast on a CPU.
        with clip_workers() as parallel_map:
            waveforms = load_waveforms(raw_speech, sampling_rate, self.sampling_rate, self.hop_length, parallel_map)
            # A GPU has a current stream for each thread, and the caller's is that of this thread.
            compute_map = parallel_map if compute_device.type == "cpu" else map
            computed = list(compute_map(self.compute, waveforms, [compute_device] * len(waveforms)))
        lengths = [len(features) for features, _ in computed]
        length = _padded_length(lengths, padding, max_length, pad_to_multiple_of)
        like = computed[0][0]
        features = like.new_full((len(computed), length, *like.shape[1:]), self.padding_value)
        mask = like.new_zeros((len(computed), length), dtype=torch.long)
        for row, (of_clip, real) in enumerate(computed):
            features[row, : len(of_clip)] = of_clip
            mask[row, : len(of_clip)] = real
        inputs = {"input_features": features, "input_features_mask": mask}
        if return_tensors == "pt":
            return BatchFeature({name: values.to(device) for name, values in inputs.items()})
        return BatchFeature({name: values.cpu().numpy() for name, values in inputs.items()})


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


__all__ = ["ClipFeatureExtractor", "clip_workers"]
