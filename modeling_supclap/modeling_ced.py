"""The CED audio encoder (Consistent Ensemble Distillation, https://arxiv.org/abs/2308.11957), with masks.

For a single clip it computes what the published implementation computes. It differs where that one lets a clip's
embedding depend on its neighbors in the batch, or loses sound: here attention and pooling are masked, every window of a
long clip counts, and the windows of different clips are never mixed.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple

from .configuration_supclap import CedConfig
from .weights_supclap import SafetensorsOnly
from .windows_supclap import masked_mean, place_windows


# Leaving out padding means attention clip by clip, which costs a little for every clip. It pays where the padding of a
# clip, in tokens, times the squared width of the encoder is above this value on average (found by measuring on a CPU).
PACKED_WORK = 2.5e6


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _packs(token_mask: torch.Tensor, width: int) -> bool:
    """Tells whether to leave out the padding of a batch, by `CedModel._encode_packed`."""
    # The time of a CPU depends on the work, while a GPU would lose more by many small calls. The shapes of a compiled graph
    # must not depend on the values of a mask.
    if token_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return (~token_mask).sum().item() * width**2 > PACKED_WORK * len(token_mask)


class CedAttention(nn.Module):
    """Self-attention, over padded clips with a mask or over the tokens of all clips in a row."""

    def __init__(self, config: CedConfig):
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.is_causal = False
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        lengths: list[int] | None = None,
        attentions: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Attends within clips `(batch, length, hidden_size)`, and adds the weights to `attentions`.

        With `lengths`, the tokens of all clips stand in one row without padding, `(1, all tokens, hidden_size)`.
        """
        batch, length, width = hidden_states.shape
        qkv = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if lengths is None:
            output, weights = self._attend(query, key, value, attention_mask)
            if attentions is not None:
                attentions.append(weights)
        else:
            # Each clip attends to itself only, so the row is split, and no mask is needed.
            clips = zip(*(tokens.split(lengths, dim=2) for tokens in (query, key, value)), strict=True)
            output = torch.cat([self._attend(*clip, None)[0] for clip in clips], dim=1)
        return self.proj(output.reshape(batch, length, width))

    def _attend(self, query, key, value, attention_mask) -> tuple[torch.Tensor, torch.Tensor | None]:
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        return attend(
            self,
            query,
            key,
            value,
            attention_mask,
            is_causal=False,
            scaling=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
        )


class CedMlp(nn.Module):
    """The feed-forward part of a block."""

    def __init__(self, config: CedConfig):
        super().__init__()
        intermediate_size = int(config.hidden_size * config.mlp_ratio)
        self.fc1 = nn.Linear(config.hidden_size, intermediate_size)
        self.act = ACT2FN[config.hidden_act]
        self.fc2 = nn.Linear(intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(hidden_states)))


class CedLayer(GradientCheckpointingLayer):
    """One transformer block with the norms before attention and feed-forward part."""

    def __init__(self, config: CedConfig):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attn = CedAttention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = CedMlp(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **options) -> torch.Tensor:
        attended = self.attn(self.norm1(hidden_states), attention_mask, **options)
        hidden_states = hidden_states + self.dropout(attended)
        return hidden_states + self.dropout(self.mlp(self.norm2(hidden_states)))


class CedPatchEmbed(nn.Module):
    """Patches of a spectrogram to tokens."""

    def __init__(self, config: CedConfig):
        super().__init__()
        self.proj = nn.Conv2d(
            1, config.hidden_size, config.patch_size, stride=(config.patch_size, config.patch_stride)
        )

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        size = self.proj.kernel_size[0]
        if self.proj.stride != (size, size):
            return self.proj(spectrogram[:, None])
        # Patches that do not overlap go through one linear map. It computes the same products as the convolution, and
        # its backward pass is much faster on CPUs.
        time = spectrogram.shape[-1] // size
        patches = spectrogram[..., : time * size].unflatten(-1, (time, size)).unflatten(1, (-1, size))
        patches = patches.transpose(2, 3).flatten(3)  # (batch, frequency, time, size * size)
        return nn.functional.linear(patches, self.proj.weight.flatten(1), self.proj.bias).permute(0, 3, 1, 2)


