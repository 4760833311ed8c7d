"""`supclap plot-drift`: the drift of several runs in one picture."""

from pathlib import Path

from supclap.drift import DRIFT_FILE, read_drift


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
    from matplotlib.figure import Figure

    measured = {}
    for folder in runs:
        path = Path(folder) / DRIFT_FILE
        entries = read_drift(path) if path.is_file() else []
        if not entries:
            raise ValueError(f"{folder} has no measurements in {DRIFT_FILE}: train it with `--drift true`.")
        measured[folder] = entries
    figure = Figure(figsize=(15, 8), layout="constrained")
    for axis, (title, curves) in zip(figure.subplots(2, 3).flat, PANELS.items(), strict=True):
        for colour, (folder, entries) in enumerate(measured.items()):
            for name, style in curves.items():
                points = [(entry["step"], entry[name]) for entry in entries if name in entry]
                label = f"{folder} {name}" if style in "--" else None
                if points:
                    axis.plot(*zip(*points, strict=True), style, color=f"C{colour}", label=label)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize="x-small")
    part = Path(output).with_suffix(".part")
    figure.savefig(part, dpi=100, format="png")
    part.replace(output)
