"""`supclap card`: the card of a checkpoint."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder of a saved model")
    parser.add_argument("--model-id", help="Hub id that the snippets load; the folder when omitted")
    parser.add_argument("--license", help="license of the weights; refused where the parts forbid it")
    parser.add_argument("--force", action="store_true", help="replace a README.md that is no card of ours")


def run(arguments: argparse.Namespace) -> None:
    from supclap.publishing.model_card import write_card

    print(write_card(arguments.checkpoint, arguments.model_id, arguments.license, arguments.force))
