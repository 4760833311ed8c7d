"""Time of a step of SupClapTrainer against a hand-written loop of the same model on the same batches.

The two take turns, step by step, in one run, and the medians are compared. The loop computes the loss, its gradient, the
clipped step of the optimizer and the learning rate; the Trainer also guards against NaN, counts, logs and listens for
signals. Exit status 1 if the ratio is above `--max-ratio`.
"""

import argparse
import copy
import statistics
import tempfile

import torch
from training_setup import build, clock
from transformers import TrainerCallback

from supclap import SupClapTrainer, SupClapTrainingArguments


class Alternate(TrainerCallback):
    """Takes a step of the other loop after each of the Trainer's."""

    def __init__(self, other):
        self.other = other
        self.times: dict[str, list[float]] = {"trainer": [], "loop": []}
        self.mark: float | None = None

    def on_step_end(self, args, state, control, **kwargs):
        if self.mark is not None:
            self.times["trainer"].append(clock() - self.mark)
            start = clock()
            self.other()
            self.times["loop"].append(clock() - start)
        self.mark = clock()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a clip")
    parser.add_argument("--max-ratio", type=float, help="fail above this ratio")
    options = parser.parse_args()

    model, processor = build()
    waves = list(0.1 * torch.randn(options.batch_size, int(16000 * options.seconds)).numpy())
    texts = [f"noise number {number}" for number in range(options.batch_size)]
    batch = dict(processor(audio=waves, text=texts, sampling_rate=16000))
    batch["clip_ids"] = torch.arange(options.batch_size)

    with tempfile.TemporaryDirectory() as folder:
        args = SupClapTrainingArguments(
            folder,
            per_device_train_batch_size=options.batch_size,
            max_steps=options.steps + 1,
            save_strategy="no",
            disable_tqdm=True,
        )
        data = list(range(options.batch_size * (options.steps + 1)))
        collator = lambda items: dict(batch)  # noqa: E731
        trainer = SupClapTrainer(model, args, processor, collator, train_dataset=data)
        twin = copy.deepcopy(trainer.model).to(args.device).train()
        optimizer = torch.optim.AdamW(twin.parameters(), lr=args.learning_rate, fused=True)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, options.steps)
        batches = iter(torch.utils.data.DataLoader(data, options.batch_size, shuffle=True, collate_fn=collator))

        def loop() -> None:
            inputs = {name: value.to(args.device) for name, value in next(batches).items()}
            loss = twin(**inputs)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            loss.item()

        turns = Alternate(loop)
        trainer.add_callback(turns)
        trainer.train()
    medians = {name: statistics.median(times) for name, times in turns.times.items()}
    ratio = medians["trainer"] / medians["loop"]
    for name, value in medians.items():
        print(f"{name:8} {value * 1000:8.1f} ms a step")
    print(f"trainer / loop {ratio:.3f}")
    return int(options.max_ratio is not None and ratio > options.max_ratio)


if __name__ == "__main__":
    raise SystemExit(main())
