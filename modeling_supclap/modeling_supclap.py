"""SupCLAP, a dual encoder of audio and text. An embedding depends on the clip (or text) and the model alone."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput, can_return_tuple, logging

from .audio_encoders_supclap import build_audio_encoder
from .configuration_supclap import CedConfig, SupClapConfig
from .modeling_ced import CedModel
from .weights_supclap import SafetensorsOnly, check_weight_files
from .windows_supclap import masked_mean


logger = logging.get_logger(__name__)


@dataclass
class SupClapOutput(ModelOutput):
    """What [`SupClapModel`] returns.

    Args:
        loss: Contrastive loss of both directions, a scalar, when `return_loss=True`.
        logits_per_audio: Scaled similarities `(n_audio, n_text)`.
        logits_per_text: Its transpose `(n_text, n_audio)`.
        text_embeds: L2-normalized joint embeddings `(n_text, projection_dim)`.
        audio_embeds: L2-normalized joint embeddings `(n_audio, projection_dim)`.
        text_model_output: Output of the text encoder.
        audio_model_output: Output of the audio encoder.
    """

    loss: torch.FloatTensor | None = None
    logits_per_audio: torch.FloatTensor | None = None
    logits_per_text: torch.FloatTensor | None = None
    text_embeds: torch.FloatTensor | None = None
    audio_embeds: torch.FloatTensor | None = None
    text_model_output: BaseModelOutputWithPooling | None = None
    audio_model_output: BaseModelOutputWithPooling | None = None


def contrastive_loss(logits_per_text: torch.Tensor, sigmoid: bool) -> torch.Tensor:
    """Loss of paired rows, `(n, n)` → scalar: InfoNCE, the sum of both directions as in the paper, or SigLIP."""
    logits = logits_per_text.float()
    if logits.shape[0] != logits.shape[1]:
        raise ValueError(
            f"return_loss=True needs pairs: row i of the audio belongs to row i of the text, got {logits.shape[1]} "
            f"clips and {logits.shape[0]} texts."
        )
    if sigmoid:
        signs = 2 * torch.eye(len(logits), device=logits.device) - 1
        return -nn.functional.logsigmoid(signs * logits).sum(-1).mean()
    labels = torch.arange(len(logits), device=logits.device)
    return nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.t(), labels)


def _with_embeds(outputs: ModelOutput, projected: torch.Tensor) -> BaseModelOutputWithPooling:
    """Returns the output of an encoder with the joint embeddings, scaled to length 1, as its pooled output."""
    embeds = nn.functional.normalize(projected.float(), dim=-1)
    if not torch.is_autocast_enabled(projected.device.type):  # under autocast, half precision ends with the projection
        embeds = embeds.to(projected.dtype)
    return BaseModelOutputWithPooling(
        last_hidden_state=outputs.last_hidden_state,
        pooler_output=embeds,
        hidden_states=getattr(outputs, "hidden_states", None),
        attentions=getattr(outputs, "attentions", None),
    )


def build_text_encoder(config, pooling: str = "masked_mean") -> PreTrainedModel:
    """Builds an untrained text encoder, without its pooling layer unless `pooling` uses it."""
    if getattr(config, "encoder_layerdrop", 0):
        # The layers that it skips at random would differ between processes, which distributed training does not allow.
        config.encoder_layerdrop = 0.0
    encoder_class = _text_encoder_class(config)
    is_model = issubclass(encoder_class, PreTrainedModel)
    model = encoder_class(config) if is_model else encoder_class.from_config(config)
    has_pooler = getattr(model, "pooler", None) is not None
    if pooling == "pooler" and not has_pooler:
        raise ValueError(f"text_pooling='pooler', but {type(model).__name__} has no pooling layer; use 'masked_mean'.")
    if pooling != "pooler" and has_pooler:
        model.pooler = None
    return model


def _text_encoder_class(config) -> type:
    """Returns the class of a text encoder, or the Auto class that finds it, or raises an error where there is none."""
    if config.model_type == "m2m_100":
        # SONAR's text encoder. AutoModel would build a whole encoder-decoder, in which the checkpoint's names do not fit
        # and the encoder's weights stay random.
        from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

        return M2M100Encoder
    if config.model_type == "clap_text_model":
        from transformers.models.clap.modeling_clap import ClapTextModel

        return ClapTextModel
    if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:  # for a T5, this is its encoder alone
        return AutoModelForTextEncoding
    if type(config) not in MODEL_MAPPING:
        reason = "the Auto classes know no model of it"
    elif getattr(config, "is_encoder_decoder", False):
        reason = "it is an encoder-decoder, whose output is its decoder's"
    elif not hasattr(config, "hidden_size"):
        reason = "it is not an encoder of texts alone"
    else:
        return AutoModel
    raise ValueError(
        f"No text encoder for model_type {config.model_type!r}: {reason}. Take an encoder such as BERT, MPNet, XLM-RoBERTa, "
        "T5, SONAR or CLAP's."
    )


def load_encoder(encoder_class, name: str, dtype: torch.dtype, key_mapping: dict[str, str] | None = None):
    """Loads an encoder with `from_pretrained`. Weights that the checkpoint lacks are an error, and not left random."""
    check_weight_files(name)
    options = {"dtype": dtype, "key_mapping": key_mapping, "use_safetensors": True}
    model, info = encoder_class.from_pretrained(name, output_loading_info=True, **options)
    # Not every checkpoint has a pooling layer or the mask embedding of pre-training, and no embedding here needs them.
    missing = [key for key in info["missing_keys"] if not key.startswith("pooler.") and "masked_spec_embed" not in key]
    if missing or info["mismatched_keys"]:
        wrong = [str(key) for key in (*sorted(missing), *info["mismatched_keys"])]
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(f"{name} is no {type(model).__name__}: missing or mis-shaped {', '.join(wrong[:5])}{more}.")
    return model


def load_text_encoder(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Loads a text encoder, also out of a CLAP or out of an encoder-decoder such as T5, NLLB or M2M100."""
    config = AutoConfig.from_pretrained(name)
    if config.model_type == "clap":
        return load_encoder(AutoModel, name, dtype).text_model
    prefixes = {r"^model\.encoder\.": "", r"^encoder\.": "", r"^(model\.)?shared\.": "embed_tokens."}
    return load_encoder(_text_encoder_class(config), name, dtype, prefixes if config.model_type == "m2m_100" else None)


