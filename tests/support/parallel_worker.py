"""One process of a training run on several."""

import json
from pathlib import Path

import numpy as np

from support import processes


STEPS = 20
PAIRS = 8
CLIPS = 22  # do not fill the last step
EVALUATED = 7  # do not fill the last batch of two ranks


def rows(count: int, seed: int) -> list[dict]:
    """Noises of different lengths with one to three captions."""
    rng = np.random.default_rng(seed)
    words = ["rain", "wind", "sea", "fire", "birds", "dogs", "bells", "drums", "voices", "engines"]
    return [
        {
            "id": f"{seed}-{number}",
            "audio": {
                "array": (0.1 * rng.standard_normal(rng.integers(5000, 9000))).astype(np.float32),
                "sampling_rate": 16000,
            },
            "captions": [f"{rng.choice(words)} and {rng.choice(words)} {k}" for k in range(1 + number % 3)],
            "duration": float(number),
        }
        for number in range(count)
    ]


def _shard_on_cpu() -> None:
    """Accelerate leaves FSDP out on CPU although torch has it: call the processes something else until it has asked."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    original = PartialState.__init__

    def patched(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = patched


def train(mode: str, folder: str, model: str, resume: str | None) -> None:
    """Trains and evaluates the model saved in `model`; rank 0 writes `folder/log.json`."""
    rank, world = processes.place()
    from supclap import SupClapModel, SupClapProcessor, SupClapTrainer, SupClapTrainingArguments
    from supclap.data import CaptionedClips

    if mode == "fsdp2":
        _shard_on_cpu()
        fsdp = {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "state_dict_type": "FULL_STATE_DICT",
            },
        }
    args = SupClapTrainingArguments(
        folder,
        per_device_train_batch_size=PAIRS // world,
        per_device_eval_batch_size=2,
        max_steps=STEPS,
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=9,  # within an epoch of two steps
        disable_tqdm=True,
        use_cpu=True,
        train_sampling_strategy="group_by_length",
        seed=1,
        **(fsdp if mode == "fsdp2" else {}),
    )
    trainer = SupClapTrainer(
        SupClapModel.from_pretrained(model),
        args,
        processing_class=SupClapProcessor.from_pretrained(model),
        train_dataset=CaptionedClips(rows(CLIPS, 0)),
        eval_dataset=rows(EVALUATED, 1),
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    if trainer.is_world_process_zero():
        kind = type(next(trainer.model.parameters())).__name__
        log = {"history": trainer.state.log_history, "parameter": kind, "world": trainer.args.world_size}
        (Path(folder) / "log.json").write_text(json.dumps(log))
