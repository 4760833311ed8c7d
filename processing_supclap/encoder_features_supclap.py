"""The features of a Hugging Face audio encoder, made by its own feature extractor, window by window, with a mask."""

from typing import Any

import numpy as np
import torch
import transformers
from transformers import BatchFeature, SequenceFeatureExtractor
from transformers.utils import cached_file

from .audio_supclap import as_clips, load_waveform
from .feature_extraction_supclap import SupClapFeatureExtractor, clip_workers


# Nothing else is built from the name in a saved file.
ENCODER_EXTRACTORS = (
    "ASTFeatureExtractor",
    "ClapFeatureExtractor",
    "WhisperFeatureExtractor",
    "Wav2Vec2FeatureExtractor",
)
# 25 ms, the first analysis window of all of them; a rest that is shorter brings nothing.
MIN_SECONDS = 0.025


class SupClapEncoderFeatureExtractor(SequenceFeatureExtractor):
    r"""Gives a Hugging Face audio encoder the features it was trained on, for clips of any form, rate and length.

    A clip longer than the encoder's window is cut into windows, each of which goes through the encoder's own feature
    extractor as a clip of its own: nothing is cropped, and nothing is drawn at random. Encoders of waveforms get the
    whole clip. A clip's features are the same alone and in any batch.

    Args:
        encoder_feature_extractor (`dict` or `SequenceFeatureExtractor`): The encoder's own: of AST, CLAP, Whisper, or
            wav2vec 2.0 (also HuBERT and WavLM).
    """

    _auto_class = "AutoFeatureExtractor"
    model_input_names = ["input_features", "input_features_mask"]

    def __init__(self, encoder_feature_extractor: dict | SequenceFeatureExtractor, **kwargs):
        if isinstance(encoder_feature_extractor, dict):
            encoder_feature_extractor = _from_dict(encoder_feature_extractor)
        own = encoder_feature_extractor
        self.kind = type(own).__name__
        if self.kind not in ENCODER_EXTRACTORS:
            raise ValueError(f"{self.kind} is not supported; supported are {', '.join(ENCODER_EXTRACTORS)}.")
        if getattr(own, "dither", 0.0):
            own.dither = 0.0  # an embedding has no randomness
        for name in ("feature_size", "sampling_rate", "padding_value"):
            kwargs.pop(name, None)
        super().__init__(own.feature_size, own.sampling_rate, padding_value=0.0, **kwargs)
        self.encoder_feature_extractor = own
        # also the shortest clip that is accepted
        self.hop_length = round(MIN_SECONDS * self.sampling_rate)

    @classmethod
    def from_encoder_pretrained(cls, audio_model: str) -> SequenceFeatureExtractor:
        """The feature extractor for a pretrained audio encoder: this one around the encoder's own, or that of CED.

        Args:
            audio_model: Hub id or folder of the encoder. A CED without a file of features has the published ones.

        Raises:
            ValueError: The file of features beside a CED is that of another class.
        """
        if transformers.AutoConfig.from_pretrained(audio_model).model_type == "supclap_ced":
            return _of_ced(audio_model)
        return cls(transformers.AutoFeatureExtractor.from_pretrained(audio_model))

    def to_dict(self) -> dict[str, Any]:
        output = {
            key: value for key, value in self.__dict__.items() if key not in ("encoder_feature_extractor", "kind")
        }
        output["encoder_feature_extractor"] = self.encoder_feature_extractor.to_dict()
        output["feature_extractor_type"] = type(self).__name__
        return output

    @property
    def window_samples(self) -> int | None:
        """Samples of one window at the extractor's rate; None for encoders of waveforms."""
        own = self.encoder_feature_extractor
        if self.kind == "ASTFeatureExtractor":
            return own.max_length * own.sampling_rate // 100  # frames of 10 ms
        if self.kind == "ClapFeatureExtractor":
            return own.nb_max_samples
        return own.n_samples if self.kind == "WhisperFeatureExtractor" else None

    def __call__(
        self,
        raw_speech: Any,
        sampling_rate: int | None = None,
        padding: bool | str = True,
        truncation: bool | None = None,
        return_tensors: str | None = "pt",
        device: str | torch.device | None = None,
    ) -> BatchFeature:
        """Computes the features of one clip, or of a list of clips.

        Args:
            raw_speech: A clip in any form that [`load_waveform`] takes, or a list of clips.
            sampling_rate: Rate in Hz of bare arrays. Files, dicts and decoders carry their own.
            padding: True: to the longest clip.
            truncation: Refused: an embedding is a function of the whole clip.
            return_tensors: `"pt"` or `"np"`.
            device: Where to put the results; the encoders' extractors compute on the CPU.

        Returns:
            `input_features`, float32, (batch, windows · time, bins) or (batch, samples), and `input_features_mask`,
            int64, (batch, windows · time) or (batch, samples), 1 for what is neither padding nor repetition.

        Raises:
            ValueError: No clip, options that would cut, and whatever [`load_waveform`] raises.
        """
        if truncation:
            raise ValueError("truncation is not supported: features cover the whole clip. Cut the audio beforehand.")
        if padding not in (True, "longest"):
            raise ValueError(f"padding must be True (to the longest clip), got {padding!r}.")
        clips = as_clips(raw_speech)
        names = [f"audio[{i}]" for i in range(len(clips))] if len(clips) > 1 else ["audio"]

        def compute(clip: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
            return self._features(
                load_waveform(clip, sampling_rate, self.sampling_rate, name, self.hop_length).numpy()
            )

        with clip_workers() as parallel_map:
            features, masks = zip(*parallel_map(compute, clips, names))
        pad = torch.nn.utils.rnn.pad_sequence
        inputs = {"input_features": pad(features, True), "input_features_mask": pad(masks, True)}
        if getattr(return_tensors, "value", return_tensors) == "pt":
            return BatchFeature(inputs if device is None else {key: value.to(device) for key, value in inputs.items()})
        return BatchFeature({key: value.numpy() for key, value in inputs.items()})

    def _features(self, waveform: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """One clip's features, windows one after another, and which of them are real."""
        size = self.window_samples
        if size is None:
            features = self._window(waveform)
            return features, torch.ones(len(features), dtype=torch.long)
        starts = [s for s in range(0, len(waveform), size) if s == 0 or len(waveform) - s >= self.hop_length]
        windows = [self._window(waveform[start : start + size]) for start in starts]
        masks = []
        for start, window in zip(starts, windows, strict=True):
            share = min(size, len(waveform) - start) / size
            masks.append((torch.arange(len(window)) < max(1, round(share * len(window)))).long())
        return torch.cat(windows), torch.cat(masks)

    def _window(self, waveform: np.ndarray) -> torch.Tensor:
        """The encoder's features of at most one window, time first."""
        features = self.encoder_feature_extractor(waveform, sampling_rate=self.sampling_rate, return_tensors="np")
        values = features[self.encoder_feature_extractor.model_input_names[0]][0]
        if self.kind == "ClapFeatureExtractor":
            values = values[0]  # a clip within the window is the same in all four crops of a fusion model
        elif self.kind == "WhisperFeatureExtractor":
            values = values.T
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _of_ced(audio_model: str) -> SupClapFeatureExtractor:
    """What is saved beside a CED; a file that is there and cannot be read is an error, not a reason for the default."""
    files = ("processor_config.json", "preprocessor_config.json")
    if not any(cached_file(audio_model, file, _raise_exceptions_for_missing_entries=False) for file in files):
        return SupClapFeatureExtractor()
    saved, _ = SupClapFeatureExtractor.get_feature_extractor_dict(audio_model)
    kind = saved.get("feature_extractor_type")
    if kind != SupClapFeatureExtractor.__name__:
        raise ValueError(
            f"{audio_model} is a CED, but the features saved beside it are those of {kind!r}. Save its "
            f"{SupClapFeatureExtractor.__name__} there, or remove the file for the published features."
        )
    return SupClapFeatureExtractor.from_dict(saved)


def _from_dict(config: dict) -> SequenceFeatureExtractor:
    config = dict(config)
    name = config.pop("feature_extractor_type", None)
    if name not in ENCODER_EXTRACTORS:
        raise ValueError(
            f"encoder_feature_extractor has the feature_extractor_type {name!r}; supported are "
            f"{', '.join(ENCODER_EXTRACTORS)}."
        )
    return getattr(transformers, name)(**config)


__all__ = ["SupClapEncoderFeatureExtractor"]
