"""Guard rails of training: steps that would poison the weights, and signs that a run has stopped learning."""

import json
from collections import defaultdict
from pathlib import Path

from transformers import TrainerCallback
from transformers.utils import logging


logger = logging.get_logger(__name__)

NONFINITE_BATCHES = "nonfinite_batches.jsonl"
COLLAPSED = 0.99
"""Mean cosine between different clips (or texts) of a batch above which a tower counts as collapsed."""
SETTLED = 0.05
"""Share of the run, beside the warm-up, that is not judged: random towers start out alike."""
PATIENCE = 3
"""Logs in a row that must show a problem before it is reported."""


def record_nonfinite_batch(folder: Path, step: int, rank: int, ids: list[str], values: dict[str, float]) -> Path:
    """Appends a line with what was in a batch, and what came out, to `nonfinite_batches.jsonl`."""
    path = folder / NONFINITE_BATCHES
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"step": step, "rank": rank, "ids": ids, **{name: repr(value) for name, value in values.items()}}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
    return path


class GuardRailsCallback(TrainerCallback):
    """Warns once, with what to try, when the logged values show collapsed towers, a temperature at its clamp or radii
    outside their interval in three logs in a row, once the run has settled. `warned` maps each problem to its message.

    Args:
        logit_scale_max: Clamp of the inverse temperature.
    """

    def __init__(self, logit_scale_max: float):
        self.logit_scale_max = logit_scale_max
        self.warned: dict[str, str] = {}
        self._in_a_row: dict[str, int] = defaultdict(int)

    def on_log(self, args, state, control, logs=None, **kwargs):
        start = max(args.get_warmup_steps(state.max_steps), SETTLED * state.max_steps)
        if not logs or "loss" not in logs or state.global_step < start:
            return
        for problem, message in self._problems(logs).items():
            self._in_a_row[problem] = self._in_a_row[problem] + 1 if message else 0
            if self._in_a_row[problem] == PATIENCE and problem not in self.warned:
                self.warned[problem] = f"step {state.global_step}: {message}"
                if state.is_world_process_zero:
                    logger.warning(self.warned[problem])

    def _problems(self, logs: dict[str, float]) -> dict[str, str | None]:
        """A message, or nothing, for each problem."""
        problems: dict[str, str | None] = {}
        for tower in ("audio", "text"):
            cosine = logs.get(f"{tower}_cosine", 0.0)
            problems[f"{tower} collapsed"] = cosine > COLLAPSED and (
                f"the {tower} tower has collapsed: different {tower} inputs have a mean cosine of {cosine:.4f}. Try a "
                f"lower learning rate or a longer warm-up, and look for {tower} inputs that are all alike (silence, a "
                "single caption)."
            )
        scale = logs.get("logit_scale", 0.0)
        problems["temperature"] = scale >= self.logit_scale_max * (1 - 1e-4) and (
            f"the temperature is at its clamp, 1/{self.logit_scale_max:g}. Try freeze_temperature: true, a lower "
            "learning rate or larger batches; pairs that are too easy also drive it there."
        )
        outside = logs.get("radius_out_of_range", 0.0)
        problems["radius"] = outside > 0.5 and (
            f"the radius lies outside [0, distance of the pair] for {outside:.0%} of the pairs, where it reverses the "
            "push. Try a lower radius_learning_rate, a smaller radius_init, a larger constraint_weight (dynamic radius) "
            "or clamp_radius: true."
        )
        return problems
