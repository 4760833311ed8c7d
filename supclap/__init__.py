"""SupCLAP: train, fine-tune, evaluate and use audio-text contrastive models with support vector regularisation.

Importing it registers the model with the Auto classes of Transformers. All classes load when first used: Transformers'
own base classes of models and processors pull in torchaudio and soundfile.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from supclap.registration import register_when_loaded


if TYPE_CHECKING:
    from processing_supclap import SupClapZeroShotAudioClassificationPipeline

__version__ = "0.1.0"

_LAZY = {
    "CedConfig": "modeling_supclap.configuration_supclap",
    "CedModel": "modeling_supclap",
    "SupClapConfig": "modeling_supclap.configuration_supclap",
    "SupClapEncoderFeatureExtractor": "processing_supclap",
    "SupClapFeatureExtractor": "processing_supclap",
    "SupClapForContrastiveTraining": "supclap.training_model",
    "SupClapLoss": "supclap.losses",
    "SupClapModel": "modeling_supclap",
    "SupClapOutput": "modeling_supclap",
    "SupClapProcessor": "processing_supclap",
    "SupClapTrainer": "supclap.trainer",
    "SupClapTrainingArguments": "supclap.training_args",
    "SupClapZeroShotAudioClassificationPipeline": "processing_supclap",
    "load_waveform": "processing_supclap",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_when_loaded()


def pipeline(model, **kwargs) -> "SupClapZeroShotAudioClassificationPipeline":
    """The zero-shot audio classification pipeline with SupCLAP's handling of audio, labels and templates.

    Args:
        model: A checkpoint folder, a Hub id or a model.
        kwargs: Passed on to [`transformers.pipeline`].
    """
    import transformers

    from processing_supclap import SupClapZeroShotAudioClassificationPipeline

    return transformers.pipeline(
        "zero-shot-audio-classification",
        model=model,
        pipeline_class=SupClapZeroShotAudioClassificationPipeline,
        **kwargs,
    )


__all__ = ["pipeline", *_LAZY]
