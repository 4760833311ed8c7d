"""Arguments of training: the Trainer's own and those of the objective."""

import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from transformers import TrainingArguments
from transformers.hf_argparser import HfArg
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from supclap.data.field_types import Seed, Share, ShareBelowOne, checked, fields_of
from supclap.errors import SettingsError
from supclap.losses import PaperReadings


Tracker = Literal[("none", "all", *sorted(INTEGRATION_TO_CALLBACK))]


def computes_in_bfloat16(use_cpu: bool) -> bool:
    """Whether the processor that training will use has instructions for products in bfloat16."""
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported()
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


@dataclass
class RangedTrainingArguments(TrainingArguments):
    """[`transformers.TrainingArguments`], some fields of which have a range; their defaults and help are the parent's."""

    learning_rate: NonNegativeFloat
    weight_decay: NonNegativeFloat
    adam_beta1: ShareBelowOne
    adam_beta2: ShareBelowOne
    max_grad_norm: NonNegativeFloat
    warmup_steps: NonNegativeFloat
    num_train_epochs: PositiveFloat
    max_steps: Annotated[int, Field(ge=-1)]  # -1 counts epochs
    per_device_train_batch_size: PositiveInt
    per_device_eval_batch_size: PositiveInt
    gradient_accumulation_steps: PositiveInt
    dataloader_num_workers: NonNegativeInt
    save_steps: PositiveFloat
    eval_steps: PositiveFloat | None
    seed: Seed
    data_seed: Seed | None


