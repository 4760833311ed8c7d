"""Guard rails of training: steps that would poison the weights, and signs that a run has stopped learning."""

import json
from collections import defaultdict
from pathlib import Path

from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.utils import logging

from supclap.errors import NonFiniteError


logger = logging.get_logger(__name__)

NONFINITE_BATCHES = "nonfinite_batches.jsonl"
COLLAPSED = 0.99
"""Mean cosine between different clips (or texts) of a batch above which a tower counts as collapsed."""
SETTLED = 0.05
"""Share of the run at its beginning that is not judged, like the warm-up: the embeddings of random towers are all alike."""
PATIENCE = 3
"""Logs in a row that must show a problem before it is reported."""


def leave_out_step(
    args: TrainingArguments, state: TrainerState, batches: list[tuple[list[str], dict]], grad_norm: float, allowed: int
) -> int:
    """Appends what was in the batches of a step with NaN or infinite values, and what came out, to a file.

    Args:
        args: Training arguments.
        state: The state before the step.
        batches: Ids of the clips and values of each batch of the step.
        grad_norm: Norm of the gradient.
        allowed: How many steps of the run may be left out.

    Returns:
        How many steps have been left out with this one.

    Raises:
        NonFiniteError: More than allowed.
    """
    step, path = state.global_step + 1, Path(args.output_dir) / NONFINITE_BATCHES
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for ids, values in batches:
            told = {name: repr(float(value)) for name, value in {**values, "grad_norm": grad_norm}.items()}
            file.write(json.dumps({"step": step, "rank": args.process_index, "ids": ids, **told}) + "\n")
    skipped = 1 + max((entry.get("skipped_steps", 0) for entry in state.log_history), default=0)
    if skipped > allowed:
        raise NonFiniteError(
            f"step {step}: the loss or its gradient is NaN or infinite. The ids of the batch are in {path}. Look at "
            "those clips; try a lower learning rate, bf16 instead of fp16, or skip_nonfinite_steps to leave out "
            f"single steps ({skipped - 1} were left out). train_supclap.py goes on from the last checkpoint with "
            "them when --resume-with-changes is added. The weights were not changed by this step."
        )
    return skipped


class GuardRailsCallback(TrainerCallback):
    """Warns of a run that has stopped learning, once for each problem and with what to try.

    A problem is a collapsed tower, a temperature at its clamp, or radii outside their interval. It is reported when
    three logs in a row show it, once the run has settled.

    Args:
        logit_scale_max: Clamp of the inverse temperature.

    Attributes:
        warned: The message of each problem that was reported.
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
