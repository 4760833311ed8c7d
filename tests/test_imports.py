"""What importing supclap loads and registers."""

import ast
import subprocess
import sys

import pytest

from support.paths import ROOT


HEAVY = ("datasets", "matplotlib", "faiss", "gradio", "sklearn", "pandas", "sentence_transformers")
PROGRAM = """
import sys
from transformers import AutoFeatureExtractor, AutoModel, AutoProcessor, Pipeline, PreTrainedModel, ProcessorMixin
before = set(sys.modules)
import supclap
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} & set(%r)))
"""


def output_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_import_adds_no_heavy_package_to_what_its_base_classes_in_transformers_load():
    assert output_of(PROGRAM % (HEAVY,)) == "[]"


@pytest.mark.parametrize("first", ["transformers.models.auto.modeling_auto", "supclap"])
def test_the_auto_classes_know_our_classes_whichever_is_imported_first(first):
    program = f"""
import {first}, supclap
from transformers import AutoConfig, AutoModel, FEATURE_EXTRACTOR_MAPPING, PROCESSOR_MAPPING
config = AutoConfig.for_model("supclap")
assert type(AutoModel.from_config(config)) is supclap.SupClapModel
assert type(AutoModel.from_config(AutoConfig.for_model("supclap_ced", num_hidden_layers=1))) is supclap.CedModel
print(FEATURE_EXTRACTOR_MAPPING[type(config)].__name__, PROCESSOR_MAPPING[type(config)].__name__)
"""
    assert output_of(program) == "SupClapFeatureExtractor SupClapProcessor"


def test_every_public_name_is_there():
    import supclap

    assert all(getattr(supclap, name) is not None for name in supclap.__all__)


def test_packages_import_in_one_direction_only():
    # the model and the processing code travel with checkpoints and must not need the rest
    program = "import sys, {package}; print([m for m in sys.modules if m.split('.')[0] in {others!r}])"
    for package, others in (
        ("modeling_supclap", ("supclap", "processing_supclap")),
        ("processing_supclap", ("supclap", "modeling_supclap")),
    ):
        assert output_of(program.format(package=package, others=others)) == "[]"


def test_no_test_module_imports_another():
    files = list((ROOT / "tests").rglob("*.py"))
    modules = {file.stem for file in files if file.stem.startswith("test_")} | {"conftest"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                imported = modules.intersection(".".join(names).split("."))
                assert not imported, f"{file}, line {node.lineno}: move what is shared to tests/support"
