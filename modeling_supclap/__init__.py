"""Model code of SupCLAP. Its files travel with every checkpoint."""

from .configuration_supclap import CED_SIZES, CedConfig, SupClapConfig
from .modeling_ced import CedModel, CedPreTrainedModel
from .modeling_supclap import SupClapModel, SupClapOutput, SupClapPreTrainedModel


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
