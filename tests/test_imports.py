"""Importing supclap stays light."""

import ast
import subprocess
import sys

from support.paths import ROOT


HEAVY = ("torchaudio", "datasets", "matplotlib", "soundfile", "faiss", "gradio", "sklearn", "accelerate")
PROGRAM = """
import sys
import transformers.modeling_utils
before = set(sys.modules)
import supclap
print(sorted(set(name.split(".")[0] for name in set(sys.modules) - before) & set({heavy!r})))
"""


def test_import_adds_no_heavy_package_to_what_transformers_loads():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=HEAVY)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_packages_import_in_one_direction_only():
    # the model and the processing code travel with checkpoints and must not need the rest
    program = "import sys, {package}; print([m for m in sys.modules if m.split('.')[0] in {others!r}])"
    for package, others in (
        ("modeling_supclap", ("supclap", "processing_supclap")),
        ("processing_supclap", ("supclap", "modeling_supclap")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.format(package=package, others=others)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == "[]"


def test_no_test_module_imports_another():
    files = list((ROOT / "tests").rglob("*.py"))
    modules = {file.stem for file in files if file.stem.startswith("test_")} | {"conftest"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                imported = modules.intersection(".".join(names).split("."))
                assert not imported, f"{file}, line {node.lineno}: move what is shared to tests/support"
