"""Time of a training step with the frozen text tower cached (`cache_frozen_text`) against running it in each step."""

import argparse
import statistics

import torch
from training_setup import build, clock

from supclap import SupClapForContrastiveTraining, SupClapLoss
from supclap.training.text_cache import FrozenTextCache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a clip")
    options = parser.parse_args()

    model, processor = build()
    model.text_model.requires_grad_(False)
    texts = [f"a recording of noise with the number {number}, in a quiet room" for number in range(options.batch_size)]
    waves = list(0.1 * torch.randn(options.batch_size, int(16000 * options.seconds)).numpy())
    batch = dict(processor(audio=waves, text=texts, sampling_rate=16000))
    training = SupClapForContrastiveTraining(model, SupClapLoss(batch_size=options.batch_size)).train()
    optimizer = torch.optim.AdamW([p for p in training.parameters() if p.requires_grad], lr=1e-5, fused=True)
    cache = FrozenTextCache(model)
    cache.fill(processor, texts)
    times: dict[str, list[float]] = {"each step": [], "cached": []}
    for _ in range(options.steps + 1):
        for name, used in (("each step", None), ("cached", cache)):
            training.text_cache = used
            start = clock()
            training(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            times[name].append(clock() - start)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:10} {value * 1000:8.1f} ms a step")
    print(f"each step / cached {medians['each step'] / medians['cached']:.2f}")


if __name__ == "__main__":
    main()
