"""`supclap plot-drift` draws the drift of several runs into one picture."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run trained with drift: true")
    parser.add_argument("--output", type=Path, default=Path("drift.png"), help="the picture to write")


def run(arguments: argparse.Namespace) -> None:
    from supclap.plots import plot_drift
    from supclap.training.callbacks.drift import measurements

    plot_drift({folder: measurements(folder) for folder in arguments.runs}, arguments.output)
    print(arguments.output)
