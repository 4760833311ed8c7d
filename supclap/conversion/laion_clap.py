"""LAION-CLAP checkpoints in, [`SupClapModel`] with the HTSAT tower out."""

import math
from pathlib import Path

import torch
from transformers import AutoFeatureExtractor, ClapConfig, ClapFeatureExtractor

from modeling_supclap import SupClapConfig, SupClapModel
from processing_supclap import SupClapEncoderFeatureExtractor
from supclap.conversion.weights import NamedWeights, read_weights, take_number


_PATCHES = "audio_model.audio_encoder.patch_embed."
_FUSION = (_PATCHES + "fusion_model.", _PATCHES + "mel_conv2d.")
# Constants that some versions save and some do not.
_CONSTANTS = ("text_model.embeddings.position_ids", "text_model.embeddings.token_type_ids")


def load_laion_clap_checkpoint(path: str | Path) -> SupClapModel:
    """Loads a LAION-CLAP in the form of Transformers (`ClapModel`), to fine-tune or use it as a SupCLAP model.

    Embeddings of texts and of clips up to 10 s are those of `ClapModel`; its two scales become one, that of
    `logits_per_audio`. Longer clips, which `ClapModel` crops at random, are cut into windows and averaged; the weights
    of a fusion model that only such crops use are left out.

    Args:
        path: Folder with `config.json` and the weights.

    Returns:
        The model in evaluation mode.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ValueError: A key is missing, unexpected or has another shape; the message names it.
    """
    clap = _read_config(path)
    published = read_weights(path)
    scale = take_number(published, "logit_scale_a", path)
    take_number(published, "logit_scale_t", path)
    if scale > 80:
        raise ValueError(f"{str(path)!r}: logit_scale_a is {scale}, the log of a scale that no float32 holds.")
    if clap.audio_config.enable_fusion:
        published = {name: value for name, value in published.items() if not name.startswith(_FUSION)}
    extractor = _own_extractor(path, clap)
    config = SupClapConfig(
        text_config=clap.text_config,
        audio_config=clap.audio_config,
        audio_window=extractor.nb_max_samples // extractor.hop_length + 1,
        text_pooling="pooler",
        projection_dim=clap.projection_dim,
        projection_hidden_act=clap.projection_hidden_act,
        logit_scale_max=max(100.0, math.exp(scale)),  # a clamp below what was trained would change the logits
    )
    weights = NamedWeights.renamed(
        published,
        path,
        ours=lambda name: name.replace("audio_model.", "audio_model.encoder.", 1),
        in_file=lambda name: name.replace("audio_model.encoder.", "audio_model.", 1),
    )
    weights.add({"logit_scale": torch.tensor([scale])})
    model = SupClapModel(config)
    weights.load_into(model, optional=_CONSTANTS)
    return model.eval()


def laion_clap_feature_extractor(path: str | Path) -> SupClapEncoderFeatureExtractor:
    """The feature extractor of the converted model: that of the folder, or the published one."""
    return SupClapEncoderFeatureExtractor(_own_extractor(path, _read_config(path)))


def _own_extractor(path: str | Path, clap: ClapConfig) -> ClapFeatureExtractor:
    if (Path(path) / "preprocessor_config.json").is_file() or (Path(path) / "processor_config.json").is_file():
        return AutoFeatureExtractor.from_pretrained(str(path))
    # fusion models were trained on another scale of mel bands than the others
    return ClapFeatureExtractor(truncation="fusion" if clap.audio_config.enable_fusion else "rand_trunc")


def _read_config(path: str | Path) -> ClapConfig:
    if not (Path(path) / "config.json").is_file():
        raise FileNotFoundError(f"No config.json in {str(path)!r}; expected the folder of a ClapModel.")
    return ClapConfig.from_pretrained(str(path))
