"""Turns SONAR's text encoder into an M2M100 encoder of Transformers.

The weights are under CC-BY-NC-4.0, and so is what is derived from them.
"""

from pathlib import Path

import torch
from transformers import AutoConfig, M2M100Config, PreTrainedModel

from modeling_supclap.modeling_supclap import build_text_encoder
from supclap.conversion.weights import NamedWeights, heads_of, read_weights
from supclap.errors import ConversionError
from supclap.files import CONFIG


# Parts of the names in fairseq2 and in Transformers.
_NAMES = (
    ("encoder_frontend.embed.", "embed_tokens."),
    ("encoder.layers.", "layers."),
    ("self_attn.output_proj.", "self_attn.out_proj."),
    ("ffn.inner_proj.", "fc1."),
    ("ffn.output_proj.", "fc2."),
    ("ffn_layer_norm.", "final_layer_norm."),
)
# fairseq2 starts its vocabulary with <pad> <unk> <s> </s>, the NLLB tokenizer of Transformers with <s> <pad> </s> <unk>.
# Row i of the embedding in Transformers is row _SPECIAL_TOKENS[i] of the one in fairseq2.
_SPECIAL_TOKENS = [2, 0, 3, 1]
# The longest text of SONAR's training, in tokens.
_MAX_LENGTH = 512
LAYERS = 24
_EMBEDDING = "embed_tokens.weight"


def sonar_weights(published: dict[str, torch.Tensor], source: str | Path, prefix: str = "") -> NamedWeights:
    """Returns weights of fairseq2 by the names of Transformers, with the tokens in the order of Transformers.

    Weights whose name does not begin with `prefix` are left out.
    """
    encoder = {name: value for name, value in published.items() if name.startswith(prefix)}
    weights = NamedWeights(encoder, source, prefix, _NAMES)
    tokens = weights.shape(_EMBEDDING, 2)[0]
    if tokens < len(_SPECIAL_TOKENS):
        raise ConversionError(
            f"{str(source)!r}: {weights.in_file(_EMBEDDING)} has {tokens} rows, fewer than special tokens."
        )
    embedding = weights.tensors[_EMBEDDING].clone()
    embedding[:4] = embedding[_SPECIAL_TOKENS]
    weights.tensors[_EMBEDDING] = embedding
    return weights


def build_sonar(weights: NamedWeights, num_attention_heads: int | None, num_hidden_layers: int) -> PreTrainedModel:
    """Builds an M2M100 encoder with these weights, of the sizes that they tell."""
    vocab_size, width = weights.shape(_EMBEDDING, 2)
    weights.check_layers("layers.", num_hidden_layers)
    config = M2M100Config(
        vocab_size=vocab_size,
        d_model=width,
        encoder_layers=num_hidden_layers,
        encoder_attention_heads=heads_of(width, num_attention_heads, weights.source),
        encoder_ffn_dim=weights.shape("layers.0.fc1.weight", 2)[0],
        max_position_embeddings=_MAX_LENGTH,
    )
    return weights.load_into(build_text_encoder(config))


def load_sonar_checkpoint(
    path: str | Path, num_attention_heads: int | None = None, num_hidden_layers: int = LAYERS
) -> PreTrainedModel:
    """Loads SONAR's text encoder from a checkpoint of fairseq2, or from a folder in the form of Transformers.

    Args:
        path: The `.pt` or `.safetensors` file of fairseq2, or a folder with the weights of an M2M100 encoder and its
            `config.json`.
        num_attention_heads: Heads of each layer of a fairseq2 checkpoint, which does not tell; width / 64 when omitted.
        num_hidden_layers: Layers of a fairseq2 checkpoint. Given or published, the number shows whether layers are missing
            at the end.

    Returns:
        An `M2M100Encoder` in evaluation mode. Its embedding of a text is the mean over all tokens, which
        `text_pooling="masked_mean"` takes.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ConversionError: A key is missing, unexpected or has another shape; the message names it.
    """
    published = read_weights(path)
    if not (Path(path) / CONFIG).is_file():
        return build_sonar(sonar_weights(published, path), num_attention_heads, num_hidden_layers)
    config = AutoConfig.from_pretrained(str(path))
    if config.model_type != "m2m_100":
        raise ConversionError(f"{str(path)!r} holds a {config.model_type!r}; SONAR's text encoder is an 'm2m_100'.")
    config.max_position_embeddings = min(config.max_position_embeddings, _MAX_LENGTH)
    # Some exports keep a copy of the embedding for a decoder.
    published.pop("shared.weight", None)
    prefix = "encoder." if any(name.startswith("encoder.") for name in published) else ""
    return NamedWeights(published, path, prefix).load_into(build_text_encoder(config))
