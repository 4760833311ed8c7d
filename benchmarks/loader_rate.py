"""Clips a second that loading delivers (decode, crop, augment, mel, tokens) against those that training takes.

Loading feeds a model that does nothing; training takes batches that are ready. Both run in this process, so that the
ratio is one of computing time. Exit status 1 if loading is not `--min-ratio` times as fast.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from training_setup import build, clock, noise_rows

from supclap import SupClapForContrastiveTraining, SupClapLoss
from supclap.data import CaptionedClips, ContrastiveCollator, SpectrogramAugment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a clip")
    parser.add_argument("--size", default="ced-base", help="CED size, with --layers of its layers")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--min-ratio", type=float, help="fail if loading is not this many times as fast")
    options = parser.parse_args()

    model, processor = build(options.size, options.layers)
    with tempfile.TemporaryDirectory() as folder:
        rows = noise_rows(Path(folder), options.batches * options.batch_size, options.seconds)
        collator = ContrastiveCollator(processor, SpectrogramAugment(frequency_masks=1, time_masks=1))
        loader = torch.utils.data.DataLoader(
            CaptionedClips(rows, max_duration=options.seconds), options.batch_size, collate_fn=collator
        )
        next(iter(loader))
        start = clock()
        batches = list(loader)
        loading = len(rows) / (clock() - start)

    training = SupClapForContrastiveTraining(model, SupClapLoss(batch_size=options.batch_size)).train()
    optimizer = torch.optim.AdamW(training.parameters(), lr=1e-5, fused=True)
    times = []
    for batch in batches[:2]:
        batch.pop("ids")
        start = clock()
        training(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(clock() - start)
    trained = options.batch_size / times[-1]  # the first one also makes the moments
    print(
        f"loading  {loading:8.1f} clips/s\ntraining {trained:8.1f} clips/s\nloading / training {loading / trained:.1f}"
    )
    return int(options.min_ratio is not None and loading / trained < options.min_ratio)


if __name__ == "__main__":
    raise SystemExit(main())
