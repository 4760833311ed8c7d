"""The sections of a recipe, and the `model` section."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt
from transformers.hf_argparser import HfArg
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_supclap import CED_SIZES, CedConfig
from processing_supclap import SupClapFeatureExtractor
from supclap.data.arguments import DataArguments
from supclap.data.field_types import fields_of
from supclap.errors import nearest
from supclap.training.arguments import SupClapTrainingArguments


RANDOM = "random:"  # before a size of CED: an encoder of that size with random weights
Attention = Literal[("eager", *sorted(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name))]
HubId = Annotated[str, Field(pattern="/")]


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


@dataclass
class ModelArguments:
    """The `model` section: which encoders, and what joins them."""

    checkpoint: str | None = HfArg(
        default=None, help="Folder or Hub id of a SupCLAP model to go on from, in place of two encoders."
    )
    text_model: str | None = HfArg(default=None, help="Folder, Hub id or package:path of a text encoder.")
    text_config: dict | None = HfArg(
        default=None, help="Fields of the text encoder's configuration to change, e.g. its dropout."
    )
    audio_model: Annotated[str, AfterValidator(_audio_model)] | None = HfArg(
        default=None, help=f"Folder or Hub id of an audio encoder, or random weights: {RANDOM}{', '.join(CED_SIZES)}."
    )
    audio_config: fields_of(CedConfig) | None = HfArg(default=None, help="Fields of CedConfig for random weights.")
    attn_implementation: Attention | HubId | None = HfArg(
        default=None,
        help="Attention of both encoders in training, or the Hub id of a kernel; the default if null.",
    )
    feature_extractor: fields_of(SupClapFeatureExtractor) | None = HfArg(
        default=None, help="Fields of SupClapFeatureExtractor for random weights."
    )
    projection_dim: PositiveInt = HfArg(default=1024, help="Size of the joint embedding.")
    logit_scale_init_value: Annotated[float, Field(le=math.log(100))] = HfArg(
        default=2.6592600369327783, help="Initial log(1/temperature); training limits it to log(100)."
    )
    logit_bias_init_value: float | None = HfArg(default=None, help="Initial bias, for siglip.")
    freeze_text: bool = HfArg(default=False, help="Train only the projection of the text tower.")
    frozen_text_layers: NonNegativeInt | None = HfArg(
        default=None, help="Train the text tower but for its embeddings and first so many layers."
    )
    freeze_audio: bool = HfArg(default=False, help="Train only the projection of the audio tower.")


SECTIONS = {"model": ModelArguments, "data": DataArguments, "training": SupClapTrainingArguments}
