"""The `supclap` command itself."""

import subprocess
import sys

import pytest

from supclap.cli import convert as convert_command
from supclap.cli.main import COMMANDS


PROGRAM = """
import sys
from supclap.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0
slow = {"torch", "transformers", "numpy", "datasets", "huggingface_hub", "matplotlib"}
assert not slow & set(sys.modules), slow & set(sys.modules)
"""


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), ["data", "check"]], ids=" ".join)
def test_help_imports_nothing_that_takes_seconds(command):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: supclap" in done.stdout


def test_convert_offers_what_the_conversion_knows():
    from supclap.conversion.convert import KINDS

    assert tuple(KINDS) == convert_command.KINDS
