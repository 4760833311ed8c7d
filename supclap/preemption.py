"""A run that is asked to end (SIGTERM) writes a checkpoint first, so that the same command goes on without loss."""

import signal
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from transformers import TrainerCallback


PREEMPTED_EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: a failure that a retry cures. Slurm requeues on it where `RequeueExit` lists it."""
PREEMPTED_FILE = "preempted"
"""Lies in `output_dir` from a preempted run's end to its continuation: launchers hide the exit code of their workers."""


class PreemptionCallback(TrainerCallback):
    """On SIGTERM, ends training with a checkpoint after the step (and the evaluation, if one is due) in progress.

    `preempted` tells afterwards. The continuation repeats the uninterrupted run exactly, as after a kill.
    """

    def __init__(self):
        self.preempted = False
        self._asked = False
        self._previous = None

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self._asked = True

    def on_train_begin(self, args, state, control, **kwargs):
        self._previous = signal.signal(signal.SIGTERM, self._receive)

    def on_train_end(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
        if self.preempted and state.is_world_process_zero:
            (Path(args.output_dir) / PREEMPTED_FILE).touch()

    def on_step_end(self, args, state, control, **kwargs):
        if any_rank(self._asked, args.device):
            self.preempted = control.should_training_stop = True
            control.should_save = bool(state.epoch % 1)  # at the end of an epoch its evaluation comes first

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.preempted and state.epoch % 1:
            control.should_evaluate = control.should_log = control.should_save = False
        elif self.preempted:
            control.should_save = True


def any_rank(value: bool, device: torch.device) -> bool:
    """Whether the value is true on any rank: all must stop at the same step, and signals do not arrive at once."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    flag = torch.tensor([int(value)], device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())
