"""SupCLAP: train, fine-tune, evaluate and use audio-text contrastive models with support vector regularization.

Importing it registers the model with the Auto classes of Transformers. What only training needs is imported when it is
first used, so that inference works without the packages of the extra `train`.
"""

import os
from importlib import import_module
from typing import Any

import transformers
from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor

from modeling_supclap import CedConfig, CedModel, SupClapConfig, SupClapModel, SupClapOutput
from processing_supclap import (
    SupClapEncoderFeatureExtractor,
    SupClapFeatureExtractor,
    SupClapProcessor,
    SupClapZeroShotAudioClassificationPipeline,
    load_waveform,
)


__version__ = "0.1.0"

for _config, _model in ((CedConfig, CedModel), (SupClapConfig, SupClapModel)):
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _model)
AutoFeatureExtractor.register(SupClapConfig, SupClapFeatureExtractor)
# No configuration asks for this one. A saved folder names its class, which is looked up among all registered ones.
AutoFeatureExtractor.register("supclap_encoder", SupClapEncoderFeatureExtractor)
AutoProcessor.register(SupClapConfig, SupClapProcessor)

_FOR_TRAINING = {
    "SupClapForContrastiveTraining": "supclap.training.model",
    "SupClapLoss": "supclap.losses",
    "SupClapTrainer": "supclap.training.trainer",
    "SupClapTrainingArguments": "supclap.training.arguments",
}


def __getattr__(name: str) -> Any:
    if name in _FOR_TRAINING:
        return getattr(import_module(_FOR_TRAINING[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pipeline(
    model: str | os.PathLike | SupClapModel, processor: SupClapProcessor | None = None, **kwargs: Any
) -> SupClapZeroShotAudioClassificationPipeline:
    """The zero-shot audio classification pipeline with SupCLAP's handling of audio, labels and templates.

    Args:
        model: A checkpoint folder, a Hub id or a model.
        processor: The processor of the model; the one saved where the model was loaded from when omitted.
        kwargs: Passed on to [`transformers.pipeline`].

    Raises:
        ValueError: The model was not loaded from anywhere, and no processor is given.
    """
    if isinstance(model, str | os.PathLike):
        model = os.fspath(model)
    elif processor is None and not {"tokenizer", "feature_extractor"} <= set(kwargs):
        if not model.name_or_path:
            raise ValueError("The model was loaded from no folder that could hold its processor: pass processor=...")
        revision = getattr(model.config, "_commit_hash", None) or "main"
        processor = SupClapProcessor.from_pretrained(model.name_or_path, revision=revision)
    if processor is not None:
        kwargs = {"tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor, **kwargs}
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
    "SupClapEncoderFeatureExtractor",
    "SupClapFeatureExtractor",
    "SupClapForContrastiveTraining",
    "SupClapLoss",
    "SupClapModel",
    "SupClapOutput",
    "SupClapProcessor",
    "SupClapTrainer",
    "SupClapTrainingArguments",
    "SupClapZeroShotAudioClassificationPipeline",
    "load_waveform",
    "pipeline",
]
