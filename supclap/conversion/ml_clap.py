"""ML-CLAP checkpoints (CED, SONAR, two projections, a raw temperature) in, [`SupClapModel`] out."""

from pathlib import Path

import torch

from modeling_supclap import SupClapConfig, SupClapModel
from supclap.conversion.ced import build_ced, ced_weights
from supclap.conversion.sonar import build_sonar
from supclap.conversion.weights import load_strictly, read_weights, require


_AUDIO, _TEXT = "audio_encoder.model.", "text_encoder.model."
# linear, ReLU, linear, by their position in a list
_PROJECTION = {"0": "linear1", "2": "linear2"}


def load_ml_clap_checkpoint(
    path: str | Path, audio_attention_heads: int | None = None, text_attention_heads: int | None = None
) -> SupClapModel:
    """Loads a checkpoint of ML-CLAP (Interspeech 2024), the model that SupCLAP's multilingual experiments start from.

    Its text encoder is SONAR's, whose weights are under CC-BY-NC-4.0: the result is too. Its authors lower-case texts
    and remove punctuation before they tokenize them; this is not part of the weights and is left to the caller.

    Args:
        path: The `.pt` or `.safetensors` file.
        audio_attention_heads: Heads of the audio encoder's blocks; width / 64 when omitted.
        text_attention_heads: Heads of the text encoder's layers; width / 64 when omitted.

    Returns:
        The model in evaluation mode, with the temperature `t` as a scale of `log(1/t)`.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ValueError: A key is missing, unexpected or has another shape, which the message names; or the temperature is
            not positive.
    """
    weights = read_weights(path)
    require(weights, ("temperature", "audio_proj.0.weight", "text_proj.0.weight"), f"{str(path)!r} is no ML-CLAP")
    temperature = weights["temperature"].float().item()
    if not temperature > 0:
        raise ValueError(f"{str(path)!r}: the temperature is {temperature}, and only a positive one has a logarithm.")
    audio = {key.removeprefix(_AUDIO): value for key, value in weights.items() if key.startswith(_AUDIO)}
    text = {key.removeprefix(_TEXT): value for key, value in weights.items() if key.startswith(_TEXT)}
    audio_model = build_ced(ced_weights(audio), f"{path}: {_AUDIO}*", audio_attention_heads)
    text_model = build_sonar(text, f"{path}: {_TEXT}*", text_attention_heads)
    config = SupClapConfig(
        text_config=text_model.config,
        audio_config=audio_model.config,
        projection_dim=weights["audio_proj.0.weight"].shape[0],
        logit_scale_max=max(100.0, 1 / temperature),  # a clamp below what was trained would change the logits
    )
    renamed = {f"audio_model.{name}": value for name, value in audio_model.state_dict().items()}
    renamed.update({f"text_model.{name}": value for name, value in text_model.state_dict().items()})
    renamed["logit_scale"] = -torch.tensor([temperature]).log()
    for name, value in weights.items():
        if not name.startswith((_AUDIO, _TEXT)) and name != "temperature":
            renamed[_projection_name(name)] = value
    model = SupClapModel(config)
    load_strictly(model, renamed, path)
    return model.eval()


def _projection_name(name: str) -> str:
    """`audio_proj.0.weight` → `audio_projection.linear1.weight`; other names as they are, for the error to name them."""
    side, _, rest = name.partition("_proj.")
    position, _, kind = rest.partition(".")
    return f"{side}_projection.{_PROJECTION[position]}.{kind}" if position in _PROJECTION else name
