"""Numerical precision of the losses: float32 (or float64) whatever the encoders run in."""

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """Return `x` as float32, or unchanged when it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(x: Tensor) -> torch.autocast:
    """Context in which matrix products on the device of `x` keep their input's precision."""
    return torch.autocast(device_type=x.device.type, enabled=False)


def as_scalar(value: Tensor | float, like: Tensor, name: str) -> Tensor:
    """Return `value` (a number, or a tensor with one element such as the `(1,)` parameters FSDP asks for) as a 0-d tensor.

    Raises:
        ValueError: `value` has more or fewer than one element.
    """
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if tensor.numel() != 1:
        raise ValueError(f"{name} must be a single number, got shape {tuple(tensor.shape)}.")
    return tensor.reshape(())
