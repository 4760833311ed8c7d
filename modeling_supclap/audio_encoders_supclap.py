"""Audio encoders of Transformers behind one interface: features and a mask in, one vector for each clip out.

Each encoder keeps its own weights, code and features. The adapters here cut clips that are longer than the encoder's
window into windows, average these by their real length, and make sure that padding changes nothing. They also switch
off what would make an embedding depend on other clips of the batch (batch statistics), and leave out weights that no
embedding uses and that would get no gradient (mask embeddings, the fusion of random crops).
"""

from abc import ABC, abstractmethod

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput

from .configuration_supclap import CedConfig
from .modeling_ced import CedModel, FixedBatchNorms
from .windows_supclap import masked_mean, place_windows


class WindowedAudioEncoder(FixedBatchNorms, ABC):
    """An audio encoder that sees a clip window by window, with `window` features in each."""

    # Whether the encoder takes whole windows only. Its feature extractor then fills the last window of a clip.
    fixed_length = True

    def __init__(self, encoder: PreTrainedModel, window: int):
        super().__init__()
        self.encoder = encoder
        self.config = encoder.config
        self.window = window
        # The model around this one collects these two attributes from its direct children.
        self._no_split_modules = encoder._no_split_modules
        self._keep_in_fp32_modules_strict = encoder._keep_in_fp32_modules_strict

    def forward(
        self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None, **kwargs
    ) -> BaseModelOutputWithPooling:
        r"""
        Args:
            input_features: Spectrograms `(batch, time, bins)`, or waveforms `(batch, samples)`; for encoders of a fixed
                length, `time` is a whole number of windows.
            input_features_mask: 1 for real features and 0 for padding, `(batch, time)`; all real when omitted.

        Returns:
            `last_hidden_state` `(batch, windows · tokens, hidden_size)`, zero in windows that hold nothing of a clip;
            `pooler_output` `(batch, hidden_size)`: the mean over windows, weighted by their real length. With
            `output_hidden_states`, also the encoder's `hidden_states`, with the windows of a clip in a row; with
            `output_attentions`, its `attentions`.

        Raises:
            ValueError: The features do not fill whole windows, or the encoder does not return the hidden states or
                attentions that are asked for, or not in a form whose windows can be put in a row.
        """
        batch, length = input_features.shape[:2]
        if input_features_mask is None:
            input_features_mask = input_features.new_ones(batch, length, dtype=torch.long)
        missing = -length % self.window
        if missing and self.fixed_length:
            raise ValueError(
                f"input_features has {length} frames, but {self.config.model_type} takes windows of {self.window}; "
                "use the feature extractor that was saved with the model."
            )
        if missing and length > self.window:  # an encoder of any length: fill the last window with padding
            padding = (0, 0) * (input_features.ndim - 2) + (0, missing)
            input_features = nn.functional.pad(input_features, padding)
            input_features_mask = nn.functional.pad(input_features_mask, (0, missing))
        size = min(self.window, input_features.shape[1])
        windows = input_features.unflatten(1, (-1, size)).to(self.encoder.dtype)
        real = input_features_mask.unflatten(1, (-1, size)).sum(-1)  # (batch, windows): real features of each
        used = real >= self.shortest_window()
        used[:, 0] = True
        wanted = [name for name in ("hidden_states", "attentions") if kwargs.get(f"output_{name}")]
        options = {f"output_{name}": True for name in wanted}
        pooled, tokens, outputs = self.encode(windows[used], real[used], **options)
        return BaseModelOutputWithPooling(
            last_hidden_state=place_windows(tokens, used).flatten(1, 2),
            pooler_output=masked_mean(place_windows(pooled, used), real * used),
            **{name: self._of_layers(name, outputs, used) for name in wanted},
        )

    def _of_layers(self, name: str, outputs: ModelOutput, used: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the hidden states or attentions of all layers, with the windows of a clip in a row."""
        layers = getattr(outputs, name, None)
        what = f"output_{name}=True: {self.config.model_type}"
        if not layers:
            eager = "model.set_attn_implementation('eager') first, or " if name == "attentions" else ""
            raise ValueError(f"{what} gives none here. Call {eager}the encoder itself, model.audio_model.encoder.")
        if used.shape[1] == 1:
            return tuple(layers)
        if any(layer.ndim != 3 for layer in layers):
            raise ValueError(f"{what} gives those of one window only. Pass clips of at most {self.window} features.")
        return tuple(place_windows(layer, used).flatten(1, 2) for layer in layers)

    def shortest_window(self) -> int:
        """Returns how many real features a window needs to count; the first window of a clip always counts."""
        return 1

    @abstractmethod
    def encode(
        self, windows: torch.Tensor, real: torch.Tensor, **options: bool
    ) -> tuple[torch.Tensor, torch.Tensor, ModelOutput]:
        """Runs the encoder on windows `(n, size, …)`, of each of which the first `real` features are no padding.

        Returns their vectors `(n, hidden)`, their tokens `(n, tokens, hidden)`, and what the encoder returned.
        """


class AstEncoder(WindowedAudioEncoder):
    """Audio Spectrogram Transformer. A window's vector is the mean of its class and distillation tokens, as in training."""

    def encode(self, windows, real, **options):
        outputs = self.encoder(windows, **options)
        return outputs.pooler_output, outputs.last_hidden_state, outputs


class HtsatEncoder(WindowedAudioEncoder):
    """HTSAT as LAION-CLAP uses it. A window's vector is the encoder's own pooled output."""

    def encode(self, windows, real, **options):
        outputs = self.encoder(windows[:, None], **options)
        return outputs.pooler_output, outputs.last_hidden_state.flatten(2).transpose(1, 2), outputs


class WhisperAudioEncoder(WindowedAudioEncoder):
    """Whisper's encoder. A window's vector is the mean over the tokens of the clip, without those of the silence after it."""

    def encode(self, windows, real, **options):
        outputs = self.encoder(windows.transpose(1, 2), **options)
        tokens = outputs.last_hidden_state
        # The second convolution has a stride of 2, so that each token stands for two frames.
        mask = torch.arange(tokens.shape[1], device=real.device) < ((real + 1) // 2)[:, None]
        return masked_mean(tokens, mask), tokens, outputs


class WaveformEncoder(WindowedAudioEncoder):
    """wav2vec 2.0, HuBERT and WavLM. A window's vector is the mean over its real tokens."""

    fixed_length = False

    def __init__(self, encoder: PreTrainedModel, window: int):
        super().__init__(encoder, window)
        if hasattr(encoder, "masked_spec_embed"):  # only pre-training uses it, so it would get no gradient
            encoder.masked_spec_embed = None

    def shortest_window(self) -> int:
        """Returns how many samples the convolutions need for one token."""
        shortest = 1
        for kernel, stride in zip(reversed(self.config.conv_kernel), reversed(self.config.conv_stride), strict=True):
            shortest = (shortest - 1) * stride + kernel
        return shortest

    def encode(self, windows, real, **options):
        if self.config.feat_extract_norm == "group":
            # The output of the first convolution is normalized over time, where padding would change all of the clip. So
            # the convolutions see each clip alone and without padding.
            clips = [
                self.encoder.feature_extractor(wave[None, :length])[0].t()
                for wave, length in zip(windows, real.tolist(), strict=True)
            ]
            features = nn.utils.rnn.pad_sequence(clips, batch_first=True)
        else:
            features = self.encoder.feature_extractor(windows).transpose(1, 2)
        lengths = self.encoder._get_feat_extract_output_lengths(real)
        mask = torch.arange(features.shape[1], device=real.device) < lengths[:, None]
        projected = self.encoder.feature_projection(features)
        hidden_states = projected[0] if isinstance(projected, tuple) else projected
        outputs = self.encoder.encoder(hidden_states, attention_mask=mask, **options)
        tokens = outputs.last_hidden_state
        return masked_mean(tokens, mask), tokens * mask[..., None], outputs


ADAPTERS = {
    "audio-spectrogram-transformer": AstEncoder,
    "clap_audio_model": HtsatEncoder,
    "whisper": WhisperAudioEncoder,
    "wav2vec2": WaveformEncoder,
    "hubert": WaveformEncoder,
    "wavlm": WaveformEncoder,
}


def build_audio_encoder(config, window: int | None = None) -> nn.Module:
    """Builds an untrained audio encoder, a CED as it is and others inside their adapter, with windows of `window` features.

    In `config`, what skips layers at random and what has parameters that no embedding uses is switched off.
    """
    if config.model_type == CedConfig.model_type:
        return CedModel(config)
    if config.model_type not in ADAPTERS:
        known = ", ".join([CedConfig.model_type, *ADAPTERS])
        raise ValueError(f"No audio encoder for model_type {config.model_type!r}; known: {known}.")
    for name, off in (("layerdrop", 0.0), ("encoder_layerdrop", 0.0), ("add_adapter", False)):
        if getattr(config, name, off):
            setattr(config, name, off)
    if config.model_type == "clap_audio_model":
        from transformers.models.clap.modeling_clap import ClapAudioModel

        if config.enable_fusion and config.fusion_type == "channel_map":
            raise ValueError(
                "An HTSAT with fusion_type='channel_map' always needs four crops, which is not supported."
            )
        # Fusion is for clips over 10 s, of which it sees a shrunken version and three random crops. Here such clips are
        # cut into windows instead, which go through the weights that shorter clips go through with fusion too.
        config.enable_fusion = False
        encoder = ClapAudioModel(config)
    elif config.model_type == "whisper":
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        encoder = WhisperEncoder(config)
    else:
        encoder = AutoModel.from_config(config)
    return ADAPTERS[config.model_type](encoder, window)


__all__ = ["ADAPTERS", "WindowedAudioEncoder", "build_audio_encoder"]
