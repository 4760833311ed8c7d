"""Settings of the process that trains: its threads, its memory, what its libraries print."""

import ctypes
import os
import platform

import torch


def quiet_libraries() -> None:
    """Turns off the progress bars of loading and saving files, so that the only bar on the screen is training's."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def keep_freed_memory() -> None:
    """Lets training on a CPU keep the memory that a step frees, for the next step.

    glibc gives freed memory back to the system above a threshold. The next step would ask for the same memory again,
    and the system would map and zero each of its pages anew.
    """
    if platform.libc_ver()[0] == "glibc" and not torch.cuda.is_available():
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_max = -1, -4  # the numbers of M_TRIM_THRESHOLD and M_MMAP_MAX in malloc.h
        mallopt(trim_threshold, 2**31 - 1)  # give nothing back from the end of the heap
        mallopt(mmap_max, 0)  # take large blocks from the heap too: blocks of their own are given back at once


def use_all_cores(workers: int = 0) -> None:
    """Lets a run of one process on a CPU use every core that its data workers leave.

    `accelerate launch` sets OMP_NUM_THREADS to 1, which would leave the other cores idle; another value is the user's
    own and is respected. A core that a data worker needs is left to it: the threads of an operation wait for each
    other, so one that is interrupted holds up all of them.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is not None and (threads != "1" or "ACCELERATE_MIXED_PRECISION" not in os.environ):
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max((cores or 1) - workers, 1))
