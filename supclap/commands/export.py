"""`supclap export`: both towers as ONNX graphs."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder or Hub id of the model")
    parser.add_argument("out", type=Path, help="folder to write; it must not exist yet")
    parser.add_argument("--int8", action="store_true", help="8-bit weights of matrix products")


def run(arguments: argparse.Namespace) -> None:
    from supclap.export import export_onnx

    differences = export_onnx(arguments.checkpoint, arguments.out, arguments.int8)
    sizes = sum(path.stat().st_size for path in arguments.out.iterdir()) / 1e6
    told = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    print(f"{arguments.out}: {sizes:.1f} MB; largest difference from torch: {told}.")
