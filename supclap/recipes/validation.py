"""What values the keys of a recipe may have: types, choices and ranges in one place, checked before anything is built."""

import dataclasses
import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from modeling_supclap import CED_SIZES
from supclap.errors import RecipeError, SettingsError


@dataclass(frozen=True)
class Interval:
    """Finite numbers between two ends, but for those that it is `without`."""

    low: float = -math.inf
    high: float = math.inf
    without: float | None = None

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and self.low <= value <= self.high and value != self.without

    def __str__(self) -> str:
        excluded = "" if self.without is None else f", without {self.without:g}"
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"from {self.low:g} to {self.high:g}{excluded}"
        if math.isfinite(self.low):
            return f"above {self.low:g}" if self.without == self.low else f"at least {self.low:g}"
        return f"at most {self.high:g}" if math.isfinite(self.high) else "a finite number"


NOT_NEGATIVE = Interval(0)  # every number that has no range of its own
# By the last name of a key: `size` is also that of `scenes.size` and `test_scenes.size`.
RANGES = {
    **dict.fromkeys(
        (
            "projection_dim",
            "epoch_size",
            "input_statistics_batches",
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
            "gradient_accumulation_steps",
            "dataloader_prefetch_factor",
            "loss_chunk_size",
            "grad_cache_chunk_size",
            "drift_steps",
            "drift_probe_size",
            "eval_pool_size",
            # features
            "feature_size",
            "sampling_rate",
            "n_fft",
            "win_length",
            "hop_length",
            # audio_config
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_mel_bins",
            "patch_size",
            "patch_stride",
            "target_length",
            "window_hop",
            # scenes and augmentation
            "size",
            "block",
            "speeds",
            "response_points",
        ),
        Interval(1),
    ),
    **dict.fromkeys(
        ("max_duration", "num_train_epochs", "logging_steps", "save_steps", "eval_steps", "duration"),
        Interval(0, without=0),
    ),
    **dict.fromkeys(("svr_warmup", "constraint_warmup", "unseen_fraction"), Interval(0, 1)),
    **dict.fromkeys(
        ("adam_beta1", "adam_beta2", "ema_decay", "patch_dropout", "hidden_dropout", "attention_dropout"),
        Interval(0, 1, without=1),
    ),
    **dict.fromkeys(("seed", "data_seed"), Interval(0, 2**32 - 1)),
    **dict.fromkeys(
        ("logit_bias_init_value", "padding_value", "level_db", "noise_db", "background_db"),
        Interval(),
    ),
    "layer_decay": Interval(0, 1, without=0),
    "block_labels": Interval(2),
    "logit_scale_init_value": Interval(high=math.log(100)),  # what training limits it to
    "max_steps": Interval(-1),  # -1 counts epochs
    "local_rank": Interval(-1),
}
CHOICES = {
    "objective": ("infonce", "siglip"),
    "svr": ("dynamic", "static", None),
    "svr_direction": ("bi", "uni"),
    "radius_predictor": ("similarities", "summary"),
    "choose_checkpoint_on": ("validation", "test"),
    "on_batch_mismatch": ("error", "pad"),
    "positives": ("clip", "label"),
    "bf16": (True, False, "auto"),
    "pairs": ("all", "seen", "unseen"),
}


@cache
def _choices() -> dict[str, tuple]:
    """Choices of our own keys, and of the Trainer's that it tells."""
    from transformers import TrainingArguments
    from transformers.activations import ACT2FN
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    told = {
        item.name: (*item.metadata["choices"], *([None] if item.default is None else []))
        for item in dataclasses.fields(TrainingArguments)
        if item.metadata.get("choices")
    }
    return {
        **told,
        **CHOICES,
        "report_to": ("none", "all", *sorted(INTEGRATION_TO_CALLBACK)),
        "hidden_act": tuple(sorted(ACT2FN)),
    }


