"""What the server sets for its whole process. Building an application sets none of it, so two can live in one process.

Freed memory. glibc maps large blocks one by one and gives them back when they are freed. From which size on, it learns
from the blocks that are freed, up to 32 MiB; until then every batch pays for its activations page by page. A model that
only ever runs small batches stays there: a convolutional network at one row served 53 rows/s, and 69 with the threshold
set to where it would end up (`python -m experiments.costs.heap`).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them
_MMAP_BYTES = 32 << 20  # the most that glibc takes, and comes to by itself
_TRIM_BYTES = 2 * _MMAP_BYTES  # free memory at the top of a heap that is kept: as glibc sets it with the other
_OTHER_FILES = 256  # open files that are no connections of clients, and probes beyond the connections allowed
_ASIDE = "aside"
_PR_SET_NAME = 15  # of prctl
_GIVEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def prepare() -> None:
    """All that a process that computes with models sets; call it before torch and numpy are imported."""
    quiet_native_libraries()
    keep_freed_memory()
    switch_threads_often()


def keep_freed_memory() -> bool:
    """Set the thresholds, for the whole process; False where they were given or the C library has none."""
    if any(name in os.environ for name in _GIVEN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_TRIM_THRESHOLD, _TRIM_BYTES))


def quiet_native_libraries() -> None:
    """Call before torch and numpy are imported: idle OpenMP threads must sleep, not spin on cores that serve HTTP."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's, which solves control tables beside live traffic
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def tune_garbage_collector() -> None:
    """Keep the objects that exist now out of the cycle collector's way, and let it run less often.

    torch brings half a million objects that live for ever; walking them costs 0.1 s a time, on the event loop. Calls
    make few cycles: a collection per 20,000 new objects finds them early enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def allow_open_files(connections: int) -> int | None:
    """Raise the process's own limit of open files, so that so many connections fit; returns it where they do not.

    At the limit no connection is accepted any more, not even a probe's. The limit is often 1,024, and the most that it
    may be raised to far higher.
    """
    try:
        import resource  # of Unix alone
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None if needed >= connections + _OTHER_FILES else needed


def thread_stacks(*names: str) -> str:
    """Where the threads are at this moment whose names begin so."""
    frames = sys._current_frames()
    threads = [one for one in threading.enumerate() if one.name.startswith(names) and one.ident in frames]
    return "".join(f"{one.name}:\n{''.join(traceback.format_stack(frames[one.ident or 0]))}" for one in threads)


def switch_threads_often() -> None:
    """Let a worker wait less for the interpreter lock while the event loop is busy.

    With Python's 5 ms a batch of the `mlp` benchmark began 2.1 ms after it was pushed, with 0.2 ms after 0.5 ms: 13 %
    more rows; `echo` loses at most 5 %.
    """
    sys.setswitchinterval(0.0002)


def name_helper_threads(loop: asyncio.AbstractEventLoop, threads: int) -> None:
    """Give the loop the threads on which decoding, compression and file work run; Linux shows their name, too."""
    loop.set_default_executor(ThreadPoolExecutor(threads, _ASIDE, _name_thread, (_ASIDE,)))


def thread_times() -> tuple[int, int] | None:
    """Nanoseconds of CPU that the calling thread has used, and the helper threads; None where that is not known."""
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS, Windows
        return None
    helpers = (one.ident for one in threading.enumerate() if one.name.startswith(_ASIDE))
    used = sum(time.clock_gettime_ns(time.pthread_getcpuclockid(ident)) for ident in helpers if ident is not None)
    return time.thread_time_ns(), used


def _name_thread(name: str) -> None:
    """Name the calling thread for `top -H` and /proc, on Linux."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
