"""SONAR's text encoder in, an M2M100 encoder of Transformers out.

The weights are under CC-BY-NC-4.0, and what is derived from them is too.
"""

import re
from pathlib import Path

import torch
from transformers import AutoConfig, M2M100Config, PreTrainedModel

from supclap.conversion.weights import load_strictly, read_weights, require


# Names of fairseq2 and of Transformers.
_RENAMES = (
    (r"^encoder_frontend\.embed\.", "embed_tokens."),
    (r"^encoder\.layers\.", "layers."),
    (r"^(layers\.\d+\.self_attn)\.output_proj\.", r"\1.out_proj."),
    (r"^(layers\.\d+)\.ffn\.inner_proj\.", r"\1.fc1."),
    (r"^(layers\.\d+)\.ffn\.output_proj\.", r"\1.fc2."),
    (r"^(layers\.\d+)\.ffn_layer_norm\.", r"\1.final_layer_norm."),
)
# fairseq2 starts its vocabulary with <pad> <unk> <s> </s>, the NLLB tokenizer of Transformers with <s> <pad> </s> <unk>.
_SPECIAL_TOKENS = [2, 0, 3, 1]
# The longest text of SONAR's training, in tokens.
_MAX_LENGTH = 512
_EMBEDDING = "encoder_frontend.embed.weight"


def sonar_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """fairseq2's weights by the names, and in the order of tokens, of Transformers."""
    renamed = {}
    for name, value in weights.items():
        for pattern, replacement in _RENAMES:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    embedding = renamed["embed_tokens.weight"].clone()
    embedding[:4] = embedding[_SPECIAL_TOKENS]
    return {**renamed, "embed_tokens.weight": embedding}


def build_sonar(
    weights: dict[str, torch.Tensor], source: str | Path, num_attention_heads: int | None
) -> PreTrainedModel:
    """An M2M100 encoder of the sizes of fairseq2's `weights`, with these weights."""
    require(
        weights,
        (_EMBEDDING, "encoder.layers.0.ffn.inner_proj.weight"),
        f"{str(source)!r} is not a SONAR text encoder in fairseq2's naming",
    )
    vocab_size, width = weights[_EMBEDDING].shape
    heads = num_attention_heads or width // 64
    if heads < 1:
        raise ValueError(f"Width {width} gives no default number of heads; pass num_attention_heads.")
    weights = sonar_weights(weights)
    config = M2M100Config(
        vocab_size=vocab_size,
        d_model=width,
        encoder_layers=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers.")),
        encoder_attention_heads=heads,
        encoder_ffn_dim=weights["layers.0.fc1.weight"].shape[0],
        encoder_layerdrop=0.0,
        max_position_embeddings=_MAX_LENGTH,
    )
    return _load(config, weights, source)


def _load(config: M2M100Config, weights: dict[str, torch.Tensor], source: str | Path) -> PreTrainedModel:
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    model = M2M100Encoder(config)
    load_strictly(model, weights, source)
    return model.eval()


def load_sonar_checkpoint(path: str | Path, num_attention_heads: int | None = None) -> PreTrainedModel:
    """Loads SONAR's text encoder from a checkpoint of fairseq2, or from a folder in the form of Transformers.

    Args:
        path: The `.pt` or `.safetensors` file of fairseq2, or a folder with the weights of an M2M100 encoder and its
            `config.json`.
        num_attention_heads: Heads of each layer of a fairseq2 checkpoint, which does not tell; width / 64 when omitted.

    Returns:
        An `M2M100Encoder` in evaluation mode. Its embedding of a text is the mean over all tokens, which
        `text_pooling="masked_mean"` takes.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ValueError: A key is missing, unexpected or has another shape; the message names it.
    """
    weights = read_weights(path)
    if not (Path(path) / "config.json").is_file():
        return build_sonar(weights, path, num_attention_heads)
    config = AutoConfig.from_pretrained(str(path))
    if config.model_type != "m2m_100":
        raise ValueError(f"{str(path)!r} holds a {config.model_type!r}; SONAR's text encoder is an 'm2m_100'.")
    config.encoder_layerdrop = 0.0
    config.max_position_embeddings = min(config.max_position_embeddings, _MAX_LENGTH)
    # a copy of the embedding that some exports keep for a decoder
    weights = {name.removeprefix("encoder."): value for name, value in weights.items() if name != "shared.weight"}
    return _load(config, weights, path)
