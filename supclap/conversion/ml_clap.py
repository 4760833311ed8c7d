"""Turns ML-CLAP checkpoints (CED, SONAR, two projections and a temperature) into a [`SupClapModel`]."""

from pathlib import Path

import torch

from modeling_supclap import SupClapConfig, SupClapModel
from supclap.conversion.ced import LAYERS as CED_LAYERS
from supclap.conversion.ced import build_ced, ced_weights
from supclap.conversion.sonar import LAYERS as SONAR_LAYERS
from supclap.conversion.sonar import build_sonar, sonar_weights
from supclap.conversion.weights import NamedWeights, read_weights, take_number
from supclap.errors import ConversionError


_AUDIO, _TEXT = "audio_encoder.model.", "text_encoder.model."
# A projection is a list in the file, with a linear map at position 0, a ReLU, and a linear map at position 2.
_PROJECTION = (("_proj.0.", "_projection.linear1."), ("_proj.2.", "_projection.linear2."))


def load_ml_clap_checkpoint(
    path: str | Path,
    audio_attention_heads: int | None = None,
    text_attention_heads: int | None = None,
    audio_layers: int = CED_LAYERS,
    text_layers: int = SONAR_LAYERS,
) -> SupClapModel:
    """Loads a checkpoint of ML-CLAP (Interspeech 2024), the model that SupCLAP's multilingual experiments start from.

    Its text encoder is SONAR's, whose weights are under CC-BY-NC-4.0, and so is the result. Its authors change texts to
    lower case and remove punctuation before they tokenize them. That is not part of the weights and is left to the caller.

    Args:
        path: The `.pt` or `.safetensors` file.
        audio_attention_heads: Heads of the audio encoder's blocks; width / 64 when omitted.
        text_attention_heads: Heads of the text encoder's layers; width / 64 when omitted.
        audio_layers: Blocks of the audio encoder.
        text_layers: Layers of the text encoder.

    Returns:
        The model in evaluation mode, with the temperature `t` as a scale of `log(1/t)`.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ConversionError: A key or a layer is missing, unexpected or has another shape, which the message names; or the
            temperature is no positive number.
    """
    weights = read_weights(path)
    temperature = take_number(weights, "temperature", path)
    if temperature <= 0:
        raise ConversionError(
            f"{str(path)!r}: the temperature is {temperature}, and only a positive one has a logarithm."
        )
    audio_model = build_ced(ced_weights(weights, path, _AUDIO), audio_attention_heads, audio_layers)
    text_model = build_sonar(sonar_weights(weights, path, _TEXT), text_attention_heads, text_layers)
    projections = {name: value for name, value in weights.items() if not name.startswith((_AUDIO, _TEXT))}
    heads = NamedWeights(projections, path, parts=_PROJECTION)
    config = SupClapConfig(
        text_config=text_model.config,
        audio_config=audio_model.config,
        projection_dim=heads.shape("audio_projection.linear1.weight", 2)[0],
        logit_scale_max=max(100.0, 1 / temperature),  # a lower limit than the trained scale would change the logits
    )
    for tower, encoder in (("audio_model", audio_model), ("text_model", text_model)):
        heads.add({f"{tower}.{name}": value for name, value in encoder.state_dict().items()})
    heads.add({"logit_scale": -torch.tensor([temperature]).log()})
    return heads.load_into(SupClapModel(config))
