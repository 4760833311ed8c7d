"""Checks shared by the evaluation functions: what they accept, and the message when they do not."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from supclap.errors import name_indices


def to_numpy(values: Any) -> np.ndarray:
    """Array of a tensor on any device, an array or a list."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def as_embeddings(embeds: np.ndarray | torch.Tensor, name: str) -> torch.Tensor:
    """Check embeddings and return them as a `(N, D)` float64 tensor, on their own device where it has float64.

    Raises:
        ValueError: Not two-dimensional, empty, or with NaN or infinite rows, which are named.
    """
    if isinstance(embeds, torch.Tensor):
        matrix = embeds.detach()
        matrix = (matrix.cpu() if matrix.device.type == "mps" else matrix).double()
    else:
        matrix = torch.from_numpy(np.array(embeds, dtype=np.float64, order="C"))
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"`{name}` must be a non-empty (N, D) matrix, got shape {tuple(matrix.shape)}.")
    bad = (~torch.isfinite(matrix)).any(dim=1).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"`{name}` has NaN or infinite values in rows {name_indices(bad)}. Check those inputs and the model's dtype."
        )
    return matrix


def as_clip_index(text_to_audio: np.ndarray | torch.Tensor, n_audio: int, n_text: int) -> np.ndarray:
    """Check that every caption has a clip and every clip a caption; return the index as `(n_text,)` int64."""
    index = to_numpy(text_to_audio)
    if index.shape != (n_text,) or not np.issubdtype(index.dtype, np.integer):
        raise ValueError(
            f"`text_to_audio` must hold one integer clip index per caption, shape ({n_text},); "
            f"got {index.dtype} of shape {index.shape}."
        )
    outside = np.flatnonzero((index < 0) | (index >= n_audio))
    if outside.size:
        raise ValueError(
            f"`text_to_audio` of captions {name_indices(outside)} is {name_indices(index[outside])}, "
            f"outside 0..{n_audio - 1}: each must be a row of `audio_embeds`."
        )
    index = index.astype(np.int64)
    silent = np.flatnonzero(np.bincount(index, minlength=n_audio) == 0)
    if silent.size:
        raise ValueError(
            f"Clips {name_indices(silent)} have no caption in `text_to_audio`: leave them out or add one."
        )
    return index


class Column(Sequence):
    """One column of rows, each cell read when asked for: clips stored as bytes need not fit in memory."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str):
        self.rows, self.name = rows, name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> Any:
        return self.rows[position].get(self.name)


def without_audio(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Rows to look through often: where they lie in a file or are made when asked for, a look would read the sound too."""
    if isinstance(rows, list):
        return rows
    if hasattr(rows, "remove_columns"):
        return rows.remove_columns("audio")
    if hasattr(rows, "without_audio"):
        return [rows.without_audio(index) for index in range(len(rows))]
    return [{key: value for key, value in rows[index].items() if key != "audio"} for index in range(len(rows))]
