"""Turns LAION-CLAP checkpoints into a [`SupClapModel`] with the HTSAT encoder."""

import math
from pathlib import Path

import torch
from transformers import AutoFeatureExtractor, ClapConfig, ClapFeatureExtractor

from modeling_supclap import SupClapConfig, SupClapModel
from supclap.conversion.weights import NamedWeights, read_weights, take_number
from supclap.errors import ConversionError
from supclap.files import CONFIG, PROCESSOR


_PATCHES = "audio_model.audio_encoder.patch_embed."
_FUSION = (_PATCHES + "fusion_model.", _PATCHES + "mel_conv2d.")
# The HTSAT stands inside an adapter here.
_NAMES = (("audio_model.", "audio_model.encoder."),)
# Constants that some versions of Transformers save and some do not.
_CONSTANTS = ("text_model.embeddings.position_ids", "text_model.embeddings.token_type_ids")


def load_laion_clap_checkpoint(path: str | Path) -> SupClapModel:
    """Loads a LAION-CLAP in the form of Transformers (`ClapModel`), to fine-tune or use it as a SupCLAP model.

    Texts, and clips of up to 10 s, get the embeddings that `ClapModel` gives them. Of its two scales, that of
    `logits_per_audio` is kept. Longer clips, which `ClapModel` crops at random, are cut into windows and averaged; a
    fusion model has weights that only such crops go through, and these are left out.

    Args:
        path: Folder with `config.json` and the weights.

    Returns:
        The model in evaluation mode.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ConversionError: A key is missing, unexpected or has another shape; the message names it.
    """
    clap = _read_config(path)
    published = read_weights(path)
    scale = take_number(published, "logit_scale_a", path)
    take_number(published, "logit_scale_t", path)
    if scale > 80:
        raise ConversionError(f"{str(path)!r}: logit_scale_a is {scale}, the log of a scale that no float32 holds.")
    if clap.audio_config.enable_fusion:
        published = {name: value for name, value in published.items() if not name.startswith(_FUSION)}
    extractor = own_extractor(path)
    config = SupClapConfig(
        text_config=clap.text_config,
        audio_config=clap.audio_config,
        audio_window=extractor.nb_max_samples // extractor.hop_length + 1,
        text_pooling="pooler",
        projection_dim=clap.projection_dim,
        projection_hidden_act=clap.projection_hidden_act,
        logit_scale_max=max(100.0, math.exp(scale)),  # a lower limit than the trained scale would change the logits
    )
    weights = NamedWeights(published, path, parts=_NAMES)
    weights.add({"logit_scale": torch.tensor([scale])})
    return weights.load_into(SupClapModel(config), optional=_CONSTANTS)


def own_extractor(path: str | Path) -> ClapFeatureExtractor:
    """Returns the feature extractor of the folder, or the published one where there is none."""
    if any((Path(path) / name).is_file() for name in ("preprocessor_config.json", PROCESSOR)):
        return AutoFeatureExtractor.from_pretrained(str(path))
    # Fusion models were trained on another scale of mel bands than the others.
    is_fusion = _read_config(path).audio_config.enable_fusion
    return ClapFeatureExtractor(truncation="fusion" if is_fusion else "rand_trunc")


def _read_config(path: str | Path) -> ClapConfig:
    if not (Path(path) / CONFIG).is_file():
        raise FileNotFoundError(f"No config.json in {str(path)!r}; expected the folder of a ClapModel.")
    return ClapConfig.from_pretrained(str(path))
