"""Published CED weights in, [`CedModel`] out."""

import json
from pathlib import Path

import torch

from modeling_supclap import CedConfig, CedModel
from supclap.conversion.weights import load_strictly, read_weights, require


# Parts of the original module that the encoder does not have: its spectrogram and its AudioSet head.
_NOT_ENCODER = ("front_end.", "outputlayer.")


def ced_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The encoder's weights by our names, from those of the original module or of its Hub form (`encoder.*`)."""
    return {
        name.removeprefix("encoder.").replace("init_bn.1.", "init_bn."): value
        for name, value in weights.items()
        if not name.startswith(_NOT_ENCODER)
    }


def build_ced(weights: dict[str, torch.Tensor], source: str | Path, num_attention_heads: int | None) -> CedModel:
    """A [`CedModel`] of the sizes of `weights`, which have our names, with these weights."""
    require(
        weights,
        ("patch_embed.proj.weight", "time_pos_embed", "init_bn.weight", "blocks.0.mlp.fc1.weight"),
        f"{str(source)!r} is not a CED checkpoint",
    )
    hidden_size, _, patch_size, _ = weights["patch_embed.proj.weight"].shape
    time_grid = weights["time_pos_embed"].shape[-1]
    heads = num_attention_heads or hidden_size // 64
    if heads < 1:
        raise ValueError(f"Width {hidden_size} gives no default number of heads; pass num_attention_heads.")
    # The published time grid of 63 patches covers 1,012 frames: its windows end with 4 frames that fill no patch.
    rest = 4 if time_grid == 63 else 0
    model = CedModel(
        CedConfig(
            hidden_size=hidden_size,
            num_hidden_layers=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
            num_attention_heads=heads,
            mlp_ratio=weights["blocks.0.mlp.fc1.weight"].shape[0] / hidden_size,
            num_mel_bins=weights["init_bn.weight"].shape[0],
            patch_size=patch_size,
            target_length=time_grid * patch_size + rest,
        )
    )
    load_strictly(model, weights, source)
    return model.eval()


def load_ced_checkpoint(path: str | Path, num_attention_heads: int | None = None) -> CedModel:
    """Loads a CED checkpoint in its original layout (`init_bn.1.*`, `blocks.N.*`, `outputlayer.*`) or as a Hub folder.

    Args:
        path: The `.safetensors`, `.pt` or `.bin` file, or the folder with the weights and `config.json`.
        num_attention_heads: Heads of each block, which the weights do not tell; those of `config.json`, or width / 64,
            when omitted.

    Returns:
        The encoder in evaluation mode, with all sizes read from the weights.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        ValueError: A key is missing, unexpected or has another shape; the message names it.
    """
    config = Path(path) / "config.json"
    if num_attention_heads is None and config.is_file():
        # not by AutoConfig: the published configuration class asks the network for label names
        num_attention_heads = json.loads(config.read_text(encoding="utf-8")).get("num_heads")
    return build_ced(ced_weights(read_weights(path)), path, num_attention_heads)
