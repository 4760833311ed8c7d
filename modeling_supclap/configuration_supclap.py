"""Configurations of SupCLAP: the CED audio encoder and the dual encoder around it."""

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig


# The four published CED encoders: https://arxiv.org/abs/2308.11957
CED_SIZES = {
    "ced-tiny": {"hidden_size": 192, "num_attention_heads": 3},
    "ced-mini": {"hidden_size": 256, "num_attention_heads": 4},
    "ced-small": {"hidden_size": 384, "num_attention_heads": 6},
    "ced-base": {"hidden_size": 768, "num_attention_heads": 12},
}

LONG_AUDIO_POOLING = "masked_mean"
TEXT_POOLINGS = ("masked_mean", "pooler")

# Text encoders that number the positions of a text from `pad_token_id + 1`, so that some positions are never used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "clap_text_model")

# Our pipeline has a task name of its own, so that `pipeline(task, folder, trust_remote_code=True)` opens it.
PIPELINE_TASK = "supclap-zero-shot-audio-classification"
PIPELINE_CLASS = "pipeline_supclap.SupClapZeroShotAudioClassificationPipeline"


@strict
class CedConfig(PreTrainedConfig):
    r"""Configuration of [`CedModel`], a ViT over log-mel patches. The defaults are the published CED-Base.

    Args:
        num_mel_bins (`int`): Mel bands of the input; the frequency grid has `num_mel_bins // patch_size` patches.
        patch_size (`int`): Side of a square patch, in mel bands and in frames.
        patch_stride (`int`, *optional*): Frames between two patches in time; `patch_size` (no overlap) when omitted.
        target_length (`int`): Frames of one window (1,012 frames are 10.12 s at a hop of 10 ms). Longer clips are
            cut into windows.
        window_hop (`int`, *optional*): Frames between the starts of two windows of a long clip; `target_length`
            (no overlap) when omitted. Part of the config because a stored index depends on it.
        long_audio_pooling (`str`): How the windows of a clip become one vector: `"masked_mean"` is the mean over
            the real tokens of all windows.
        patch_dropout (`float`): Share of the patches that training leaves out at random (PaSST,
            https://arxiv.org/abs/2110.05069), which makes steps cheaper and regularizes. Evaluation uses all patches.

    Example:

    ```python
    >>> from modeling_supclap import CedConfig

    >>> config = CedConfig.from_size("ced-tiny")
    >>> config.hidden_size, config.time_grid, config.frequency_grid
    (192, 63, 4)
    ```
    """

    model_type = "supclap_ced"
    _auto_class = "AutoConfig"  # a saved folder carries this code and loads where supclap is not installed

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    mlp_ratio: float | int = 4.0
    hidden_act: str = "gelu"
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    layer_norm_eps: float | int = 1e-6
    initializer_range: float | int = 0.02
    num_mel_bins: int = 64
    patch_size: int = 16
    patch_stride: int | None = None
    target_length: int = 1012
    window_hop: int | None = None
    long_audio_pooling: str = LONG_AUDIO_POOLING
    patch_dropout: float | int = 0.0

    def __post_init__(self, **kwargs):
        self.patch_stride = self.patch_size if self.patch_stride is None else self.patch_stride
        self.window_hop = self.target_length if self.window_hop is None else self.window_hop
        super().__post_init__(**kwargs)

    def validate_sizes(self):
        """Raises a `ValueError` that names the field where a size is below 1, or two sizes do not fit each other."""
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_mel_bins", "patch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads ({self.num_attention_heads})."
            )
        if self.num_mel_bins % self.patch_size:
            raise ValueError(
                f"num_mel_bins ({self.num_mel_bins}) must be a multiple of patch_size ({self.patch_size})."
            )
        if self.patch_stride is not None and not 0 < self.patch_stride <= self.patch_size:
            raise ValueError(f"patch_stride ({self.patch_stride}) must lie in 1 … patch_size ({self.patch_size}).")
        if self.target_length < self.patch_size:
            raise ValueError(f"target_length ({self.target_length}) must hold one patch of {self.patch_size} frames.")
        if self.window_hop is not None and not 0 < self.window_hop <= self.target_length:
            raise ValueError(f"window_hop ({self.window_hop}) must lie in 1 … target_length ({self.target_length}).")
        if not 0 <= self.patch_dropout < 1:
            raise ValueError(f"patch_dropout ({self.patch_dropout}) must lie in 0 … 1, without 1.")
        if self.long_audio_pooling != LONG_AUDIO_POOLING:
            raise ValueError(
                f"long_audio_pooling={self.long_audio_pooling!r} is not known to this version; it knows "
                f"{LONG_AUDIO_POOLING!r}."
            )

    @classmethod
    def from_size(cls, name: str, **kwargs) -> "CedConfig":
        """Returns the configuration of a published size: `"ced-tiny"`, `"ced-mini"`, `"ced-small"` or `"ced-base"`.

        `kwargs` are fields that shall differ from the published ones.
        """
        if name not in CED_SIZES:
            raise ValueError(f"{name!r} is not a published CED size; choose from {', '.join(CED_SIZES)}.")
        return cls(**{**CED_SIZES[name], **kwargs})

    @property
    def frequency_grid(self) -> int:
        """The number of patches over the mel bands."""
        return self.num_mel_bins // self.patch_size

    @property
    def time_grid(self) -> int:
        """The number of patches over the frames of one window."""
        return (self.target_length - self.patch_size) // self.patch_stride + 1


