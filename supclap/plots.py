"""`supclap plot-drift`: the drift of several runs in one picture."""

import os
from itertools import cycle
from pathlib import Path

from supclap.files import DRIFT, replacing
from supclap.training.callbacks.drift import read_drift


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
