"""Runs of `train_supclap.py` in processes that start fast: forked from a server that has imported everything once."""

import json
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "accelerate",
        "datasets",
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
        "soundfile",
        "supclap.cli.train",
        "supclap.recipes.build",
        "supclap.training.run",
        "torch._dynamo",  # the first step of an optimizer imports it
        "torchaudio.functional",
        "train_supclap",
        "transformers.models.bert.modeling_bert",
        "transformers.trainer",
    ]
)


@dataclass
class Run:
    """A run in progress or ended."""

    process: multiprocessing.Process
    log: Path

    @property
    def text(self) -> str:
        """What the run printed so far, errors included."""
        return self.log.read_text() if self.log.exists() else ""

    def wait(self, timeout: float = 600) -> int:
        """The exit status; negative after a signal."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"still running after {timeout} s:\n{self.text[-3000:]}")
        return self.process.exitcode


def _logged(function: Callable, arguments: tuple, log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout.reconfigure(
        line_buffering=False, write_through=False
    )  # a file's default, whatever PYTHONUNBUFFERED says
    function(*arguments)


def call(function: Callable, arguments: tuple, log: Path) -> multiprocessing.Process:
    """Starts a call in such a process; what it prints goes to `log`."""
    process = _context.Process(target=_logged, args=(function, arguments, str(log)))
    process.start()
    return process


def _ranked(function: Callable, rank: int, world: int, port: int, arguments: tuple) -> None:
    import torch

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"OMP_NUM_THREADS": "1"}
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    function(*arguments)


def place() -> tuple[int, int]:
    """Rank of this process, and how many there are."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def call_on_ranks(function: Callable, world: int, arguments: tuple, logs: Path, timeout: float = 600) -> None:
    """A call in each of `world` processes, with the environment that torchrun gives; all have to end well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs.mkdir(exist_ok=True)
    files = [logs / f"rank{rank}.log" for rank in range(world)]
    processes = [call(_ranked, (function, rank, world, port, arguments), file) for rank, file in enumerate(files)]
    for process in processes:
        process.join(timeout)
    failed = [rank for rank, process in enumerate(processes) if process.exitcode != 0]
    for process in processes:
        process.kill()
    assert not failed, "\n".join(files[rank].read_text()[-3000:] for rank in failed)


def _train(argv: list[str]) -> None:
    sys.argv = [str(ROOT / "train_supclap.py"), *argv]
    runpy.run_path(sys.argv[0], run_name="__main__")


def start(recipe: Path, *overrides: str) -> Run:
    """Starts `train_supclap.py recipe overrides`."""
    number = len(list(recipe.parent.glob("run*.log")))
    log = recipe.parent / f"run{number}.log"
    return Run(call(_train, ([str(recipe), *overrides],), log), log)


def finish(recipe: Path, *overrides: str) -> str:
    """Runs it to its successful end and returns what it printed."""
    run = start(recipe, *overrides)
    status = run.wait()
    assert status == 0, run.text[-3000:]
    return run.text


def finish_on_ranks(world: int, recipe: Path, *overrides: str) -> None:
    """Runs it in `world` processes to its successful end."""
    call_on_ranks(_train, world, ([str(recipe), *overrides],), recipe.parent / "ranks")


def history(folder: Path, step: int) -> list[dict]:
    """The logged values up to a step, without those of time."""
    state = json.loads((folder / f"checkpoint-{step}" / "trainer_state.json").read_text())
    timing = ("runtime", "per_second")
    return [{key: value for key, value in entry.items() if not key.endswith(timing)} for entry in state["log_history"]]
