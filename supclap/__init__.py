"""SupCLAP: train, fine-tune, evaluate and use audio-text contrastive models with support vector regularisation.

Importing it registers the model with the Auto classes of Transformers. Training and evaluation load when first used.
"""

from importlib import import_module

from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor

from modeling_supclap import CedConfig, CedModel, SupClapConfig, SupClapModel, SupClapOutput
from processing_supclap import (
    SupClapFeatureExtractor,
    SupClapProcessor,
    SupClapZeroShotAudioClassificationPipeline,
    load_waveform,
)


__version__ = "0.1.0"

AutoConfig.register(CedConfig.model_type, CedConfig)
AutoConfig.register(SupClapConfig.model_type, SupClapConfig)
AutoModel.register(CedConfig, CedModel)
AutoModel.register(SupClapConfig, SupClapModel)
AutoFeatureExtractor.register(SupClapConfig, SupClapFeatureExtractor)
AutoProcessor.register(SupClapConfig, SupClapProcessor)

# A saved folder carries the code of these classes, so that it loads where this package is not installed.
CedConfig.register_for_auto_class()
SupClapConfig.register_for_auto_class()
CedModel.register_for_auto_class("AutoModel")
SupClapModel.register_for_auto_class("AutoModel")
SupClapFeatureExtractor.register_for_auto_class("AutoFeatureExtractor")
SupClapProcessor.register_for_auto_class("AutoProcessor")

_LAZY = {
    "SupClapForContrastiveTraining": "supclap.training_model",
    "SupClapLoss": "supclap.losses",
    "SupClapTrainer": "supclap.trainer",
    "SupClapTrainingArguments": "supclap.training_args",
}


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pipeline(model, **kwargs) -> SupClapZeroShotAudioClassificationPipeline:
    """The zero-shot audio classification pipeline with SupCLAP's handling of audio, labels and templates.

    Args:
        model: A checkpoint folder, a Hub id or a model.
        kwargs: Passed on to [`transformers.pipeline`].
    """
    import transformers

    return transformers.pipeline(
        "zero-shot-audio-classification",
        model=model,
        pipeline_class=SupClapZeroShotAudioClassificationPipeline,
        **kwargs,
    )


__all__ = [
    "CedConfig",
    "CedModel",
    "SupClapConfig",
    "SupClapFeatureExtractor",
    "SupClapModel",
    "SupClapOutput",
    "SupClapProcessor",
    "SupClapZeroShotAudioClassificationPipeline",
    "load_waveform",
    "pipeline",
    *_LAZY,
]
