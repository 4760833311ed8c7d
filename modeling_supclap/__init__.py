"""Model code of SupCLAP. Its files travel with every checkpoint."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .configuration_supclap import CED_SIZES, CedConfig, SupClapConfig


if TYPE_CHECKING:
    from .modeling_ced import CedModel, CedPreTrainedModel
    from .modeling_supclap import SupClapModel, SupClapOutput, SupClapPreTrainedModel

# Loaded when first used: the base classes of Transformers' models import all audio libraries.
_LAZY = {
    "CedModel": "modeling_ced",
    "CedPreTrainedModel": "modeling_ced",
    "SupClapModel": "modeling_supclap",
    "SupClapOutput": "modeling_supclap",
    "SupClapPreTrainedModel": "modeling_supclap",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CED_SIZES",
    "CedConfig",
    "CedModel",
    "CedPreTrainedModel",
    "SupClapConfig",
    "SupClapModel",
    "SupClapOutput",
    "SupClapPreTrainedModel",
]
