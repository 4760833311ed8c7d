"""What `SupClapLoss` refuses: options that cannot be, and embeddings that are no batch of pairs."""

import math
from typing import get_args

import torch
from torch import Tensor

from supclap.errors import DataError, SettingsError
from supclap.losses.precision import full_precision


def check_choice(name: str, value: object, choices: object, *more: object) -> None:
    allowed = (*get_args(choices), *more)
    if value not in allowed:
        raise SettingsError(f"{name} must be one of {allowed}, got {value!r}.")


def check_numbers(
    svr_weight: float,
    constraint_weight: float,
    radius_init: float,
    batch_size: int | None,
    loss_chunk_size: int | None,
) -> None:
    for name, value in (("svr_weight", svr_weight), ("constraint_weight", constraint_weight)):
        if not 0 <= value < math.inf:
            raise SettingsError(
                f"{name} weighs a loss and must be a finite number, at least 0, got {value}; 0 turns the term off."
            )
    if not math.isfinite(radius_init):
        raise SettingsError(f"radius_init must be a finite number, got {radius_init}.")
    if batch_size is not None and batch_size < 1:
        raise SettingsError(f"batch_size must be at least 1 pair, got {batch_size}.")
    if loss_chunk_size is not None and loss_chunk_size < 1:
        raise SettingsError(
            f"loss_chunk_size must be at least 1 row, got {loss_chunk_size}; None takes all rows at once."
        )


def check_pairs(audio: Tensor, text: Tensor, ids: Tensor | None) -> None:
    """Shapes and types, which cost no wait for the device."""
    for name, value in (("audio_embeds", audio), ("text_embeds", text), ("ids", ids)):
        if not isinstance(value, Tensor) and not (name == "ids" and value is None):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}: use torch.as_tensor.")
    if audio.ndim == text.ndim == 2 and len(audio) != len(text):
        raise DataError(
            f"{len(audio)} clips (audio_embeds) came with {len(text)} texts (text_embeds), but row i of one belongs "
            "to row i of the other: draw one caption for each clip, or repeat clips and pass equal `ids` for them."
        )
    if audio.ndim != 2 or audio.shape != text.shape or not len(audio):
        raise DataError(
            "audio_embeds and text_embeds must both be (B, D), B >= 1, with a pair in each row; got "
            f"{tuple(audio.shape)} and {tuple(text.shape)}."
        )
    if audio.dtype != text.dtype or not audio.is_floating_point():
        raise DataError(
            f"audio_embeds are {audio.dtype} and text_embeds {text.dtype}: both must have one floating-point dtype; "
            "convert them, e.g. with `.float()`."
        )
    if ids is not None and (ids.shape != audio.shape[:1] or ids.is_floating_point()):
        raise DataError(f"ids must be {len(audio)} integers, one a pair; got {tuple(ids.shape)} {ids.dtype}.")


def check_values(audio: Tensor, text: Tensor) -> None:
    """Finite embeddings of unit length, which has to wait for the device."""
    for name, embeds in (("audio_embeds", audio), ("text_embeds", text)):
        error = (torch.linalg.vector_norm(full_precision(embeds.detach()), dim=-1) - 1).abs().max().item()
        if not math.isfinite(error):
            raise DataError(
                f"{name} hold NaN or infinite values: look for them in the inputs and weights of that encoder, "
                "or train in bfloat16 or float32 if it ran in float16."
            )
        if not error < 0.01:  # bfloat16 moves the length of a unit vector by up to 0.004
            raise DataError(
                f"{name} must have unit length but a row is off by {error:.3g}: use torch.nn.functional.normalize."
            )