@dataclass
class SupClapTrainingArguments(RangedTrainingArguments):
    """[`transformers.TrainingArguments`] with the objective of SupCLAP and defaults that suit contrastive training.

    The number of negatives is the number of pairs of one step on all ranks; gradient accumulation adds none.
    """

    objective: Literal["infonce", "siglip"] = HfArg(default="infonce", help="Base loss.")
    svr: Literal["dynamic", "static", "none"] | None = HfArg(
        default="dynamic", help="Radius of the support vectors; none or null turns them off."
    )
    svr_direction: Literal["bi", "uni"] = HfArg(default="bi", help="bi contrasts both ways, uni text to audio only.")
    svr_weight: NonNegativeFloat = HfArg(default=1.0, help="Weight of L_svr, the paper's alpha.")
    constraint_weight: NonNegativeFloat = HfArg(
        default=0.01, help="Weight of L_cons (dynamic radius only), the paper's beta."
    )
    radius_init: NonNegativeFloat = HfArg(default=0.1, help="Initial radius, in units of the unit-length embeddings.")
    radius_predictor: Literal["similarities", "summary"] = HfArg(
        default="similarities",
        help="Dynamic radius: similarities (the paper's, fixed batch size) or summary (any batch size).",
    )
    clamp_radius: bool = HfArg(
        default=False, help="Use min(R, distance of the pair), so that the push is never reversed."
    )
    on_batch_mismatch: Literal["error", "pad"] = HfArg(
        default="error", help="What radius_predictor similarities does with another number of pairs: error or pad."
    )
    readings: fields_of(PaperReadings) | None = HfArg(
        default=None, help="Fields of supclap.losses.PaperReadings: what to read into the paper where it is open."
    )
    svr_warmup: Share = HfArg(
        default=0.0, help="Share of the steps in which the weight of L_svr rises linearly from 0."
    )
    constraint_warmup: Share = HfArg(
        default=0.0, help="Share of the steps in which the weight of L_cons rises linearly from 0."
    )
    positives: Literal["clip", "label"] = HfArg(
        default="clip", help="Pairs that are no negatives of each other: of the same clip, or of the same label too."
    )
    loss_chunk_size: PositiveInt | None = HfArg(
        default=None, help="Rows of the loss at a time, for memory linear in the batch; all when null."
    )
    grad_cache_chunk_size: PositiveInt | None = HfArg(
        default=None, help="Embed so many pairs at a time, so that a batch of thousands fits; all when null."
    )
    drift: bool = HfArg(default=False, help="Measure the drift: to the trackers and to drift.jsonl.")
    drift_steps: PositiveInt = HfArg(default=100, help="Measure it every so many steps.")
    drift_probe_size: PositiveInt = HfArg(default=64, help="Held pairs whose realized steps are measured.")
    radius_learning_rate: NonNegativeFloat | None = HfArg(
        default=None, help="Learning rate of the radius; that of the model when null."
    )
    text_learning_rate: NonNegativeFloat | None = HfArg(
        default=None, help="Learning rate of the text encoder; that of the model when null."
    )
    muon_learning_rate: NonNegativeFloat | None = HfArg(
        default=None, help="Train weight matrices outside of the text encoder with Muon at this rate; AdamW when null."
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = HfArg(
        default=None, help="Each layer of both encoders learns at this share of the rate of the layer above it."
    )
    freeze_temperature: bool = HfArg(default=False, help="Keep the temperature at its initial value.")
    ema_decay: ShareBelowOne | None = HfArg(
        default=None,
        help="Evaluate and save an exponential moving average of the weights with this decay, e.g. 0.999.",
    )
    cache_frozen_text: bool = HfArg(
        default=False, help="With freeze_text, encode every training caption once, before the first step."
    )
    features_on_device: bool = HfArg(
        default=False, help="Make the spectrograms of training (CED) where the model is, not in the data workers."
    )
    skip_nonfinite_steps: NonNegativeInt = HfArg(
        default=0, help="Leave out up to so many steps with a NaN or infinite loss or gradient, then stop."
    )
    eval_pool_size: PositiveInt | None = HfArg(
        default=None, help="Evaluate retrieval in disjoint pools of so many clips; one pool when null."
    )
    choose_checkpoint_on: Literal["validation", "test"] = HfArg(
        default="validation",
        help="Split that training evaluates and chooses by; test, as the paper did, labels all results.",
    )
    zero_shot_templates: list[str] = HfArg(
        default_factory=lambda: ["This is a sound of {}."], help="Texts of a label; their embeddings are averaged."
    )

    # Defaults that differ from the parent's: rows keep all columns, batches are full (the paper's predictor has a
    # fixed width), and nothing is reported to a service unless asked for.
    remove_unused_columns: bool = HfArg(default=False, help="Not used: the collator takes what it needs.")
    dataloader_drop_last: bool = HfArg(default=True, help="Drop the last, smaller training batch.")
    report_to: Tracker | list[Tracker] | None = HfArg(default="none", help="Trackers, e.g. tensorboard or wandb.")
    logging_steps: PositiveFloat = HfArg(default=10, help="Log every so many steps.")
    ddp_find_unused_parameters: bool | None = HfArg(default=False, help="Every parameter is used.")
    bf16: bool | Literal["auto"] = HfArg(
        default=False, help="Mixed precision; auto uses it where the processor computes in bfloat16."
    )
    # The parent's other strategies upload weights without code or card in between, and the pickles of a resumable state.
    hub_strategy: Literal["end"] = HfArg(
        default="end", help="One upload of the whole model, with its card, at the end."
    )
    dataloader_pin_memory: bool | None = HfArg(
        default=None, help="Pin batches in memory; where there is an accelerator when null."
    )

    def __post_init__(self):
        for name, kind in own_fields().items():
            setattr(self, name, checked(name, getattr(self, name), kind))
        if self.svr == "none":
            self.svr = None
        if self.dataloader_persistent_workers:
            raise SettingsError(
                "dataloader_persistent_workers would repeat the captions and crops of the first epoch."
            )
        if self.bf16 == "auto":
            self.bf16 = computes_in_bfloat16(self.use_cpu)
            # the Trainer takes bf16 without an accelerator only when told that the CPU is meant
            self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        if self.dataloader_pin_memory is None:
            self.dataloader_pin_memory = torch.accelerator.is_available()
        super().__post_init__()
        if self.choose_checkpoint_on == "test" and not self.load_best_model_at_end:
            raise SettingsError("choose_checkpoint_on 'test' chooses nothing without load_best_model_at_end: set it.")

    @property
    def chosen_on(self) -> str:
        """How the checkpoint at the end of training is chosen: by a split, or as the last one."""
        return self.choose_checkpoint_on if self.load_best_model_at_end else "last"


@cache
def own_fields() -> dict[str, Any]:
    """The fields that are annotated here, with their annotations; the others of `transformers.TrainingArguments` are its own."""
    hints = typing.get_type_hints(SupClapTrainingArguments, include_extras=True)
    kinds = (RangedTrainingArguments, SupClapTrainingArguments)
    return {name: hints[name] for kind in kinds for name in kind.__annotations__}