class CedPreTrainedModel(SafetensorsOnly, PreTrainedModel):
    config: CedConfig
    base_model_prefix = "audio_model"
    main_input_name = "input_features"
    input_modalities = ("audio",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["CedLayer"]
    _keep_in_fp32_modules_strict = ["init_bn"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            init.trunc_normal_(module.weight, std=self.config.initializer_range)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, CedModel):
            init.trunc_normal_(module.time_pos_embed, std=self.config.initializer_range)
            init.trunc_normal_(module.freq_pos_embed, std=self.config.initializer_range)


class FixedBatchNorms(nn.Module):
    """Keeps batch norms in evaluation mode, also in training.

    Statistics of a batch would make a clip's features depend on the other clips and on padding.
    """

    def train(self, mode: bool = True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.eval()
        return self


class CedModel(FixedBatchNorms, CedPreTrainedModel):
    """The CED encoder, from log-mel frames to tokens and their masked mean.

    Args:
        config: Sizes, windows and dropout of the encoder.

    Example:

    ```python
    >>> import torch
    >>> from modeling_supclap import CedConfig, CedModel

    >>> model = CedModel(CedConfig.from_size("ced-tiny")).eval()
    >>> model(torch.randn(2, 300, 64)).pooler_output.shape
    torch.Size([2, 192])
    ```
    """

    _auto_class = "AutoModel"

    def __init__(self, config: CedConfig):
        super().__init__(config)
        self.init_bn = nn.BatchNorm1d(config.num_mel_bins, momentum=0.01)
        self.patch_embed = CedPatchEmbed(config)
        self.time_pos_embed = nn.Parameter(torch.empty(1, config.hidden_size, 1, config.time_grid))
        self.freq_pos_embed = nn.Parameter(torch.empty(1, config.hidden_size, config.frequency_grid, 1))
        self.blocks = nn.ModuleList(CedLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @torch.no_grad()
    def set_input_statistics(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Sets the fixed statistics of the input norm, for training from random weights.

        Args:
            mean: Mean of each mel band over the real frames of the training data, in dB, shape `(num_mel_bins,)`.
            variance: Variance of each mel band, in dB², same shape.
        """
        self.init_bn.running_mean.copy_(mean)
        self.init_bn.running_var.copy_(variance)

    @can_return_tuple
    def forward(
        self,
        input_features: torch.Tensor,
        input_features_mask: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        r"""
        Args:
            input_features: Log-mel spectrogram in dB, `(batch, time, num_mel_bins)`.
            input_features_mask: 1 for real frames and 0 for padding at the end, `(batch, time)`; all real when omitted.
            output_hidden_states: Return `hidden_states`; the configuration says when omitted.
            output_attentions: Return `attentions`; the configuration says when omitted.

        Returns:
            `last_hidden_state` `(batch, windows · frequency · time patches, hidden_size)`: tokens, window by window
            and frequency-major within a window, zero where there is no real patch; `pooler_output`
            `(batch, hidden_size)`: the mean over the real tokens; `hidden_states`: the input of the first block and
            the output of each, laid out as `last_hidden_state` is but without its norm; `attentions`: of each block,
            `(batch, heads, tokens, tokens)`.

        Raises:
            ValueError: Features of another shape; attentions of an implementation other than eager, or of clips longer
                than one window.
        """
        batch, length, bins = input_features.shape
        if bins != self.config.num_mel_bins:
            raise ValueError(
                f"input_features has shape {tuple(input_features.shape)}; expected (batch, time, "
                f"{self.config.num_mel_bins}) with time before mel bands."
            )
        if input_features_mask is None:
            input_features_mask = input_features.new_ones(batch, length, dtype=torch.long)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_attentions and self.config._attn_implementation != "eager":
            raise ValueError(
                f"output_attentions=True is not supported with attn_implementation={self.config._attn_implementation!r}, "
                "which computes no weights. Call model.set_attn_implementation('eager') first."
            )
        if output_attentions and length > self.config.target_length:
            raise ValueError(
                f"output_attentions=True is not supported for clips of more than one window ({length} frames, windows "
                f"of {self.config.target_length}): attention stays within a window. Pass the windows one by one."
            )
        hidden_states = [] if output_hidden_states else None
        attentions = [] if output_attentions else None
        frames = input_features_mask.sum(-1)
        # The norm computes in its own type, which stays float32 in a model of half precision.
        normalized = self.init_bn(input_features.transpose(1, 2).to(self.init_bn.weight.dtype)).to(
            self.patch_embed.proj.weight.dtype
        )
        normalized = normalized * input_features_mask[:, None].to(normalized.dtype)

        if length <= self.config.target_length:
            tokens, token_mask = self._encode_window(normalized, frames, hidden_states, attentions)
        else:
            tokens, token_mask = self._encode_windows(normalized, frames, hidden_states)
        return BaseModelOutputWithPooling(
            last_hidden_state=tokens,
            pooler_output=masked_mean(tokens, token_mask),
            hidden_states=None if hidden_states is None else tuple(hidden_states),
            attentions=None if attentions is None else tuple(attentions),
        )

    def _encode_windows(
        self, spectrogram: torch.Tensor, frames: torch.Tensor, hidden_states: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Does what `_encode_window` does for clips that are longer than a window, with a clip's windows in a row."""
        window, hop = self.config.target_length, self.config.window_hop
        length = spectrogram.shape[-1]
        n_windows = 1 + -(-(length - window) // hop)
        spectrogram = nn.functional.pad(spectrogram, (0, window + (n_windows - 1) * hop - length))
        windows = spectrogram.unfold(-1, window, hop).permute(0, 2, 1, 3)  # (batch, windows, bins, frames)
        starts = torch.arange(n_windows, device=frames.device) * hop
        real = (frames[:, None] - starts).clamp(0, window)  # (batch, windows)
        # A window counts when it holds frames that no window before it holds, and enough of them for a patch. The first
        # window of a clip always counts.
        used = (real > window - hop) & (real >= self.config.patch_size)
        used[:, 0] = True
        # How many windows count depends on the values of the mask, and the shapes of a compiled graph must not. So all
        # windows are encoded there, and what comes of the others is set to zero.
        encode_all = torch.compiler.is_compiling()
        chosen = [values.flatten(0, 1) if encode_all else values[used] for values in (windows, real)]
        tokens, mask = self._encode_window(*chosen, hidden_states)

        def in_a_row(values: torch.Tensor) -> torch.Tensor:
            if encode_all:
                values = values.unflatten(0, used.shape) * used[(..., *(None,) * (values.ndim - 1))]
            else:
                values = place_windows(values, used)
            return values.flatten(1, 2)

        if hidden_states is not None:
            hidden_states[:] = [in_a_row(states) for states in hidden_states]
        return in_a_row(tokens), in_a_row(mask)

    def _encode_window(
        self,
        spectrogram: torch.Tensor,
        frames: torch.Tensor,
        hidden_states: list[torch.Tensor] | None = None,
        attentions: list[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encodes one window `(bins, time)` of each clip: tokens `(batch, n, hidden_size)`, and which of them are real.

        Tokens that are not real are zero. What each block gives is added to the two lists.
        """
        size, stride = self.config.patch_size, self.config.patch_stride
        if spectrogram.shape[-1] < size:
            spectrogram = nn.functional.pad(spectrogram, (0, size - spectrogram.shape[-1]))
        patches = self.patch_embed(spectrogram)
        patches = patches + self.time_pos_embed[..., : patches.shape[-1]] + self.freq_pos_embed
        grid_f, grid_t = patches.shape[-2:]
        # A trailing patch counts when all its frames are real; a clip shorter than one patch still has one.
        real = ((frames - size) // stride + 1).clamp(min=1)
        time_mask = torch.arange(grid_t, device=frames.device) < real[:, None]
        token_mask = time_mask[:, None].expand(-1, grid_f, -1).flatten(1)

        # The blocks keep the memory layout of their input. Made contiguous once here, it spares each norm a copy.
        tokens = patches.flatten(2).transpose(1, 2).contiguous()
        if self.training and self.config.patch_dropout:
            tokens, token_mask = self._drop_patches(tokens, token_mask)
        # Whoever asks for the states or the attentions of all blocks expects the shapes of a padded batch.
        if hidden_states is None and attentions is None and _packs(token_mask, tokens.shape[-1]):
            return self._encode_packed(tokens, token_mask), token_mask
        attention_mask = create_bidirectional_mask(self.config, tokens, token_mask.long())
        if hidden_states is not None:
            hidden_states.append(tokens * token_mask[..., None])
        for block in self.blocks:
            tokens = block(tokens, attention_mask, attentions=attentions)
            if hidden_states is not None:
                hidden_states.append(tokens * token_mask[..., None])
        return self.norm(tokens) * token_mask[..., None], token_mask

    def _encode_packed(self, hidden_states: torch.Tensor, token_mask: torch.Tensor) -> torch.Tensor:
        """Runs the blocks without padding.

        The real tokens of all clips stand in one row, `(1, all real tokens, hidden)`. Norms and linear maps look at each
        token alone, so they run on the whole row at once. Attention alone needs to know where a clip ends: it gets the
        lengths and treats clip by clip. In the end the tokens go back to their places, with zeros for the padding.
        """
        lengths = token_mask.sum(-1).tolist()
        packed = hidden_states[token_mask][None]
        for block in self.blocks:
            packed = block(packed, None, lengths=lengths)
        return place_windows(self.norm(packed)[0], token_mask)

    def _drop_patches(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps a random share of the patches of each clip, and padding only where a clip has no more real patches."""
        keep = max(1, round(tokens.shape[1] * (1 - self.config.patch_dropout)))
        # Sorted by random numbers from 0 to 1, with 2 for padding, so that real patches come first.
        order = torch.rand(mask.shape, device=mask.device).masked_fill(~mask, 2.0).argsort(-1)
        kept = order[:, :keep].sort(-1).values
        return tokens.gather(1, kept[..., None].expand(-1, -1, tokens.shape[-1])), mask.gather(1, kept)


__all__ = ["CedModel", "CedPreTrainedModel"]
