"""One process of the test of gradient caching under DDP: the first step of a training run, in float64."""

from pathlib import Path

import torch

from support import parallel_worker, processes


PAIRS = 8
CASES = {
    f"{objective}-{size}": {"objective": objective, "grad_cache_chunk_size": size, "loss_chunk_size": size}
    for objective in ("infonce", "siglip")
    for size in (None, 3)  # does not divide the pairs of a rank
}


def steps(folder: str, model: str) -> None:
    """Writes loss and gradients of each case to `folder`."""
    rank, world = processes.place()
    torch.save({name: step(world, model, folder, options) for name, options in CASES.items()}, f"{folder}/{rank}.pt")


def step(world: int, model: str, folder: str, options: dict) -> dict:
    """The loss of the first step on this rank, and all gradients as the optimizer gets them."""
    from transformers import TrainerCallback

    from supclap import SupClapModel, SupClapProcessor, SupClapTrainer, SupClapTrainingArguments
    from supclap.data import CaptionedClips, ContrastiveCollator

    rows = parallel_worker.rows(PAIRS, 0)
    rows[5]["group"] = rows[2]["group"] = "the same clip"  # on two ranks
    for row in rows:
        row["captions"] = row["captions"][:1]
    clap = SupClapModel.from_pretrained(model)
    if options["objective"] == "siglip":
        clap.logit_bias = torch.nn.Parameter(torch.tensor([-5.0]))
    processor = SupClapProcessor.from_pretrained(model)
    collator = ContrastiveCollator(processor)

    def collate(samples: list[dict]) -> dict:
        batch = collator(samples)
        return batch | {"input_features": batch["input_features"].double()}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs):
            kept["gradients"] = {name: p.grad.clone() for name, p in trainer.model.named_parameters()}

    kept: dict = {}
    torch.manual_seed(0)  # the radius predictor starts at random
    args = SupClapTrainingArguments(
        str(Path(folder) / "run"),
        per_device_train_batch_size=PAIRS // world,
        max_steps=1,
        max_grad_norm=0,
        save_strategy="no",
        train_sampling_strategy="sequential",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    trainer = SupClapTrainer(
        clap,
        args,
        processing_class=processor,
        data_collator=collate,
        train_dataset=CaptionedClips(rows),
        callbacks=[Keep()],
    )
    trainer.model.double()
    trainer.model.register_forward_hook(lambda *call: kept.update(loss=call[2]["loss"].detach()))
    trainer.train()
    wrapped = type(trainer.model_wrapped).__name__
    return kept | {"wrapped": wrapped}
