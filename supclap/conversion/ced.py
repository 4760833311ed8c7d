"""Published CED weights in, [`CedModel`] out."""

from pathlib import Path

import torch

from modeling_supclap import CedConfig, CedModel


# Parts of the original module that the encoder does not have: its spectrogram and its AudioSet head.
_NOT_ENCODER = ("front_end.", "outputlayer.")


def _read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No CED checkpoint at {str(path)!r}; expected a .safetensors, .pt or .bin file.")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    weights = torch.load(path, map_location="cpu", weights_only=True)
    return weights.get("model", weights)


def _config_from_weights(weights: dict[str, torch.Tensor], num_attention_heads: int | None) -> CedConfig:
    hidden_size, _, patch_size, _ = weights["patch_embed.proj.weight"].shape
    time_grid = weights["time_pos_embed"].shape[-1]
    depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    heads = num_attention_heads or hidden_size // 64
    if heads < 1:
        raise ValueError(f"Width {hidden_size} gives no default number of heads; pass num_attention_heads.")
    # The published time grid of 63 patches covers 1,012 frames: its windows end with 4 frames that fill no patch.
    rest = 4 if time_grid == 63 else 0
    return CedConfig(
        hidden_size=hidden_size,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        mlp_ratio=weights["blocks.0.mlp.fc1.weight"].shape[0] / hidden_size,
        num_mel_bins=weights["init_bn.weight"].shape[0],
        patch_size=patch_size,
        target_length=time_grid * patch_size + rest,
    )


def load_ced_checkpoint(path: str | Path, num_attention_heads: int | None = None) -> CedModel:
    """Loads a CED checkpoint in its original layout (`init_bn.1.*`, `blocks.N.*`, `outputlayer.*`).

    Args:
        path: The `.safetensors`, `.pt` or `.bin` file.
        num_attention_heads: Heads of each block, which the weights do not tell; width / 64 when omitted.

    Returns:
        The encoder in evaluation mode, with all sizes read from the weights.

    Raises:
        FileNotFoundError: There is no file at `path`.
        ValueError: A key is missing, unexpected or has another shape; the message names it.
    """
    weights = {
        name.replace("init_bn.1.", "init_bn."): value
        for name, value in _read_weights(path).items()
        if not name.startswith(_NOT_ENCODER)
    }
    needed = ("patch_embed.proj.weight", "time_pos_embed", "init_bn.weight", "blocks.0.mlp.fc1.weight")
    absent = [name for name in needed if name not in weights]
    if absent:
        raise ValueError(
            f"{str(path)!r} is not a CED checkpoint in the original layout: it lacks {', '.join(absent)}."
        )
    model = CedModel(_config_from_weights(weights, num_attention_heads))
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise ValueError(f"{str(path)!r} does not fit a CED encoder: {error}") from None
    return model.eval()
