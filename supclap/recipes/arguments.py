"""The sections of a recipe, and the `model` section."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from modeling_supclap import CED_SIZES, CedConfig
from processing_supclap import SupClapFeatureExtractor
from supclap.data.arguments import DataArguments
from supclap.data.field_types import fields_of
from supclap.errors import nearest
from supclap.training.arguments import SupClapTrainingArguments


RANDOM = "random:"  # before a size of CED: an encoder of that size with random weights


def _audio_model(name: str) -> str:
    """Refuses a name that is neither a random encoder nor can be a folder or Hub id, which has a slash."""
    random = [RANDOM + size for size in CED_SIZES]
    if name in random or Path(name).is_dir() or ("/" in name and not name.startswith(RANDOM)):
        return name
    if name in CED_SIZES:
        raise ValueError(
            f"must be {RANDOM}{name} for random weights, or the folder or Hub id of trained ones, got {name!r}."
        )
    raise ValueError(
        f"must be one of {', '.join(random)} for random weights, or the folder or Hub id of trained ones, got {name!r}; "
        f"did you mean {nearest(RANDOM + name.removeprefix(RANDOM), random)!r}?"
    )


def _attention(name: str) -> str:
    """Refuses a name that Transformers does not know, unless it can be the Hub id of a kernel, which has a slash."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = ["eager", *sorted(key for key in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in key)]
    if name in known or "/" in name:
        return name
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else "."
    raise ValueError(f"must be one of {', '.join(known)}, or the Hub id of a kernel, got {name!r}{hint}")


@dataclass
class ModelArguments:
    """The `model` section: which encoders, and what joins them."""

    checkpoint: str | None = field(
        default=None, metadata={"help": "Folder or Hub id of a SupCLAP model to go on from, in place of two encoders."}
    )
    text_model: str | None = field(
        default=None, metadata={"help": "Folder, Hub id or package:path of a text encoder."}
    )
    text_config: dict | None = field(
        default=None, metadata={"help": "Fields of the text encoder's configuration to change, e.g. its dropout."}
    )
    audio_model: Annotated[str, AfterValidator(_audio_model)] | None = field(
        default=None,
        metadata={"help": f"Folder or Hub id of an audio encoder, or random weights: {RANDOM}{', '.join(CED_SIZES)}."},
    )
    audio_config: fields_of(CedConfig) | None = field(
        default=None, metadata={"help": "Fields of CedConfig for random weights."}
    )
    attn_implementation: Annotated[str, AfterValidator(_attention)] | None = field(
        default=None,
        metadata={
            "help": "Attention of both encoders in training: eager, sdpa, flash_attention_2; the default if null."
        },
    )
    feature_extractor: fields_of(SupClapFeatureExtractor) | None = field(
        default=None, metadata={"help": "Fields of SupClapFeatureExtractor for random weights."}
    )
    projection_dim: PositiveInt = field(default=1024, metadata={"help": "Size of the joint embedding."})
    logit_scale_init_value: Annotated[float, Field(le=math.log(100))] = field(
        default=2.6592600369327783, metadata={"help": "Initial log(1/temperature); training limits it to log(100)."}
    )
    logit_bias_init_value: float | None = field(default=None, metadata={"help": "Initial bias, for siglip."})
    freeze_text: bool = field(default=False, metadata={"help": "Train only the projection of the text tower."})
    frozen_text_layers: NonNegativeInt | None = field(
        default=None, metadata={"help": "Train the text tower but for its embeddings and first so many layers."}
    )
    freeze_audio: bool = field(default=False, metadata={"help": "Train only the projection of the audio tower."})


SECTIONS = {"model": ModelArguments, "data": DataArguments, "training": SupClapTrainingArguments}
