"""Settings of the process that trains: its threads, its memory, what its libraries print."""

import ctypes
import os
import platform

import torch


def quiet_libraries() -> None:
    """Turns off the bars of loading and saving files, so that what is left on the screen is training's own."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def keep_freed_memory() -> None:
    """Lets training on a CPU use freed memory again; glibc gives what a step frees back to the system.

    Each step would have all its pages mapped and zeroed anew.
    """
    if platform.libc_ver()[0] == "glibc" and not torch.cuda.is_available():
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_max = -1, -4  # malloc.h
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)


def use_all_cores(workers: int = 0) -> None:
    """Lets one CPU process use every core that its data workers leave; `accelerate launch` sets one thread.

    On a core that a worker needs too, the threads of each operation wait for the one that was interrupted.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max((cores or 1) - workers, 1))
