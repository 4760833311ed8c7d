"""`supclap export` writes both towers as ONNX graphs."""

import argparse
import logging
from pathlib import Path


# While these libraries export, they log each of their steps, and optional packages that nothing here needs.
TALKATIVE = ("torch.onnx", "onnxscript", "onnx_ir", "onnxruntime")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder or Hub id of the model")
    parser.add_argument("out", type=Path, help="folder to write; it must not exist yet")
    parser.add_argument("--int8", action="store_true", help="8-bit weights of matrix products")
    parser.add_argument("--verbose", action="store_true", help="show the logs of the libraries that export")


def run(arguments: argparse.Namespace) -> None:
    from transformers.utils.logging import disable_progress_bar

    from supclap.export.onnx import export_onnx

    if not arguments.verbose:
        disable_progress_bar()
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.ERROR)
    differences = export_onnx(arguments.checkpoint, arguments.out, arguments.int8)
    sizes = sum(path.stat().st_size for path in arguments.out.iterdir()) / 1e6
    told = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    print(f"{arguments.out}: {sizes:.1f} MB; largest difference from torch: {told}.")
