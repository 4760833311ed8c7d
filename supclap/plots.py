"""Pictures of training runs. They are drawn with Figure objects, which need no display and keep no global state."""

import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from supclap.files import replacing


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
