"""SupCLAP: train, fine-tune, evaluate and use audio-text contrastive models with support vector regularisation.

Importing it registers the model with the Auto classes of Transformers. All classes load when first used: Transformers'
own base classes of models and processors pull in torchaudio and soundfile.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from transformers import MODEL_MAPPING, AutoConfig

from modeling_supclap.configuration_supclap import CedConfig, SupClapConfig


if TYPE_CHECKING:
    from processing_supclap import SupClapZeroShotAudioClassificationPipeline

__version__ = "0.1.0"

_LAZY = {
    "CedModel": "modeling_supclap",
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


class _LazyClass:
    """Stands for a class in the Auto classes' mappings until one of its attributes is asked for."""

    def __init__(self, name: str):
        self.__name__ = name
        self.__module__ = _LAZY[name]

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(import_module(self.__module__), self.__name__), attribute)

    def __call__(self, *args, **kwargs) -> Any:
        return getattr(import_module(self.__module__), self.__name__)(*args, **kwargs)


AutoConfig.register(CedConfig.model_type, CedConfig)
AutoConfig.register(SupClapConfig.model_type, SupClapConfig)
MODEL_MAPPING.register(CedConfig, _LazyClass("CedModel"))
MODEL_MAPPING.register(SupClapConfig, _LazyClass("SupClapModel"))

# The modules of these two mappings load the audio libraries, so they are told when something else imports them.
_PENDING = {
    "transformers.models.auto.feature_extraction_auto": ("FEATURE_EXTRACTOR_MAPPING", "SupClapFeatureExtractor"),
    "transformers.models.auto.processing_auto": ("PROCESSOR_MAPPING", "SupClapProcessor"),
}


def _register(module: Any, mapping: str, name: str) -> None:
    getattr(module, mapping).register(SupClapConfig, _LazyClass(name))
    if name == "SupClapFeatureExtractor":
        # a saved file names its class, which is looked up among all that are registered
        getattr(module, mapping).register("supclap_encoder", _LazyClass("SupClapEncoderFeatureExtractor"))


class _RegisterOnImport:
    """A finder that finds nothing itself, but registers with a pending module right after it was imported."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        if name not in _PENDING:
            return None
        pending = _PENDING.pop(name)
        spec = find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_register(module: Any) -> None:
            execute(module)
            _register(module, *pending)

        spec.loader.exec_module = execute_and_register
        return spec


for _name in list(_PENDING):
    if _name in sys.modules:
        _register(sys.modules[_name], *_PENDING.pop(_name))
sys.meta_path.insert(0, _RegisterOnImport)


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


__all__ = ["CedConfig", "SupClapConfig", "pipeline", *_LAZY]
