"""Tells the Auto classes of Transformers of our classes, at the moment when Transformers' mappings are loaded.

Some of our classes load the audio libraries, all of them seconds of Transformers, which `import supclap` and
`supclap --help` have no use for: so a mapping is told of them right after its module was loaded, and gets stand-ins that load
a class when it is used.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any


_AUTO = "transformers.models.auto"
_CONFIGURATION = "modeling_supclap.configuration_supclap"


class _LazyClass:
    """Stands for a class in the Auto classes' mappings until one of its attributes is asked for."""

    def __init__(self, name: str, module: str):
        self.__name__ = name
        self.__module__ = module

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(import_module(self.__module__), self.__name__), attribute)

    def __call__(self, *args, **kwargs) -> Any:
        return getattr(import_module(self.__module__), self.__name__)(*args, **kwargs)


def _register_configs(module: Any, ours: Any) -> None:
    for config in (ours.CedConfig, ours.SupClapConfig):
        module.AutoConfig.register(config.model_type, config)


def _register_models(module: Any, ours: Any) -> None:
    module.MODEL_MAPPING.register(ours.CedConfig, _LazyClass("CedModel", "modeling_supclap"))
    module.MODEL_MAPPING.register(ours.SupClapConfig, _LazyClass("SupClapModel", "modeling_supclap"))


def _register_feature_extractors(module: Any, ours: Any) -> None:
    extractor, of_encoders = (
        _LazyClass(name, "processing_supclap")
        for name in ("SupClapFeatureExtractor", "SupClapEncoderFeatureExtractor")
    )
    module.FEATURE_EXTRACTOR_MAPPING.register(ours.SupClapConfig, extractor)
    # a saved file names its class, which is looked up among all that are registered
    module.FEATURE_EXTRACTOR_MAPPING.register("supclap_encoder", of_encoders)


def _register_processor(module: Any, ours: Any) -> None:
    module.PROCESSOR_MAPPING.register(ours.SupClapConfig, _LazyClass("SupClapProcessor", "processing_supclap"))


_PENDING = {
    f"{_AUTO}.configuration_auto": _register_configs,
    f"{_AUTO}.modeling_auto": _register_models,
    f"{_AUTO}.feature_extraction_auto": _register_feature_extractors,
    f"{_AUTO}.processing_auto": _register_processor,
}
_loaded: list[str] = []  # of those, in the order in which their code ended
_finding: set[str] = set()  # the finder below asks the others, and is asked itself


def register_when_loaded() -> None:
    """Registers with the mappings that are loaded, and from now on with each that will be."""
    _loaded.extend(name for name in _PENDING if name in sys.modules)
    _register_loaded()
    sys.meta_path.insert(0, _RegisterOnImport)


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
