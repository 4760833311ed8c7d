"""The losses compute in float32 (float64 for float64 input), whatever the encoders run in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """Return `x` as float32, or unchanged when it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Context in which matrix products on the device of `x` keep the precision of their input."""
    if not torch.is_autocast_enabled(x.device.type):
        return nullcontext()  # entering autocast costs as much as a small matrix product
    return torch.autocast(device_type=x.device.type, enabled=False)


def as_scalar(value: Tensor | float, like: Tensor, name: str) -> Tensor:
    """Return a number or one-element tensor, such as a (1,) parameter, as a 0-d tensor; raise ValueError for others."""
    if isinstance(value, Tensor) and value.ndim == 0 and value.dtype == like.dtype and value.device == like.device:
        return value
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if tensor.numel() != 1:
        raise ValueError(f"{name} must be a single number, got shape {tuple(tensor.shape)}.")
    return tensor.reshape(())