@cache
def _names_or_paths() -> dict[str, tuple]:
    """Keys with names of our own or the library's, beside which any folder or Hub id is allowed."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attention = sorted(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name)
    return {"audio_model": tuple(CED_SIZES), "attn_implementation": ("eager", *attention, None)}


@cache
def parts() -> dict[str, Callable]:
    """What is made from the fields that a recipe gives under a key."""
    from modeling_supclap import CedConfig
    from processing_supclap import SupClapFeatureExtractor
    from supclap.data.augment import SpectrogramAugment, WaveformAugment
    from supclap.data.scenes import SceneMixer
    from supclap.losses import PaperReadings

    return {
        "audio_config": CedConfig,
        "features": SupClapFeatureExtractor,
        "readings": PaperReadings,
        "waveform_augment": WaveformAugment,
        "spectrogram_augment": SpectrogramAugment,
        **dict.fromkeys(("scenes", "validation_scenes", "test_scenes"), SceneMixer),
    }


def _nearest(value: Any, known: Iterable) -> str | None:
    names = [name for name in known if isinstance(name, str)]
    return next(iter(difflib.get_close_matches(str(value), names, n=1)), None)


def unknown_key(key: str, known: Sequence[str], where: str) -> RecipeError:
    """The error for a key that is none of the known ones, with the nearest of them."""
    near = _nearest(key, known)
    hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(sorted(known))}."
    return RecipeError(f"{where}: unknown key {key!r}; {hint}")


def _not_among(key: str, value: Any, allowed: Sequence, rest: str = "") -> SettingsError:
    near = _nearest(value, allowed)
    words = ", ".join({None: "null", True: "true", False: "false"}.get(name, str(name)) for name in allowed)
    hint = "." if near is None else f"; did you mean {near!r}?"
    return SettingsError(f"{key} must be one of {words}{rest}, got {value!r}{hint}")


def check_value(key: str, value: Any) -> None:
    """Checks a value, or each item of a list, against the choices or the range of its key.

    Raises:
        SettingsError: It is none of them; the message names key, value, what is allowed and the nearest choice.
    """
    name = key.partition("[")[0].rpartition(".")[2]
    if isinstance(value, list | tuple):
        for item in value:
            check_value(key, item)
    elif name in _choices():
        if value not in _choices()[name]:
            raise _not_among(key, value, _choices()[name])
    elif name in _names_or_paths():
        allowed = _names_or_paths()[name]
        if value not in allowed and "/" not in value and not Path(value).is_dir():
            raise _not_among(key, value, allowed, ", or a folder or Hub id")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        allowed = RANGES.get(name, NOT_NEGATIVE)
        if value not in allowed:
            raise SettingsError(f"{key} must be {allowed}, got {value!r}.")


def convert(key: str, value: Any, kind: Any) -> Any:
    """A value as the annotation of its field asks, checked. YAML reads `1e-4` as a string, which is a number here.

    Raises:
        SettingsError: The type does not fit, or the value is not allowed.
    """
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    options = typing.get_args(kind) if is_union else (kind,)
    plain = tuple(typing.get_origin(option) or option for option in options)
    if not all(isinstance(option, type) for option in plain) or {Any, inspect.Parameter.empty} & set(plain):
        return value
    if value is None and type(None) in plain:
        return None
    enumerated = [option for option in plain if issubclass(option, Enum)]
    if enumerated:
        value = "no" if value is False else value  # YAML reads `no` as false
        allowed = [member.value for option in enumerated for member in option]
        if value not in allowed:
            raise _not_among(key, value, allowed)
        return value
    for option, origin in zip(options, plain):
        if origin is dict and isinstance(value, dict):
            return _convert_items(key, value, typing.get_args(option))
        if isinstance(value, list | tuple) and origin in (list, tuple, Sequence):
            return _convert_list(key, value, origin, typing.get_args(option))
    value = _convert_scalar(key, value, plain)
    check_value(key, value)
    return value


def _convert_scalar(key: str, value: Any, kinds: tuple[type, ...]) -> Any:
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif isinstance(value, str) and {str, dict} <= set(kinds):
        if value.lstrip().startswith("{") or Path(value).is_file():
            return value
        raise SettingsError(f"{key} must be a mapping, or a file that holds one; {value!r} is no file.")
    elif isinstance(value, kinds) and not (isinstance(value, str) and Sequence in kinds):
        return value
    elif float in kinds:
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    elif isinstance(value, int | float) and str in kinds:
        return str(value)
    words = {type(None): "null", tuple: "list", Sequence: "list"}
    allowed = " or ".join(words.get(kind, kind.__name__) for kind in kinds)
    raise SettingsError(f"{key} must be {allowed}, got {value!r}.")


def _convert_items(key: str, value: dict, kinds: tuple) -> dict:
    if not kinds:
        return value
    return {name: convert(f"{key}[{name}]", item, kinds[1]) for name, item in value.items()}


def _convert_list(key: str, value: Sequence, origin: type, kinds: tuple) -> Sequence:
    if not kinds:
        return value
    if origin is not tuple or kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise SettingsError(f"{key} must have {len(kinds)} items, got {list(value)!r}.")
    return [convert(f"{key}[{place}]", item, kind) for place, (item, kind) in enumerate(zip(value, kinds))]


def convert_part(key: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that a recipe gives under a key of `parts`, converted and checked.

    Raises:
        SettingsError: One is unknown, or its value is not allowed.
    """
    parameters = {
        name: parameter.annotation
        for name, parameter in inspect.signature(parts()[key]).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    for name in fields:
        if name not in parameters:
            raise unknown_key(name, list(parameters), key)
    return {name: convert(f"{key}.{name}", value, parameters[name]) for name, value in fields.items()}
