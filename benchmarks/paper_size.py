"""Starts a recipe of the paper at its true size (CED-Base and SONAR, random weights) and takes steps without writing.

`python benchmarks/paper_size.py [--steps 1] [--key value …]`; the overrides go to the recipe. On CPU, one step of 4 pairs
with `--optim sgd` needs about 8 GB of memory, with Adam about 15 GB.
"""

import argparse
import tempfile
from pathlib import Path

from training_setup import TEXT_MODEL, noise_rows
from transformers import AutoTokenizer, M2M100Config
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

from supclap.cli.train import train


SONAR = {
    "vocab_size": 256_206,
    "d_model": 1024,
    "encoder_layers": 24,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 8192,
    "encoder_layerdrop": 0.0,
    "max_position_embeddings": 1024,
    "scale_embedding": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="configs/paper/audiocaps_infonce_bi_dynamic.yaml")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a clip")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        M2M100Encoder(M2M100Config(**SONAR)).save_pretrained(root / "text")
        AutoTokenizer.from_pretrained(TEXT_MODEL).save_pretrained(
            root / "text"
        )  # any: its tokens are in SONAR's range
        splits = ("train", "val", "test")
        rows = noise_rows(root, len(splits) * options.pairs, options.seconds)
        for number, split in enumerate(splits):  # a clip in two splits would be dropped from training
            part = rows[number :: len(splits)]
            table = ["file_name,caption", *(f'{Path(row["audio"]).name},"{row["captions"][0]}"' for row in part)]
            (root / f"{split}.csv").write_text("\n".join(table))
        towers = [
            "--text_model",
            str(root / "text"),
            "--audio_model",
            "random:ced-base",
            "--input_statistics_batches",
            "1",
        ]
        steps = ["--max_steps", str(options.steps), "--per_device_train_batch_size", str(options.pairs)]
        train([options.recipe, "--dry-run", "--data_dir", folder, *towers, *steps, *overrides])


if __name__ == "__main__":
    main()
