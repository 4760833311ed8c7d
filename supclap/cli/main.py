"""The `supclap` command: each subcommand is a module of `supclap.cli`, imported only when it is called.

Such a module has `add_arguments(parser)`, which is fast, and `run(arguments) -> int | None`.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from supclap.errors import SupClapError


# name -> what it does in one line; the module is supclap.cli.name
COMMANDS: dict[str, str] = {
    "data": "Check a data set, or write it as shards.",
    "card": "Write the model card of a checkpoint.",
    "push": "Upload a checkpoint to the Hub as one commit.",
    "evaluate": "Score checkpoints on a suite of retrieval and zero-shot tasks.",
    "compare": "Compare two evaluated systems query by query.",
    "export": "Export both towers of a checkpoint as ONNX graphs.",
    "convert": "Convert a published checkpoint (CED, SONAR, ML-CLAP, LAION-CLAP) to a folder.",
    "plot-drift": "Draw the drift of several training runs.",
}


def _module(name: str) -> ModuleType:
    return import_module(f"supclap.cli.{name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand.

    Args:
        argv: The subcommand and its arguments; the process's own when omitted.

    Returns:
        The exit status: 0, 1 after an error that the message on stderr explains, or what the subcommand gives.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="supclap", description="Train, evaluate and use audio-text models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, description in COMMANDS.items():
        command = commands.add_parser(name, help=description, description=description)
        if argv[:1] == [name]:
            _module(name).add_arguments(command)
    arguments = parser.parse_args(argv)
    try:
        return _module(arguments.command).run(arguments) or 0
    except (SupClapError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
