"""SupCLAP: train, fine-tune, evaluate and use audio-text contrastive models with support vector regularisation.

Importing it registers the model with the Auto classes of Transformers. All classes load when first used: Transformers'
own base classes of models and processors pull in torchaudio and soundfile.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any


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


class _LazyClass:
    """Stands for a class in the Auto classes' mappings until one of its attributes is asked for."""

    def __init__(self, name: str):
        self.__name__ = name
        self.__module__ = _LAZY[name]

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(import_module(self.__module__), self.__name__), attribute)

    def __call__(self, *args, **kwargs) -> Any:
        return getattr(import_module(self.__module__), self.__name__)(*args, **kwargs)


# A mapping is told of our classes when its module is loaded: some of them load the audio libraries, all of them seconds
# of Transformers, which `supclap --help` has no use for.
_AUTO = "transformers.models.auto"
_CONFIGURATION = "modeling_supclap.configuration_supclap"


def _register_configs(module: Any, ours: Any) -> None:
    for config in (ours.CedConfig, ours.SupClapConfig):
        module.AutoConfig.register(config.model_type, config)


def _register_models(module: Any, ours: Any) -> None:
    module.MODEL_MAPPING.register(ours.CedConfig, _LazyClass("CedModel"))
    module.MODEL_MAPPING.register(ours.SupClapConfig, _LazyClass("SupClapModel"))


def _register_feature_extractors(module: Any, ours: Any) -> None:
    module.FEATURE_EXTRACTOR_MAPPING.register(ours.SupClapConfig, _LazyClass("SupClapFeatureExtractor"))
    # a saved file names its class, which is looked up among all that are registered
    module.FEATURE_EXTRACTOR_MAPPING.register("supclap_encoder", _LazyClass("SupClapEncoderFeatureExtractor"))


def _register_processor(module: Any, ours: Any) -> None:
    module.PROCESSOR_MAPPING.register(ours.SupClapConfig, _LazyClass("SupClapProcessor"))


_PENDING = {
    f"{_AUTO}.configuration_auto": _register_configs,
    f"{_AUTO}.modeling_auto": _register_models,
    f"{_AUTO}.feature_extraction_auto": _register_feature_extractors,
    f"{_AUTO}.processing_auto": _register_processor,
}
_loaded: list[str] = []  # of those, in the order in which their code ended


def _register_loaded() -> None:
    """Registers with the modules that have been loaded. Our configurations import one of them themselves; when they are
    not whole yet, this is called again after them."""
    if _loaded and hasattr(import_module(_CONFIGURATION), "SupClapConfig"):
        for name in _loaded[:]:
            if name in _PENDING:
                _PENDING.pop(name)(sys.modules[name], sys.modules[_CONFIGURATION])


class _RegisterOnImport:
    """A finder that finds nothing itself, but registers right after a module was loaded that this needs."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        if name not in (*_PENDING, _CONFIGURATION) or name in _finding:
            return None
        _finding.add(name)
        spec = find_spec(name)
        _finding.discard(name)
        execute = spec.loader.exec_module

        def execute_and_register(module: Any) -> None:
            execute(module)
            _loaded.append(name)
            _register_loaded()

        spec.loader.exec_module = execute_and_register
        return spec


_finding: set[str] = set()  # this finder asks the others, and is asked itself
_loaded += [name for name in _PENDING if name in sys.modules]
_register_loaded()
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


__all__ = ["pipeline", *_LAZY]
