"""Pictures of training runs. They are drawn with Figure objects, which need no display and keep no global state."""

import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.files import replacing


if TYPE_CHECKING:
    import numpy as np

MOST_NAMES = 60  # a picture with more classes does not name them
DRIFT_PANELS = {
    "negative gradient against the pull (cosine)": {"cos_gradient": "-", "cos_gradient_tangent": "--"},
    "step of the probe against the pull (cosine)": {"cos_step": "-", "cos_step_tangent": "--"},
    "push of L_orig, across over along": {"push_ratio": "-"},
    "push across: global and local part": {"push_global": "-", "push_local": "--"},
    "radius, median and deciles": {"radius_p50": "-", "radius_p10": ":", "radius_p90": ":"},
    "shrink factor 1 - R/|a-t|, median and deciles": {"shrink_p50": "-", "shrink_p10": ":", "shrink_p90": ":"},
}
CURVE_PANELS = {
    "loss": ("loss_contrastive", "loss_svr", "loss_constraint", "eval_loss"),
    "radius": ("radius", "pair_distance", "radius_out_of_range", "temperature"),
    "retrieval": (
        "eval_text_to_audio/recall@1",
        "eval_audio_to_text/recall@1",
        "eval_text_to_audio/recall@10",
        "eval_audio_to_text/recall@10",
    ),
}


def plot_training_curves(log_history: list[dict], path: str | Path) -> None:
    """Draws loss parts, radius and retrieval over the steps of a run.

    Args:
        log_history: The Trainer's `state.log_history`.
        path: The PNG to write.
    """
    if not any(name in entry for entry in log_history for names in CURVE_PANELS.values() for name in names):
        return  # an empty picture would tell less than none
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4), layout="constrained")
    for axis, (title, names) in zip(figure.subplots(1, len(CURVE_PANELS)), CURVE_PANELS.items(), strict=True):
        for name in names:
            points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, marker="." if name.startswith("eval_") else None)
        axis.set(title=title, xlabel="step")
        if axis.lines:
            axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    with replacing(path) as part:
        figure.savefig(part, dpi=100, format="png")


def plot_drift(measured: Mapping[Path, Sequence[dict[str, float]]], output: str | Path) -> None:
    """Draws the drift of runs over their steps, a color for each run.

    Args:
        measured: The folders of the runs, and what [`~supclap.training.callbacks.drift.measurements`] found in them.
        output: The PNG to write.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(15, 8), layout="constrained")
    colors = colormaps["tab10" if len(measured) <= 10 else "tab20"].colors
    for axis, (title, curves) in zip(figure.subplots(2, 3).flat, DRIFT_PANELS.items(), strict=True):
        for color, entries in zip(cycle(colors), measured.values(), strict=False):
            for name, style in curves.items():
                points = [(entry["step"], entry[name]) for entry in entries if name in entry]
                if points:
                    axis.plot(*zip(*points, strict=True), style, color=color)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        if "push_ratio" in curves:
            axis.set_yscale("log")  # in a collapsed run the ratio is in the thousands
        if len(curves) > 1:
            axis.legend(
                handles=[Line2D([], [], color="grey", linestyle=curves[name], label=name) for name in curves],
                fontsize="x-small",
            )
    above = os.path.commonpath([Path(folder).absolute().parent for folder in measured])
    runs_shown = [
        Line2D([], [], color=color, label=os.path.relpath(folder, above))
        for color, folder in zip(cycle(colors), measured, strict=False)
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
