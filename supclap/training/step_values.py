"""Losses, their parts and diagnostics, from the batches of a step to the log."""

from collections import defaultdict

import torch
from accelerate import Accelerator


class StepValues:
    """The values of the step in progress, and their sums since the last log."""

    def __init__(self, device: torch.device):
        self.batches: list[tuple[list[str], dict[str, torch.Tensor]]] = []
        """Ids and values of each batch of the step in progress; accumulation makes a step of several."""
        self._sums: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros((), device=device))
        self._counted = 0

    def add_batch(self, ids: list[str], outputs: dict[str, torch.Tensor]) -> None:
        values = {name: value.detach().float().mean() for name, value in outputs.items()}
        self.batches.append((ids, values))

    def losses_are_finite(self) -> bool:
        """Whether each loss of the step in progress is finite on this rank."""
        return bool(torch.stack([values["loss"] for _, values in self.batches]).isfinite().all())

    def end_step(self, counted: bool) -> None:
        """Ends the step in progress, which counts for the means unless it was left out."""
        for _, values in self.batches if counted else ():
            for name, value in values.items():
                if name != "loss":  # the Trainer logs it
                    self._sums[name] += value
            self._counted += 1
        self.batches = []

    def means(self, accelerator: Accelerator) -> dict[str, float]:
        """Means over the batches of all ranks since the last call."""
        if not self._counted:
            return {}
        names = sorted(self._sums)
        means = accelerator.reduce(torch.stack([self._sums[name] for name in names]) / self._counted, reduction="mean")
        self._sums.clear()
        self._counted = 0
        return dict(zip(names, means.tolist(), strict=True))
