"""`supclap train`: a model from a recipe. It reads its own words, as the keys of a recipe are options too."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from supclap.training.callbacks.preemption import PreemptionCallback


if TYPE_CHECKING:
    from supclap.losses import SupClapLoss
    from supclap.training.arguments import SupClapTrainingArguments

FLAGS = ("--dry-run", "--resume-with-changes")


def run(argv: list[str]) -> None:
    train(argv)


def train(argv: list[str], criterion: "Callable[[SupClapTrainingArguments], SupClapLoss] | None" = None) -> dict:
    """Trains, evaluates and saves a model.

    Args:
        argv: The recipe and its overrides. With `--dry-run` among them, the plan of the run is printed and nothing is
            written; with `--resume-with-changes` a run goes on with other learning rates, weight decay, clipping or
            precision; with `-h` or `--help`, the usage is printed.
        criterion: Makes an objective of your own from the training arguments.

    Returns:
        The results that are also written to `results.json`; nothing after a dry run or the help.
    """
    if hasattr(sys.stdout, "reconfigure"):  # the output of a notebook has another type
        # Into a log file, Python would write whole blocks, long after what they tell, and errors before them.
        sys.stdout.reconfigure(line_buffering=True)
    if {"-h", "--help"} & set(argv):
        from supclap.recipes.help import USAGE, all_keys

        print(USAGE if "-h" in argv else USAGE + "\n" + all_keys())
        return {}
    # From here on a signal to end is noticed. The imports below take seconds, so they come after.
    with PreemptionCallback() as preemption:
        from supclap.recipes.parser import parse_recipe
        from supclap.training.run import train_recipe

        dashed = [word.replace("_", "-") for word in argv]  # `--dry_run` is written as often
        dry_run, accept_changes = (flag in dashed for flag in FLAGS)
        recipe = parse_recipe([word for word, name in zip(argv, dashed) if name not in FLAGS])
        return train_recipe(*recipe, preemption, dry_run, accept_changes, criterion)
