"""The directions of imports that docs/architecture.md draws."""

import ast
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parent.parent
BASE = ("errors", "files", "plots")
MAY_IMPORT = {
    "losses": BASE,
    "data": BASE,
    "export": BASE,
    "evaluation": (*BASE, "data", "export"),
    "publishing": (*BASE, "data.manifest", "evaluation"),
    "conversion": (*BASE, "publishing"),
    "recipes": (*BASE, "data", "losses", "training.arguments", "training.towers"),
    "training": (*BASE, "data", "losses", "evaluation", "publishing", "recipes"),
}


def imports(path: Path) -> list[str]:
    """What a file imports of supclap, also inside functions: `data.rows`, `errors`."""
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    modules = [node.module for node in nodes if node.level == 0]
    return [module.removeprefix("supclap.") for module in modules if module.startswith("supclap.")]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_what_lies_before_it(folder):
    for path in (ROOT / "supclap" / folder).rglob("*.py"):
        strangers = [name for name in imports(path) if not name.startswith((folder, *MAY_IMPORT[folder]))]
        assert not strangers, f"{path} imports {strangers}"


def test_of_training_only_the_run_knows_recipes():
    paths = (ROOT / "supclap" / "training").rglob("*.py")
    assert [path.name for path in paths if any(name.startswith("recipes") for name in imports(path))] == ["run.py"]


def test_no_other_module_lies_loose_in_the_package():
    assert {path.stem for path in (ROOT / "supclap").glob("*.py")} <= {*BASE, "__init__"}