def load_audio_encoder(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Loads an audio encoder, also out of a CLAP or a Whisper."""
    model_type = AutoConfig.from_pretrained(name).model_type
    if model_type == CedConfig.model_type:
        return load_encoder(CedModel, name, dtype)
    model = load_encoder(AutoModel, name, dtype)
    if model_type == "clap":
        return model.audio_model
    return model.encoder if model_type == "whisper" else model


def _copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copies the weights of `target` from `source`, which may have more of them, such as a pooling layer."""
    wanted, weights = target.state_dict().keys(), source.state_dict()
    target.load_state_dict({name: value for name, value in weights.items() if name in wanted})


class SupClapProjection(nn.Module):
    """Maps what an encoder pooled into the joint space, by one linear map or by two with an activation between them."""

    def __init__(self, config: SupClapConfig, input_size: int):
        super().__init__()
        self.linear1 = nn.Linear(input_size, config.projection_dim)
        self.linear2 = None
        if config.projection_num_layers == 2:
            self.activation = ACT2FN[config.projection_hidden_act]
            self.linear2 = nn.Linear(config.projection_dim, config.projection_dim)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = self.linear1(hidden_states)
        return hidden_states if self.linear2 is None else self.linear2(self.activation(hidden_states))


class SupClapPreTrainedModel(SafetensorsOnly, PreTrainedModel):
    """What all SupCLAP models share: how they are initialized and which of Transformers' features they support."""

    config: SupClapConfig
    base_model_prefix = "supclap"
    input_modalities = ("audio", "text")
    supports_gradient_checkpointing = True
    _keep_in_fp32_modules_strict = ["logit_scale", "logit_bias", "init_bn"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, SupClapModel):
            init.constant_(module.logit_scale, self.config.logit_scale_init_value)
            if module.logit_bias is not None:
                init.constant_(module.logit_bias, self.config.logit_bias_init_value)
        elif isinstance(module, SupClapProjection):
            for linear in (module.linear1, module.linear2):
                if linear is not None:
                    init.xavier_uniform_(linear.weight)
                    init.zeros_(linear.bias)


class SupClapModel(SupClapPreTrainedModel):
    """A dual encoder, which embeds audio clips and texts into one space.

    Args:
        config: The configuration; it also says which encoders are used.

    Example:

    ```python
    >>> from transformers import AutoModel, AutoProcessor

    >>> model = AutoModel.from_pretrained("path/to/checkpoint", trust_remote_code=True).eval()
    >>> processor = AutoProcessor.from_pretrained("path/to/checkpoint", trust_remote_code=True)
    >>> inputs = processor(text=["a dog barks", "rain"], audio=["clip.wav"])
    >>> model(**inputs).logits_per_audio.softmax(-1)  # one row for each clip, one column for each text
    ```
    """

    _auto_class = "AutoModel"

    def __init__(self, config: SupClapConfig):
        super().__init__(config)
        self.text_model = build_text_encoder(config.text_config, config.text_pooling)
        self.audio_model = build_audio_encoder(config.audio_config, config.audio_window)
        self.text_projection = SupClapProjection(config, config.text_config.hidden_size)
        self.audio_projection = SupClapProjection(config, config.audio_config.hidden_size)
        self.logit_scale = nn.Parameter(torch.empty(1))
        self.logit_bias = None if config.logit_bias_init_value is None else nn.Parameter(torch.empty(1))
        self.post_init()

    @classmethod
    def from_text_audio_pretrained(
        cls, text_model: str, audio_model, dtype=torch.float32, text_config: dict | None = None, **kwargs
    ) -> "SupClapModel":
        """Joins a pretrained text encoder and an audio encoder under new projection heads.

        Args:
            text_model: Hub id or folder of the text encoder.
            audio_model: Hub id or folder of an audio encoder (CED, AST, CLAP, Whisper, wav2vec 2.0, HuBERT, WavLM), an
                encoder, or a configuration of one for random weights.
            dtype: Type of all weights.
            text_config: Fields of the text encoder's configuration to change, such as its dropout; with fewer layers,
                the first ones are kept.
            kwargs: Fields of [`SupClapConfig`].

        Raises:
            ValueError: A checkpoint lacks weights of the encoder or holds no encoder that can be used, or `text_config`
                names a field that the encoder does not have.

        Example:

        ```python
        >>> model = SupClapModel.from_text_audio_pretrained(
        ...     "FacebookAI/roberta-base", "MIT/ast-finetuned-audioset-10-10-0.4593", projection_dim=512
        ... )
        ```
        """
        text = load_text_encoder(text_model, dtype)
        for name, value in (text_config or {}).items():
            if not hasattr(text.config, name):
                raise ValueError(f"text_config: {type(text.config).__name__} has no field {name!r}.")
            setattr(text.config, name, value)
        audio = load_audio_encoder(audio_model, dtype) if isinstance(audio_model, str) else audio_model
        audio_config = getattr(audio, "config", audio)
        model = cls(SupClapConfig(text_config=text.config, audio_config=audio_config, **kwargs)).to(dtype)
        _copy_weights(text, model.text_model)
        if isinstance(audio, PreTrainedModel):
            _copy_weights(audio, getattr(model.audio_model, "encoder", model.audio_model))
        return model

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    def get_logit_scale(self) -> torch.Tensor:
        """Returns the factor of the cosine similarities, at most `logit_scale_max`, as a tensor of shape `(1,)`."""
        return self.logit_scale.float().exp().clamp(max=self.config.logit_scale_max)

    def _truncate(self, input_ids: torch.Tensor, inputs: dict) -> torch.Tensor:
        """Cuts texts to the number of positions of the encoder; the mask and what else is in `inputs` is cut in place."""
        limit = self.config.text_limit()
        if limit is None or input_ids.shape[1] <= limit:
            return input_ids
        logger.warning_once(
            f"A text of {input_ids.shape[1]} tokens was cut to the {limit} that the text encoder can take."
        )
        # A tokenizer cuts the words and keeps the closing token. So the last real token of a long text replaces the one
        # at the last position that is left.
        mask = inputs["attention_mask"]
        too_long = mask[:, limit:].any(-1)
        last = input_ids.gather(1, (mask.cumsum(-1).argmax(-1, keepdim=True)))[:, 0]
        input_ids = input_ids[:, :limit].clone()
        input_ids[too_long, -1] = last[too_long]
        for name, value in inputs.items():
            inputs[name] = value[:, :limit]
        return input_ids

    @can_return_tuple
    def get_text_features(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        r"""Embeds texts.

        Args:
            input_ids: Tokens padded at the end, `(n_text, length)`.
            attention_mask: 1 for real tokens, `(n_text, length)`; all real when omitted.
            token_type_ids: Segments, for encoders that know them.

        Returns:
            `pooler_output` `(n_text, projection_dim)`: the L2-normalized joint embeddings; `last_hidden_state`,
            `hidden_states` and `attentions`: the text encoder's.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        inputs = {"attention_mask": attention_mask}
        if token_type_ids is not None and getattr(self.config.text_config, "type_vocab_size", 0):
            inputs["token_type_ids"] = token_type_ids
        input_ids = self._truncate(input_ids, inputs)
        outputs = self.text_model(input_ids=input_ids, **inputs, **kwargs)
        if self.config.text_pooling == "pooler":
            pooled = outputs.pooler_output
        else:
            pooled = masked_mean(outputs.last_hidden_state, inputs["attention_mask"])
        return _with_embeds(outputs, self.text_projection(pooled))

    @can_return_tuple
    def get_audio_features(
        self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None, **kwargs
    ) -> BaseModelOutputWithPooling:
        r"""Embeds clips.

        Args:
            input_features: What the model's feature extractor gives: log-mel spectrograms `(n_audio, time, n_mels)`,
                or waveforms `(n_audio, samples)`.
            input_features_mask: 1 for real features, `(n_audio, time)`; all real when omitted.

        Returns:
            `pooler_output` `(n_audio, projection_dim)`: the L2-normalized joint embeddings; `last_hidden_state`,
            `hidden_states` and `attentions`: the audio encoder's.
        """
        outputs = self.audio_model(input_features, input_features_mask, **kwargs)
        return _with_embeds(outputs, self.audio_projection(outputs.pooler_output))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        input_features_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        return_loss: bool | None = None,
        **kwargs,
    ) -> SupClapOutput:
        r"""Embeds clips and texts and compares each clip with each text; their numbers need not be equal.

        Args:
            input_ids: As for [`get_text_features`], like `attention_mask` and `token_type_ids`.
            input_features: As for [`get_audio_features`], like `input_features_mask`.
            return_loss: Whether to also return the contrastive loss of paired rows: InfoNCE, summed over both
                directions as in the paper, or SigLIP when the model has a bias. It is what training without support
                vectors minimizes; training with them lives in the `supclap` package.
        """
        if input_ids is None or input_features is None:
            raise ValueError(
                "forward compares audio with text and needs both input_ids and input_features; use get_text_features "
                "or get_audio_features to embed one of them."
            )
        text = self.get_text_features(input_ids, attention_mask, token_type_ids, return_dict=True, **kwargs)
        audio = self.get_audio_features(input_features, input_features_mask, return_dict=True, **kwargs)
        text_embeds, audio_embeds = text.pooler_output, audio.pooler_output
        logits_per_text = text_embeds @ audio_embeds.t() * self.get_logit_scale().to(text_embeds.dtype)
        if self.logit_bias is not None:
            logits_per_text = logits_per_text + self.logit_bias.to(logits_per_text.dtype)
        return SupClapOutput(
            loss=contrastive_loss(logits_per_text, sigmoid=self.logit_bias is not None) if return_loss else None,
            logits_per_audio=logits_per_text.t(),
            logits_per_text=logits_per_text,
            text_embeds=text_embeds,
            audio_embeds=audio_embeds,
            text_model_output=text,
            audio_model_output=audio,
        )


__all__ = ["SupClapModel", "SupClapOutput", "SupClapPreTrainedModel"]
