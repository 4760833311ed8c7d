"""A run that is asked to end (SIGTERM, Ctrl-C) writes a checkpoint first, so that the same command goes on without loss."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType, TracebackType

import torch
import torch.distributed as dist
from transformers import TrainerCallback


PREEMPTED_EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: a failure that a retry cures. Slurm requeues on it where `RequeueExit` lists it."""
PREEMPTED_FILE = "preempted"
"""File in `output_dir` from the end of a preempted run to its continuation, as launchers hide the status of their workers."""


class PreemptionCallback(TrainerCallback):
    """On SIGTERM or Ctrl-C inside the context, ends the process with status 75 and the file `preempted`.

    From the first step on it waits for the step in progress (and for the evaluation, if one is due), and a checkpoint is
    written: the continuation repeats the uninterrupted run exactly, as after a kill. Before the first step and after
    training there is nothing to save, and the process ends at once. A second Ctrl-C ends it at once in any case.
    """

    def __init__(self):
        self.preempted = False
        self._asked: signal.Signals | None = None
        self._waits = True  # until the folder for the file is known
        self._folder: Path | None = None
        self._process = os.getpid()
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "PreemptionCallback":
        self._previous = {one: signal.signal(one, self._receive) for one in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for one, handler in self._previous.items():
            signal.signal(one, handler or signal.SIG_DFL)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked data worker: its parent decides, and ends it with SIGTERM
            if signum == signal.SIGTERM:
                os._exit(128 + signum)
        elif self._asked == signum == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            self._asked = signal.Signals(signum)
            if not self._waits:
                self._leave("")

    def start(self, output_dir: str | Path | None) -> None:
        """Tells that the setup of a run begins.

        Args:
            output_dir: Where to leave the file, and to remove that of an earlier run; no file is left when `None`.
        """
        if output_dir is not None:
            self._folder = Path(output_dir)
            marker = self._folder / PREEMPTED_FILE
            if marker.exists():  # where `output_dir` cannot be a folder, `unlink` would fail with a worse message
                marker.unlink(missing_ok=True)
        self._end_waiting("")

    def end_training(self, step: int) -> None:
        """Tells that training has ended at a step; ends the process where it was asked to end meanwhile."""
        self._end_waiting(f" at step {step}")

    def _end_waiting(self, where: str) -> None:
        self._waits = False
        if self._asked or self.preempted:
            self._leave(where)

    def _leave(self, where: str) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / PREEMPTED_FILE).touch()
        try:
            if os.environ.get("RANK", "0") == "0":
                name = self._asked.name if self._asked else "a signal to another process"
                print(f"ended by {name}{where}; run the same command again to go on.")
        finally:  # the signal may have come inside of a print, which cannot be called again then
            sys.exit(PREEMPTED_EXIT_CODE)

    def on_step_begin(self, args, state, control, **kwargs):
        self._waits = True

    def on_step_end(self, args, state, control, **kwargs):
        if any_rank(self._asked is not None, args.device):
            self.preempted = control.should_training_stop = True
            control.should_save = bool(state.epoch % 1)  # at the end of an epoch its evaluation comes first

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.preempted and state.epoch % 1:
            control.should_evaluate = control.should_log = control.should_save = False
        elif self.preempted:
            control.should_save = True


def any_rank(value: bool, device: torch.device) -> bool:
    """Whether the value is true on any rank. Signals do not reach all ranks at once, but all must stop at the same step."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    flag = torch.tensor([int(value)], device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())
