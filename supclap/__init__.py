"""SupCLAP: train, fine-tune, evaluate and use audio-text contrastive models with support vector regularisation.

Importing it registers the model with the Auto classes of Transformers. All classes load when first used: Transformers'
own base classes of models and processors pull in torchaudio and soundfile.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from supclap.registration import register_when_loaded


if TYPE_CHECKING:
    from modeling_supclap import SupClapModel
    from processing_supclap import SupClapProcessor, SupClapZeroShotAudioClassificationPipeline

__version__ = "0.1.0"

_LAZY = {
    "CedConfig": "modeling_supclap.configuration_supclap",
    "CedModel": "modeling_supclap",
    "SupClapConfig": "modeling_supclap.configuration_supclap",
    "SupClapEncoderFeatureExtractor": "processing_supclap",
    "SupClapFeatureExtractor": "processing_supclap",
    "SupClapForContrastiveTraining": "supclap.training.model",
    "SupClapLoss": "supclap.losses",
    "SupClapModel": "modeling_supclap",
    "SupClapOutput": "modeling_supclap",
    "SupClapProcessor": "processing_supclap",
    "SupClapTrainer": "supclap.training.trainer",
    "SupClapTrainingArguments": "supclap.training.arguments",
    "SupClapZeroShotAudioClassificationPipeline": "processing_supclap",
    "load_waveform": "processing_supclap",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_when_loaded()


def pipeline(
    model: "str | os.PathLike | SupClapModel", processor: "SupClapProcessor | None" = None, **kwargs
) -> "SupClapZeroShotAudioClassificationPipeline":
    """The zero-shot audio classification pipeline with SupCLAP's handling of audio, labels and templates.

    Args:
        model: A checkpoint folder, a Hub id or a model.
        processor: The processor of the model; the one saved where the model was loaded from when omitted.
        kwargs: Passed on to [`transformers.pipeline`].

    Raises:
        ValueError: The model was not loaded from anywhere, and no processor is given.
    """
    import transformers

    from processing_supclap import SupClapProcessor, SupClapZeroShotAudioClassificationPipeline

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


__all__ = ["pipeline", *_LAZY]
