"""The progress of a run on the screen."""

from transformers.trainer_callback import ProgressCallback


# Logged value -> what the line calls it.
LINE = {
    "loss": "loss",
    "loss_contrastive": "contrastive",
    "loss_svr": "svr",
    "loss_constraint": "constraint",
    "radius": "R",
    "pair_distance": "|a-t|",
    "radius_out_of_range": "R outside",
    "temperature": "temperature",
    "eval_loss": "validation loss",
    "eval_text_to_audio/recall@1": "T->A R@1",
    "eval_text_to_audio/recall@10": "R@10",
    "eval_audio_to_text/recall@1": "A->T R@1",
    "eval_audio_to_text/recall@10": "R@10",
    "eval_zero_shot/accuracy": "zero-shot",
}


class ShortProgressCallback(ProgressCallback):
    """The Trainer's progress bar, with a short line of a few values at each log. The log itself keeps all of them."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        shown = [f"{name} {logs[key]:.3g}" for key, name in LINE.items() if key in (logs or {})]
        if shown and state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.write(f"step {state.global_step}: {', '.join(shown)}")

    def close(self) -> None:
        """Closes the bars that an error has left open, so that its message starts on a line of its own."""
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()
