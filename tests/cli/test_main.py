"""The `supclap` command itself."""

import importlib
import subprocess
import sys

import pytest

import supclap_cli
from supclap.cli import convert as convert_command
from supclap.errors import SettingsError
from supclap_cli import COMMANDS, main


PROGRAM = """
import sys
from supclap_cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
slow = {"torch", "transformers", "numpy", "datasets", "huggingface_hub", "matplotlib", "supclap"}
assert not slow & set(sys.modules), slow & set(sys.modules)
"""


def test_help_names_every_command_and_imports_nothing_that_takes_seconds():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: supclap")
    assert all(f"\n    {name}" in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS if name != "train"), ["data", "check"]], ids=" ".join)
def test_every_command_has_a_help(words, capsys):
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    assert f"usage: supclap {' '.join(words)}" in capsys.readouterr().out


def test_python_m_supclap_is_the_command():
    done = subprocess.run([sys.executable, "-m", "supclap_cli", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: supclap")


def test_an_unknown_command_is_told_with_those_there_are(capsys):
    with pytest.raises(SystemExit) as end:
        main(["trian"])
    assert end.value.code == 2
    assert "invalid choice: 'trian'" in capsys.readouterr().err


def raising(monkeypatch, error: BaseException) -> None:
    """Lets `supclap plot-drift` raise an error."""

    def run(arguments):
        raise error

    monkeypatch.setattr(importlib.import_module("supclap.cli.plot_drift"), "run", run)


@pytest.mark.parametrize("error", [SettingsError("change this"), ValueError("not a sound"), FileNotFoundError("gone")])
def test_an_error_about_what_was_given_is_one_line_and_status_1(monkeypatch, capsys, error):
    raising(monkeypatch, error)
    assert main(["plot-drift", "run"]) == 1
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize("error", [TypeError("ours"), KeyError("ours"), AttributeError("ours")])
def test_a_mistake_in_the_code_keeps_its_traceback(monkeypatch, error):
    raising(monkeypatch, error)
    with pytest.raises(type(error)):
        main(["plot-drift", "run"])


def test_ctrl_c_is_status_130(monkeypatch):
    raising(monkeypatch, KeyboardInterrupt())
    assert main(["plot-drift", "run"]) == 130


def test_train_and_the_script_for_launchers_are_the_same(monkeypatch):
    called = []
    monkeypatch.setattr("supclap.cli.train.run", called.append)
    supclap_cli.main(["train", "x.yaml", "--dry-run"])
    monkeypatch.setattr(sys, "argv", ["train_supclap.py", "x.yaml", "--dry-run"])
    import runpy

    from support.paths import ROOT

    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "train_supclap.py"), run_name="__main__")
    assert end.value.code == 0
    assert called == [["x.yaml", "--dry-run"]] * 2


def test_convert_offers_what_the_conversion_knows():
    from supclap.conversion.convert import KINDS

    assert tuple(KINDS) == convert_command.KINDS
