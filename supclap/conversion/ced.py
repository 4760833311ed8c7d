"""Turns published CED weights into a [`CedModel`]."""

from pathlib import Path

import torch

from modeling_supclap import CedConfig, CedModel
from supclap.conversion.weights import NamedWeights, heads_of, read_weights
from supclap.errors import ConversionError
from supclap.files import CONFIG, read_json_object


# Parts of the published module that are not part of the encoder: its spectrogram and its AudioSet head.
_NOT_ENCODER = {
    *("front_end.0.spectrogram.window", "front_end.0.mel_scale.fb"),
    *(f"outputlayer.{layer}.{kind}" for layer in range(2) for kind in ("weight", "bias")),
}
# All published sizes have so many blocks, and windows of so many frames.
LAYERS = 12
_TARGET_LENGTH = 1012
# The norm of the input is wrapped in another module in the original layout, and is not in that of the Hub.
_WRAPPED_NORM = (("init_bn.1.", "init_bn."),)


def ced_weights(published: dict[str, torch.Tensor], source: str | Path, prefix: str = "") -> NamedWeights:
    """Returns the encoder's weights by our names, from a file in the original layout or in that of the Hub (`encoder.*`).

    Weights whose name does not begin with `prefix` are left out, as are the spectrogram and the AudioSet head.
    """
    inner = [name.removeprefix(prefix) for name in published if name.startswith(prefix)]
    encoder = {prefix + name: published[prefix + name] for name in inner if name not in _NOT_ENCODER}
    prefix += "encoder." if any(name.startswith("encoder.") for name in inner) else ""
    parts = _WRAPPED_NORM if any("init_bn.1." in name for name in inner) else ()
    return NamedWeights(encoder, source, prefix, parts)


def build_ced(
    weights: NamedWeights, num_attention_heads: int | None, num_hidden_layers: int, target_length: int = _TARGET_LENGTH
) -> CedModel:
    """Builds a [`CedModel`] with these weights, of the sizes that they tell."""
    hidden_size, _, patch_size, _ = weights.shape("patch_embed.proj.weight", 4)
    (num_mel_bins,) = weights.shape("init_bn.weight", 1)
    bands, columns = weights.shape("freq_pos_embed", 4)[2], weights.shape("time_pos_embed", 4)[3]
    if num_mel_bins != bands * patch_size:
        names = [weights.in_file(name) for name in ("init_bn.weight", "freq_pos_embed")]
        raise ConversionError(
            f"{weights.source!r}: {names[0]} has {num_mel_bins} mel bands, but {names[1]} has {bands} patches of "
            f"{patch_size}."
        )
    if columns != target_length // patch_size:
        raise ConversionError(
            f"{weights.source!r}: {weights.in_file('time_pos_embed')} has {columns} columns, but windows of "
            f"{target_length} frames have {target_length // patch_size}. A config.json beside the weights may say another "
            "target_length."
        )
    weights.check_layers("blocks.", num_hidden_layers)
    config = CedConfig(
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=heads_of(hidden_size, num_attention_heads, weights.source),
        mlp_ratio=weights.shape("blocks.0.mlp.fc1.weight", 2)[0] / hidden_size,
        num_mel_bins=num_mel_bins,
        patch_size=patch_size,
        target_length=target_length,
    )
    return weights.load_into(CedModel(config))


def load_ced_checkpoint(
    path: str | Path, num_attention_heads: int | None = None, num_hidden_layers: int | None = None
) -> CedModel:
    """Loads a CED checkpoint in its original layout (`init_bn.1.*`, `blocks.N.*`, `outputlayer.*`) or as a Hub folder.

    Args:
        path: The `.safetensors`, `.pt` or `.bin` file, or the folder with the weights and `config.json`.
        num_attention_heads: Heads of each block, which the weights do not tell. When omitted, `config.json` tells, or
            heads have the published width of 64.
        num_hidden_layers: Number of blocks. When omitted, `config.json` tells, or it is the published 12.

    Returns:
        The encoder in evaluation mode.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ConversionError: A key or a layer is missing, unexpected or has another shape, or a size is not that of
            `config.json`; the message names it.
    """
    # AutoConfig is not used here, because the published configuration class asks the network for the names of labels.
    config = read_sizes(path)
    model = build_ced(
        ced_weights(read_weights(path), path),
        num_attention_heads or config.get("num_heads"),
        num_hidden_layers or config.get("depth", LAYERS),
        config.get("target_length", _TARGET_LENGTH),
    )
    built = model.config
    sizes = {"embed_dim": built.hidden_size, "n_mels": built.num_mel_bins, "patch_size": built.patch_size}
    for key, size in sizes.items():
        if config.get(key, size) != size:
            raise ConversionError(f"{str(path)!r}: config.json says {key} {config[key]}, and the weights have {size}.")
    return model


def read_sizes(path: str | Path) -> dict[str, int]:
    """Returns the sizes in the `config.json` of a published folder; an empty dict where there is none."""
    file = Path(path) / CONFIG
    config = read_json_object(file) if file.is_file() else {}
    names = ("num_heads", "depth", "target_length", "embed_dim", "n_mels", "patch_size")
    sizes = {name: config[name] for name in names if config.get(name) is not None}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ConversionError(f"{file}: {name} is {size!r} and should be a positive whole number.")
    return sizes
