"""Arguments of training: the Trainer's own and those of the objective."""

from dataclasses import dataclass, field, fields

import torch
from transformers import TrainingArguments

from supclap.losses import PaperReadings
from supclap.recipes.validation import check_value


def computes_in_bfloat16(use_cpu: bool) -> bool:
    """Whether the processor that training will use has instructions for products in bfloat16."""
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported()
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


@dataclass
class SupClapTrainingArguments(TrainingArguments):
    """[`transformers.TrainingArguments`] with the objective of SupCLAP and defaults that suit contrastive training.

    The number of negatives is the number of pairs of one step on all ranks; gradient accumulation adds none.
    """

    objective: str = field(default="infonce", metadata={"help": "Base loss: infonce or siglip."})
    svr: str | None = field(
        default="dynamic", metadata={"help": "Radius of the support vectors: dynamic, static, null."}
    )
    svr_direction: str = field(default="bi", metadata={"help": "bi contrasts both ways, uni text to audio only."})
    svr_weight: float = field(default=1.0, metadata={"help": "Weight of L_svr, the paper's alpha."})
    constraint_weight: float = field(
        default=0.01, metadata={"help": "Weight of L_cons (dynamic radius only), the paper's beta."}
    )
    radius_init: float = field(
        default=0.1, metadata={"help": "Initial radius, in units of the unit-length embeddings."}
    )
    radius_predictor: str = field(
        default="similarities",
        metadata={"help": "Dynamic radius: similarities (the paper's, fixed batch size) or summary (any batch size)."},
    )
    clamp_radius: bool = field(
        default=False, metadata={"help": "Use min(R, distance of the pair), so that the push is never reversed."}
    )
    on_batch_mismatch: str = field(
        default="error",
        metadata={"help": "What radius_predictor similarities does with another number of pairs: error or pad."},
    )
    readings: dict | None = field(
        default=None,
        metadata={"help": "Fields of supclap.losses.PaperReadings: what to read into the paper where it is open."},
    )
    svr_warmup: float = field(
        default=0.0, metadata={"help": "Share of the steps in which the weight of L_svr rises linearly from 0."}
    )
    constraint_warmup: float = field(
        default=0.0, metadata={"help": "Share of the steps in which the weight of L_cons rises linearly from 0."}
    )
    positives: str = field(
        default="clip",
        metadata={"help": "Pairs that are no negatives of each other: of the same clip, or of the same label too."},
    )
    loss_chunk_size: int | None = field(
        default=None, metadata={"help": "Rows of the loss at a time, for memory linear in the batch; all when null."}
    )
    grad_cache_chunk_size: int | None = field(
        default=None,
        metadata={"help": "Embed so many pairs at a time, so that a batch of thousands fits; all when null."},
    )
    drift: bool = field(default=False, metadata={"help": "Measure the drift: to the trackers and to drift.jsonl."})
    drift_steps: int = field(default=100, metadata={"help": "Measure it every so many steps."})
    drift_probe_size: int = field(default=64, metadata={"help": "Held pairs whose realised steps are measured."})
    radius_learning_rate: float | None = field(
        default=None, metadata={"help": "Learning rate of the radius; that of the model when null."}
    )
    text_learning_rate: float | None = field(
        default=None, metadata={"help": "Learning rate of the text encoder; that of the model when null."}
    )
    muon_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Train weight matrices outside of the text encoder with Muon at this rate; AdamW when null."
        },
    )
    layer_decay: float | None = field(
        default=None,
        metadata={"help": "Each layer of both encoders learns at this share of the rate of the layer above it."},
    )
    freeze_temperature: bool = field(default=False, metadata={"help": "Keep the temperature at its initial value."})
    ema_decay: float | None = field(
        default=None,
        metadata={
            "help": "Evaluate and save an exponential moving average of the weights with this decay, e.g. 0.999."
        },
    )
    cache_frozen_text: bool = field(
        default=False,
        metadata={"help": "With freeze_text, encode every training caption once, before the first step."},
    )
    features_on_device: bool = field(
        default=False,
        metadata={"help": "Make the spectrograms of training (CED) where the model is, not in the data workers."},
    )
    skip_nonfinite_steps: int = field(
        default=0,
        metadata={"help": "Leave out up to so many steps with a NaN or infinite loss or gradient, then stop."},
    )
    eval_pool_size: int | None = field(
        default=None, metadata={"help": "Evaluate retrieval in disjoint pools of so many clips; one pool when null."}
    )
    choose_checkpoint_on: str = field(
        default="validation",
        metadata={"help": "Split that training evaluates and chooses by; test, as the paper did, labels all results."},
    )
    zero_shot_templates: list[str] = field(
        default_factory=lambda: ["This is a sound of {}."],
        metadata={"help": "Texts of a label; their embeddings are averaged."},
    )

    # Defaults that differ from the parent's: rows keep all columns, batches are full (the paper's predictor has a
    # fixed width), and nothing is reported to a service unless asked for.
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Not used: the collator takes what it needs."}
    )
    dataloader_drop_last: bool = field(default=True, metadata={"help": "Drop the last, smaller training batch."})
    report_to: str | list[str] = field(default="none", metadata={"help": "Trackers, e.g. tensorboard or wandb."})
    logging_steps: float = field(default=10, metadata={"help": "Log every so many steps."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Every parameter is used."})
    bf16: bool | str = field(
        default=False, metadata={"help": "Mixed precision; auto uses it where the processor computes in bfloat16."}
    )
    hub_strategy: str = field(
        default="end", metadata={"help": "Only end: one upload of the whole model, with its card."}
    )
    dataloader_pin_memory: bool | None = field(
        default=None, metadata={"help": "Pin batches in memory; where there is an accelerator when null."}
    )

    def __post_init__(self):
        for item in fields(self):
            if item.init:
                check_value(item.name, getattr(self, item.name))
        PaperReadings(**(self.readings or {}))  # refuses unknown ones
        if self.dataloader_persistent_workers:
            raise ValueError("dataloader_persistent_workers would repeat the captions and crops of the first epoch.")
        if self.bf16 == "auto":
            self.bf16 = computes_in_bfloat16(self.use_cpu)
            # the Trainer takes bf16 without an accelerator only when told that the CPU is meant
            self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        if self.push_to_hub and self.hub_strategy != "end":
            # the parent would upload weights without code or card in between, and the pickles of a resumable state
            raise ValueError(f"hub_strategy must be end, got {self.hub_strategy!r}.")
        if self.dataloader_pin_memory is None:
            self.dataloader_pin_memory = torch.accelerator.is_available()
        super().__post_init__()
        if self.choose_checkpoint_on == "test" and not self.load_best_model_at_end:
            raise ValueError("choose_checkpoint_on 'test' chooses nothing without load_best_model_at_end: set it.")

    @property
    def chosen_on(self) -> str:
        """How the checkpoint at the end of training is chosen: by a split, or as the last one."""
        return self.choose_checkpoint_on if self.load_best_model_at_end else "last"
