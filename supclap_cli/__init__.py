"""The `supclap` command, apart from the library: its help needs no library that takes seconds to import.

Each command is a module of `supclap.cli`, imported only when it is called. It has `run`, and either
`add_arguments(parser)`, whose result `run` gets, or not, and `run` gets the words of the command line.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module


# What each command does, in one line.
COMMANDS: dict[str, str] = {
    "train": "Train a model from a recipe, evaluate and save it.",
    "data": "Check a data set, or write it as shards.",
    "card": "Write the model card of a checkpoint.",
    "push": "Upload a checkpoint to the Hub as one commit.",
    "evaluate": "Score checkpoints on a suite of retrieval and zero-shot tasks.",
    "compare": "Compare two evaluated systems query by query.",
    "export": "Export both towers of a checkpoint as ONNX graphs.",
    "convert": "Convert a published checkpoint (CED, SONAR, ML-CLAP, LAION-CLAP) to a folder.",
    "plot-drift": "Draw the drift of several training runs.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: The command and its arguments; the process's own when omitted.

    Returns:
        The exit status: 0, 1 after an error that the message on stderr explains, 130 after Ctrl-C, or what the command
        gives.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="supclap", description="Train, evaluate and use audio-text models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    parsers = {name: commands.add_parser(name, help=text, description=text) for name, text in COMMANDS.items()}
    name = argv[0] if argv else ""
    if name not in COMMANDS:
        parser.parse_args(argv)  # prints the help, or what is wrong, and exits
    module = import_module(f"supclap.cli.{name.replace('-', '_')}")
    arguments: argparse.Namespace | list[str] = argv[1:]
    if hasattr(module, "add_arguments"):
        module.add_arguments(parsers[name])
        arguments = parser.parse_args(argv)
    from supclap.errors import SupClapError, in_one_line

    # An error about what the user gave becomes one line; a mistake in our code keeps its traceback. The packages that
    # travel with checkpoints cannot import SupClapError: their errors are ValueError and OSError.
    try:
        return module.run(arguments) or 0
    except (SupClapError, ValueError, OSError) as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 1
