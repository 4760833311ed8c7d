"""Long clips are cut into windows: what all audio encoders need to put the windows of a clip together again."""

import torch


def masked_mean(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Averages tokens `(n, length, hidden)` with the weights of a mask `(n, length)` to `(n, hidden)`."""
    weights = mask[..., None].to(tokens.dtype)
    return (tokens * weights).sum(1) / weights.sum(1).clamp(min=1)


def place_windows(values: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Puts the values of the windows that were encoded, `(n, …)`, at their places among all windows, `(batch, windows, …)`.

    Only windows that hold sound are encoded: `windows[used]` takes them out, with `used` of shape `(batch, windows)`, and
    this is the way back. The values of the other windows are zero.
    """
    placed = values.new_zeros(*used.shape, *values.shape[1:])
    placed[used] = values
    return placed


__all__ = ["masked_mean", "place_windows"]
