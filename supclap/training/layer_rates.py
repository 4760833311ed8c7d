"""Layer-wise learning rates: layers near the input, which hold what is general, change more slowly."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn

from supclap.errors import SettingsError


def encoder_layers(encoder: nn.Module) -> nn.ModuleList | None:
    """The list of an encoder's layers: the first that is as long as its configuration says; None without one."""
    total = encoder.config.num_hidden_layers
    lists = [m for m in encoder.modules() if isinstance(m, nn.ModuleList) and len(m) == total]
    return lists[0] if lists else None


def layer_scales(encoder: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """The share of the learning rate for each parameter of an encoder of `n` layers.

    `decay ** (n − 1 − i)` for layer `i`, `decay ** n` for what comes before the layers (embeddings, patches,
    convolutions), 1 for what comes after them.

    Raises:
        ValueError: `decay` is not in (0, 1], or the encoder has no list of layers.
    """
    if not 0 < decay <= 1:
        raise SettingsError(f"layer_decay must be above 0 and at most 1, got {decay}.")
    layers = encoder_layers(encoder)
    if layers is None:
        raise SettingsError(f"layer_decay: {type(encoder).__name__} has no list of layers.")
    scales = {
        parameter: decay ** (len(layers) - 1 - index)
        for index, layer in enumerate(layers)
        for parameter in layer.parameters()
    }
    outside = decay ** len(layers)
    for parameter in encoder.parameters():
        if parameter in scales:
            outside = 1.0
        else:
            scales[parameter] = outside
    return scales


def apply_layer_decay(optimizer: torch.optim.Optimizer, encoders: Iterable[nn.Module], decay: float) -> None:
    """Splits an optimiser's groups so that each layer has its own rate, a share of that of its group.

    Args:
        optimizer: Any optimiser whose groups have an `lr`; before a scheduler is made for it.
        encoders: Encoders such as `model.audio_model` and `model.text_model`.
        decay: Ratio of the rates of a layer and the one above it.
    """
    scales = {parameter: scale for encoder in encoders for parameter, scale in layer_scales(encoder, decay).items()}
    for group in list(optimizer.param_groups):
        by_scale = defaultdict(list)
        for parameter in group["params"]:
            by_scale[scales.get(parameter, 1.0)].append(parameter)
        group["params"] = by_scale.pop(1.0, [])
        for scale, parameters in sorted(by_scale.items()):
            optimizer.add_param_group({**group, "params": parameters, "lr": scale * group["lr"]})
