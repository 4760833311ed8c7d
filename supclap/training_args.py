"""Arguments of training: the Trainer's own and those of the objective."""

from dataclasses import dataclass, field

import torch
from transformers import TrainingArguments


CHOICES = {
    "objective": ("infonce", "siglip"),
    "svr": ("dynamic", "static", None),
    "svr_direction": ("bi", "uni"),
    "radius_predictor": ("similarities", "summary"),
}


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
    svr_weight: float = field(default=1.0, metadata={"help": "Weight alpha of L_svr."})
    constraint_weight: float = field(default=0.01, metadata={"help": "Weight beta of L_cons (dynamic radius only)."})
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
    radius_learning_rate: float | None = field(
        default=None, metadata={"help": "Learning rate of the radius; that of the model when null."}
    )
    text_learning_rate: float | None = field(
        default=None, metadata={"help": "Learning rate of the text encoder; that of the model when null."}
    )
    layer_decay: float | None = field(
        default=None,
        metadata={"help": "Each layer of both encoders learns at this share of the rate of the layer above it."},
    )
    freeze_temperature: bool = field(default=False, metadata={"help": "Keep the temperature at its initial value."})
    eval_pool_size: int | None = field(
        default=None, metadata={"help": "Evaluate retrieval in disjoint pools of so many clips; one pool when null."}
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
    dataloader_pin_memory: bool | None = field(
        default=None, metadata={"help": "Pin batches in memory; where there is an accelerator when null."}
    )

    def __post_init__(self):
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}.")
        if self.bf16 == "auto":
            self.bf16 = computes_in_bfloat16(self.use_cpu)
            # the Trainer takes bf16 without an accelerator only when told that the CPU is meant
            self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        elif not isinstance(self.bf16, bool):
            raise ValueError(f"bf16 must be true, false or auto, got {self.bf16!r}.")
        if self.dataloader_pin_memory is None:
            self.dataloader_pin_memory = torch.accelerator.is_available()
        super().__post_init__()
