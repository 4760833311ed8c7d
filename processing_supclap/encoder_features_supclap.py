"""The features of an audio encoder of Transformers, made by its own feature extractor, window by window, with a mask."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers import FeatureExtractionMixin
from transformers.utils import cached_file

from .clip_features_supclap import ClipFeatureExtractor
from .feature_extraction_supclap import SupClapFeatureExtractor


if TYPE_CHECKING:
    # Transformers before 5.8 copies only the files that a file names itself, so this one names what its imports need.
    from .audio_supclap import load_waveform  # noqa: F401
    from .decoding_supclap import decode  # noqa: F401


# A saved file names the class of the encoder's extractor. Only these are built from that name.
ENCODER_EXTRACTORS = (
    "ASTFeatureExtractor",
    "ClapFeatureExtractor",
    "WhisperFeatureExtractor",
    "Wav2Vec2FeatureExtractor",
)
# 25 ms, the first analysis window of all of them. A shorter clip, or a shorter rest behind a window, has no features.
MIN_SECONDS = 0.025


class SupClapEncoderFeatureExtractor(ClipFeatureExtractor):
    r"""Gives an audio encoder of Transformers the features it was trained on, for clips of any form, rate and length.

    A clip longer than the encoder's window is cut into windows, each of which goes through the encoder's own feature
    extractor as if it were a clip: nothing is cropped, and nothing is drawn at random. Encoders of waveforms get the
    whole clip. A clip's features are the same alone and in any batch. The mask tells what is neither padding nor the
    repetition by which some extractors fill a window.

    Args:
        encoder_feature_extractor (`dict` or `FeatureExtractionMixin`): The encoder's own feature extractor: that of AST,
            CLAP, Whisper, or wav2vec 2.0 (also for HuBERT and WavLM).

    Example:

    ```python
    >>> import numpy as np
    >>> from processing_supclap import SupClapEncoderFeatureExtractor
    >>> from transformers import ASTFeatureExtractor

    >>> extractor = SupClapEncoderFeatureExtractor(ASTFeatureExtractor())
    >>> extractor(np.zeros(15 * 16000), sampling_rate=16000)["input_features"].shape  # two windows of 10.24 s
    torch.Size([1, 2048, 128])
    ```
    """

    _auto_class = "AutoFeatureExtractor"

    def __init__(self, encoder_feature_extractor: dict | FeatureExtractionMixin, **kwargs):
        own = encoder_feature_extractor
        self.kind = own.get("feature_extractor_type") if isinstance(own, dict) else type(own).__name__
        if self.kind not in ENCODER_EXTRACTORS:
            supported = ", ".join(ENCODER_EXTRACTORS)
            raise ValueError(f"encoder_feature_extractor: {self.kind} is not supported; supported are {supported}.")
        if isinstance(own, dict):
            own = getattr(transformers, self.kind).from_dict(own)
        if getattr(own, "dither", 0.0):
            own.dither = 0.0  # it adds random noise, and an embedding has no randomness
        for name in ("feature_size", "sampling_rate", "padding_value"):
            kwargs.pop(name, None)
        super().__init__(own.feature_size, own.sampling_rate, padding_value=0.0, **kwargs)
        self.encoder_feature_extractor = own
        self.hop_length = round(MIN_SECONDS * self.sampling_rate)

    @classmethod
    def from_encoder_pretrained(cls, audio_model: str) -> ClipFeatureExtractor:
        """Returns the feature extractor for a pretrained audio encoder: this class around the encoder's own, or CED's.

        Args:
            audio_model: Hub id or folder of the encoder. A CED without a saved extractor gets the published features.

        Raises:
            ValueError: The extractor saved beside a CED is of another class.
        """
        if transformers.AutoConfig.from_pretrained(audio_model).model_type != "supclap_ced":
            return cls(transformers.AutoFeatureExtractor.from_pretrained(audio_model))
        # A file that is there and cannot be read is an error, and no reason to take the published features.
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

    def to_dict(self) -> dict[str, Any]:
        output = super().to_dict()
        del output["kind"]
        return {**output, "encoder_feature_extractor": self.encoder_feature_extractor.to_dict()}

    @property
    def window_samples(self) -> int | None:
        """The number of samples of one window at the extractor's rate; `None` for encoders of waveforms."""
        own = self.encoder_feature_extractor
        if self.kind == "ASTFeatureExtractor":
            return own.max_length * own.sampling_rate // 100  # frames of 10 ms
        if self.kind == "ClapFeatureExtractor":
            return own.nb_max_samples
        return own.n_samples if self.kind == "WhisperFeatureExtractor" else None

    def compute(self, waveform: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.window_samples or len(waveform)
        windows, masks = [], []
        for start in range(0, len(waveform), size):
            length = min(size, len(waveform) - start)
            if start and length < self.hop_length:
                break  # the rest behind the last window is too short
            window = self._window(waveform[start : start + length])
            # As many features of a window are real as the clip fills of it.
            real = max(1, round(length / size * len(window)))
            windows.append(window)
            masks.append((torch.arange(len(window)) < real).long())
        return torch.cat(windows), torch.cat(masks)

    def _window(self, waveform: torch.Tensor) -> torch.Tensor:
        """Returns the encoder's features of at most one window, time first."""
        features = self.encoder_feature_extractor(
            waveform.numpy(), sampling_rate=self.sampling_rate, return_tensors="np"
        )
        values = features[self.encoder_feature_extractor.model_input_names[0]][0]
        if self.kind == "ClapFeatureExtractor":
            values = values[0]  # a fusion model has four crops, which are equal for a clip within the window
        elif self.kind == "WhisperFeatureExtractor":
            values = values.T
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


__all__ = ["SupClapEncoderFeatureExtractor"]