def build_sub_config(config, default: type[PreTrainedConfig], field: str) -> PreTrainedConfig:
    """Returns a config object for a config, for a dict with a `model_type`, or for None (the default)."""
    if config is None:
        return default()
    if isinstance(config, PreTrainedConfig):
        return config
    config = dict(config)
    model_type = config.pop("model_type", None)
    if model_type is None:
        raise ValueError(f"{field} needs a `model_type`, e.g. {default.model_type!r}; got the keys {sorted(config)}.")
    if model_type == CedConfig.model_type:  # `AutoConfig` may never have heard of it
        return CedConfig(**config)
    return AutoConfig.for_model(model_type, **config)


def default_audio_window(config: PreTrainedConfig) -> int | None:
    """Returns the length of one window in the encoder's features, or None for CED, which has `target_length`."""
    if config.model_type == "audio-spectrogram-transformer":
        return config.max_length
    if config.model_type == "clap_audio_model":
        return 1001  # 10 s at 48 kHz, as LAION trained it
    if config.model_type == "whisper":
        return 2 * config.max_source_positions  # its convolutions halve the number of frames
    if config.model_type in ("wav2vec2", "hubert", "wavlm"):
        return 160000  # 10 s at 16 kHz
    return None


@strict
class SupClapConfig(PreTrainedConfig):
    r"""Configuration of [`SupClapModel`]: an audio encoder, a text encoder and two projection heads.

    Args:
        text_config (`dict` or `PreTrainedConfig`, *optional*): Any Hugging Face text encoder; BERT when omitted.
        audio_config (`dict` or `PreTrainedConfig`, *optional*): The audio encoder; CED-Base when omitted. Also AST,
            HTSAT (`clap_audio_model`), Whisper, wav2vec 2.0, HuBERT and WavLM.
        audio_window (`int`, *optional*): Features (frames or samples) of one window, for encoders other than CED; the
            encoder's own length when omitted. A clip's vector is the mean over its windows, weighted by their real
            length. Part of the config because a stored index depends on it.
        text_pooling (`str`): `"masked_mean"` is the mean over the real tokens, `"pooler"` the text encoder's own
            pooling layer (LAION-CLAP).
        projection_dim (`int`): Size of the joint embedding.
        projection_num_layers (`int`): 2 is linear-activation-linear (the lineage's head), 1 a single linear map.
        projection_hidden_act (`str`): Activation between the two linear maps.
        logit_scale_init_value (`float`): Initial log of the inverse temperature; ln(1 / 0.07).
        logit_scale_max (`float`): Upper clamp of the scale itself (not of its log).
        logit_bias_init_value (`float`, *optional*): Initial bias of the logits; set for a SigLIP-trained model.

    Example:

    ```python
    >>> from modeling_supclap import CedConfig, SupClapConfig

    >>> text = {"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
    >>> audio = CedConfig.from_size("ced-small")
    >>> config = SupClapConfig(text_config=text, audio_config=audio, projection_dim=512)
    >>> config.text_limit()
    512
    ```
    """

    model_type = "supclap"
    _auto_class = "AutoConfig"
    sub_configs = {"text_config": AutoConfig, "audio_config": AutoConfig}

    text_config: dict | PreTrainedConfig | None = None
    audio_config: dict | PreTrainedConfig | None = None
    audio_window: int | None = None
    text_pooling: str = "masked_mean"
    projection_dim: int = 1024
    projection_num_layers: int = 2
    projection_hidden_act: str = "relu"
    logit_scale_init_value: float | int = 2.6592600369327783
    logit_scale_max: float | int = 100.0
    logit_bias_init_value: float | int | None = None
    initializer_range: float | int = 0.02

    def __post_init__(self, **kwargs):
        from transformers import BertConfig

        self.text_config = build_sub_config(self.text_config, BertConfig, "text_config")
        self.audio_config = build_sub_config(self.audio_config, CedConfig, "audio_config")
        if self.audio_window is None:
            self.audio_window = default_audio_window(self.audio_config)
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict:
        # The task is added here and is no field, because a pipeline that opens puts classes into the field
        # `custom_pipelines`, and a JSON file cannot hold classes.
        task = {"impl": PIPELINE_CLASS, "pt": ["AutoModel"]}
        return {**super().to_dict(), "custom_pipelines": {PIPELINE_TASK: task}}

    def text_limit(self, tokenizer_limit: int | None = None) -> int | None:
        """Returns how many tokens of a text are embedded at most; what lies beyond is cut off.

        Args:
            tokenizer_limit: Where the tokenizer cuts texts, if it does. The result is then the lower limit of the two.

        Returns:
            The limit in tokens, special tokens included, or `None` where there is none.
        """
        positions = getattr(self.text_config, "max_position_embeddings", None)
        if positions is not None and self.text_config.model_type in OFFSET_POSITIONS:
            positions -= self.text_config.pad_token_id + 1
        return min((limit for limit in (positions, tokenizer_limit) if limit is not None), default=None)

    def validate_fields(self):
        """Raises a `ValueError` that names the field whose value is not possible."""
        if self.projection_num_layers not in (1, 2):
            raise ValueError(f"projection_num_layers must be 1 or 2, got {self.projection_num_layers}.")
        if self.text_pooling not in TEXT_POOLINGS:
            raise ValueError(f"text_pooling must be one of {', '.join(TEXT_POOLINGS)}; got {self.text_pooling!r}.")
        if self.audio_window is not None and self.audio_window < 1:
            raise ValueError(f"audio_window must be at least 1, got {self.audio_window}.")


__all__ = ["CED_SIZES", "CedConfig", "SupClapConfig"]
