"""Trains a model from a recipe: `accelerate launch train_supclap.py RECIPE.yaml [--key value ...]`.

This is `supclap train` as a file, which launchers such as `accelerate launch` and `torchrun` start. `-h` tells how a recipe is
written. Run again after a kill, the same command goes on from the last checkpoint; asked to end (SIGTERM, Ctrl-C), it
writes one and exits with status 75.
"""

import sys

from supclap_cli import main


if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
