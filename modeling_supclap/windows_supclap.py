"""Long clips are cut into windows: what all audio encoders need to put the windows of a clip together again."""

import torch


def masked_mean(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the mean over tokens, weighted by a mask.

    Args:
        tokens: `(n, length, hidden)`.
        mask: Whether a token counts, or its weight, `(n, length)`.

    Returns:
        `(n, hidden)`, zero where no token counts.
    """
    weights = mask[..., None].to(tokens.dtype)
    return (tokens * weights).sum(1) / weights.sum(1).clamp(min=1)


def place_windows(values: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Puts the values of the windows that were encoded at their places among all windows; the others are zero.

    Only windows that hold sound are encoded. Before, `windows[used]` takes them out of `(batch, windows, …)`, and this is
    the way back.

    Args:
        values: Values of the encoded windows, `(n, …)`, in the order of the true entries of `used`.
        used: Which windows were encoded, `(batch, windows)`.

    Returns:
        `(batch, windows, …)`.
    """
    placed = values.new_zeros(*used.shape, *values.shape[1:])
    placed[used] = values
    return placed


__all__ = ["masked_mean", "place_windows"]
