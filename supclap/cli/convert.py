"""`supclap convert` turns a published checkpoint into a folder that this library and the Auto classes open."""

import argparse
from pathlib import Path


# The kinds that supclap.conversion.convert knows. They are repeated here because it takes seconds to import.
KINDS = ("ced", "sonar", "ml-clap", "laion-clap")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, help="what the checkpoint is; ced and sonar are single encoders")
    parser.add_argument("source", type=Path, help="the published file or folder")
    parser.add_argument("out", type=Path, help="folder to write; it must not exist yet")
    parser.add_argument("--tokenizer", help="folder or Hub id of the tokenizer, where the source has none")


def run(arguments: argparse.Namespace) -> None:
    from supclap.conversion.convert import NON_COMMERCIAL, TOKENIZER_FILES, convert

    model = convert(arguments.kind, arguments.source, arguments.out, arguments.tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{arguments.out}: {type(model).__name__} with {parameters:.1f} million parameters.")
    if arguments.kind in NON_COMMERCIAL:
        print("The text encoder's weights are SONAR's, under CC-BY-NC-4.0; so is everything derived from them.")
    if arguments.kind != "ced" and not any((arguments.out / name).is_file() for name in TOKENIZER_FILES):
        print("No tokenizer was written: pass --tokenizer, or save one into the folder before you use texts.")
