"""What training needs of a dual encoder: it works with any that has the methods and parameters of those in Transformers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supclap.losses.precision import full_precision


TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
OTHER_TOWERS = ("get_audio_features", "get_image_features")
LOGIT_SCALE_MAX = 100.0


def check_dual_encoder(model: nn.Module) -> None:
    """Raises a `TypeError` that names what a model lacks to be trained."""
    missing = []
    if not hasattr(model, "get_text_features"):
        missing.append("get_text_features()")
    if not any(hasattr(model, name) for name in OTHER_TOWERS):
        missing.append("get_audio_features() or get_image_features()")
    if not log_scales(model):
        missing.append("parameter logit_scale")
    if missing:
        raise TypeError(
            f"{type(model).__name__} is not a dual encoder that can be trained here: it has no {', no '.join(missing)}. "
            "SupClapModel, ClapModel, CLIPModel and models with the same methods can."
        )


def log_scales(model: nn.Module) -> list[nn.Parameter]:
    """The parameters log(1/temperature): one, or ClapModel's two, one for each direction."""
    names = ("logit_scale", "logit_scale_a", "logit_scale_t")
    return [getattr(model, name) for name in names if isinstance(getattr(model, name, None), nn.Parameter)]


def logit_scale(model: nn.Module) -> Tensor:
    """1/temperature, 0-d or (1,); of two parameters the geometric mean, so that equal ones get the same gradient."""
    return torch.stack([full_precision(value) for value in log_scales(model)]).mean(0).exp()


@torch.no_grad()
def limit_logit_scale(model: nn.Module) -> None:
    """Keeps the scale at most at `logit_scale_max` of the config, or 100.

    Clamping the value in the forward pass instead would make its gradient zero, and the scale could not come back.
    """
    largest = torch.tensor(getattr(model.config, "logit_scale_max", LOGIT_SCALE_MAX)).log().item()
    for value in log_scales(model):
        value.clamp_(max=largest)


def embed_text(model: nn.Module, **inputs: Tensor) -> Tensor:
    """Unit-length embeddings (n, D) of texts."""
    return _unit(model.get_text_features(**inputs))


def embed_other(model: nn.Module, **inputs: Tensor) -> Tensor:
    """Unit-length embeddings (n, D) of the inputs of the other tower: audio or images."""
    name = next(name for name in OTHER_TOWERS if hasattr(model, name))
    return _unit(getattr(model, name)(**inputs))


def _unit(output) -> Tensor:
    """The embedding of an output object, or of the bare tensor that older versions return."""
    return F.normalize(full_precision(getattr(output, "pooler_output", output)), dim=-1)


def layer_of_parameters(encoder: nn.Module) -> dict[nn.Parameter, int] | None:
    """For each parameter of an encoder of `n` layers the index of its layer, in their order.

    It is -1 for what comes before the layers (embeddings, patches, convolutions) and `n` for what comes after them. The
    layers are the first list that is as long as the configuration says; without one, the result is None.
    """
    total = encoder.config.num_hidden_layers
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == total]
    if not lists:
        return None
    found = {parameter: index for index, layer in enumerate(lists[0]) for parameter in layer.parameters()}
    outside = -1
    for parameter in encoder.parameters():
        if parameter in found:
            outside = total
        else:
            found[parameter] = outside
    return found
