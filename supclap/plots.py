"""`supclap plot-drift`: the drift of several runs in one picture."""

import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.files import DRIFT, replacing
from supclap.training.callbacks.drift import read_drift


if TYPE_CHECKING:
    import numpy as np

MOST_NAMES = 60  # a picture with more classes does not name them
PANELS = {
    "negative gradient against the pull (cosine)": {"cos_gradient": "-", "cos_gradient_tangent": "--"},
    "step of the probe against the pull (cosine)": {"cos_step": "-", "cos_step_tangent": "--"},
    "push of L_orig, across over along": {"push_ratio": "-"},
    "push across: global and local part": {"push_global": "-", "push_local": "--"},
    "radius, median and deciles": {"radius_p50": "-", "radius_p10": ":", "radius_p90": ":"},
    "shrink factor 1 - R/|a-t|, median and deciles": {"shrink_p50": "-", "shrink_p10": ":", "shrink_p90": ":"},
}


def plot_drift(runs: list[Path], output: str | Path) -> None:
    """Draws the measurements of runs over their steps, a colour for each run.

    Args:
        runs: Folders with a `drift.jsonl`.
        output: The PNG to write.

    Raises:
        ValueError: A run has no measurements; it is named.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    measured = {}
    for folder in runs:
        path = Path(folder) / DRIFT
        entries = read_drift(path) if path.is_file() else []
        if not entries:
            raise ValueError(f"{folder} has no measurements in {DRIFT}: train it with `--drift true`.")
        measured[folder] = entries
    figure = Figure(figsize=(15, 8), layout="constrained")
    colours = colormaps["tab10" if len(measured) <= 10 else "tab20"].colors
    for axis, (title, curves) in zip(figure.subplots(2, 3).flat, PANELS.items(), strict=True):
        for colour, entries in zip(cycle(colours), measured.values(), strict=False):
            for name, style in curves.items():
                points = [(entry["step"], entry[name]) for entry in entries if name in entry]
                if points:
                    axis.plot(*zip(*points, strict=True), style, color=colour)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        if "push_ratio" in curves:
            axis.set_yscale("log")  # a collapsed run has thousands
        if len(curves) > 1:
            axis.legend(
                handles=[Line2D([], [], color="grey", linestyle=curves[name], label=name) for name in curves],
                fontsize="x-small",
            )
    above = os.path.commonpath([Path(folder).absolute().parent for folder in measured])
    runs_shown = [
        Line2D([], [], color=colour, label=os.path.relpath(folder, above))
        for colour, folder in zip(cycle(colours), measured, strict=False)
    ]
    figure.legend(handles=runs_shown, loc="outside lower center", ncols=min(len(measured), 4), fontsize="small")
    with replacing(output) as part:
        figure.savefig(part, dpi=100, format="png")


def plot_intervals(
    models: Mapping[str, Mapping[str, tuple[float, float, float]]], title: str, path: str | Path
) -> None:
    """Draws figures with their intervals, a line for each figure and a color for each model.

    Args:
        models: For each model its figures by name: value, lower and upper end, in percent.
        title: Written above the picture.
        path: The PNG to write.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for figures in models.values() for name in figures))
    position = {name: len(names) - row for row, name in enumerate(names)}
    figure = Figure(figsize=(9, 1.5 + 0.24 * len(names) * max(1, len(models) / 2)), layout="constrained")
    axis = figure.subplots()
    for number, (model, figures) in enumerate(models.items()):
        offset = 0.7 * ((number + 0.5) / len(models) - 0.5)
        rows = [position[name] - offset for name in figures]
        values = [value for value, _, _ in figures.values()]
        # the bootstrap interval of a share at its bound need not hold the value, but no length may be negative
        below = [abs(value - low) for value, low, _ in figures.values()]
        above = [abs(high - value) for value, _, high in figures.values()]
        axis.errorbar(values, rows, xerr=[below, above], fmt="o", capsize=2, label=model)
    axis.set_yticks(list(position.values()), names, fontsize="small")
    axis.set(xlim=(0, 100), xlabel="%")
    axis.set_title(title, fontsize="small")
    axis.grid(axis="x", alpha=0.3)
    if len(models) > 1:
        axis.legend(fontsize="small")
    with replacing(path) as part:
        figure.savefig(part, dpi=100, format="png")


def plot_confusion(confusion: "np.ndarray", labels: Sequence[str], path: str | Path) -> None:
    """Draws a confusion matrix `(C, C)`; the cells of each true class (row) are shares of its clips."""
    from matplotlib.figure import Figure

    totals = confusion.sum(axis=1, keepdims=True).clip(min=1)
    side = 4 + 0.12 * min(len(labels), MOST_NAMES)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(confusion / totals, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    if len(labels) <= MOST_NAMES:
        axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize="x-small")
        axis.set_yticks(range(len(labels)), labels, fontsize="x-small")
    axis.set(xlabel="predicted", ylabel="true")
    figure.colorbar(image, label="share of the class's clips")
    with replacing(path) as part:
        figure.savefig(part, dpi=100, format="png")
