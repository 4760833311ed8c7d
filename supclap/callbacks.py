"""Callbacks of training: the picture of its course."""

from pathlib import Path

from transformers import TrainerCallback


CURVES = "training_curves.png"
PANELS = {
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
    from matplotlib.figure import Figure  # the object, not pyplot: no display and no global state

    figure = Figure(figsize=(15, 4), layout="constrained")
    for axis, (title, names) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for name in names:
            points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, marker="." if name.startswith("eval_") else None)
        axis.set(title=title, xlabel="step")
        if axis.lines:
            axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


class TrainingCurvesCallback(TrainerCallback):
    """Writes `training_curves.png` beside the checkpoints whenever one is saved, and at the end."""

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            plot_training_curves(state.log_history, Path(args.output_dir) / CURVES)

    on_train_end = on_save
