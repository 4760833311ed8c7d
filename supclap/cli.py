"""The `supclap` command: each subcommand is one module that is imported only when it is called.

A module of a subcommand has `add_arguments(parser)` and `run(arguments) -> int | None`.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module


# name -> (module, what it does in one line)
COMMANDS: dict[str, tuple[str, str]] = {
    "data": ("supclap.data.command", "Check a data set, or write it as shards."),
    "card": ("supclap.model_card", "Write the model card of a checkpoint."),
    "push": ("supclap.hub", "Upload a checkpoint to the Hub as one commit."),
    "evaluate": (
        "supclap.evaluation.evaluate_command",
        "Score checkpoints on a suite of retrieval and zero-shot tasks.",
    ),
    "compare": ("supclap.evaluation.compare_command", "Compare two evaluated systems query by query."),
    "export": ("supclap.export", "Export both towers of a checkpoint as ONNX graphs."),
    "convert": (
        "supclap.conversion.convert",
        "Convert a published checkpoint (CED, SONAR, ML-CLAP, LAION-CLAP) to a folder.",
    ),
    "plot-drift": ("supclap.drift_plot", "Draw the drift of several training runs."),
}


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
    for name, (module, description) in COMMANDS.items():
        command = commands.add_parser(name, help=description, description=description)
        if argv[:1] == [name]:
            import_module(module).add_arguments(command)
    arguments = parser.parse_args(argv)
    try:
        return import_module(COMMANDS[arguments.command][0]).run(arguments) or 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
