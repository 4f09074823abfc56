"""Process-wide settings. Building an application sets none of them, so two can live in one process.

Freed memory. glibc maps each large block separately and returns it to the system when it is freed, so every batch pays
for its activations page by page. The threshold for "large" grows to at most 32 MiB with the blocks that are freed. With
small batches it stays low: when this was written, a convolutional network at one row served 53 rows/s, and 69 with the
threshold at its maximum.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of mallopt
_MMAP_BYTES = 32 << 20  # the largest threshold that glibc accepts
_TRIM_BYTES = 2 * _MMAP_BYTES  # free memory kept at the top of a heap: the ratio that glibc itself uses
#: glibc would make eight for each core, by thread, and each keeps what loads and trials on it once held: with this a
#: server had 330 MiB after 20 loads of a transformers folder, not 494.
_ARENAS = 2
_OTHER_FILES = 256  # open files besides allowed connections: files, pipes, and probes above the limit
_HELPER_NAME = "aside"
_PR_SET_NAME = 15  # of prctl
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def prepare() -> None:
    """All settings for a process that runs models. Call it before torch and numpy are imported."""
    quiet_native_libraries()
    keep_freed_memory()
    # Shortens a worker's wait for the interpreter lock while the event loop is busy. With Python's interval of 5 ms a
    # batch of the `mlp` benchmark began 2.1 ms after it was pushed; with 0.2 ms, after 0.5 ms, and 13 % more rows were
    # served. `echo` serves at most 5 % fewer.
    sys.setswitchinterval(0.0002)


def keep_freed_memory() -> None:
    """Set glibc's thresholds and number of heaps, unless the environment sets them."""
    if any(name in os.environ for name in _MALLOC_VARIABLES):
        return
    with suppress(AttributeError, OSError, TypeError):  # musl, macOS and Windows have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_ARENA_MAX, _ARENAS)


def return_freed_memory() -> None:
    """Return memory that has been freed to the system. Takes some 20 ms for 256 MiB; other threads run meanwhile."""
    with suppress(AttributeError, OSError, TypeError):  # as above
        ctypes.CDLL(None).malloc_trim(0)


def quiet_native_libraries() -> None:
    """Call before torch and numpy are imported: idle OpenMP threads must sleep, not spin on cores that serve HTTP."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's, which solves control tables beside live traffic
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def tune_garbage_collector() -> None:
    """Exclude all objects that exist now from garbage collection, and collect less often.

    torch creates half a million objects that live for ever. Walking them blocks the event loop for 0.1 s each time.
    Calls make few cycles: a collection per 20,000 new objects finds them early enough.
    """
    gc.collect()
    gc.freeze()
    collect_new_objects(often=False)


def collect_new_objects(*, often: bool) -> None:
    """How many new objects Python's own collections walk: fewer if they are more often. Then they leave older ones
    alone.
    """
    gc.set_threshold(*((2_000, 10_000, 50) if often else (20_000, 20, 50)))


def allow_open_files(connections: int) -> int | None:
    """Raise the limit of open files for so many connections. Returns the new limit if it is still too low, else None.

    At the limit no connection is accepted any more, not even a probe's. The soft limit is often 1,024, and the hard
    limit far higher.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return None if allowed == needed else allowed


def never_blocking(fd: int) -> int:
    """Another descriptor of the same file, whose writes fail where they would wait; `fd` itself where there is none.

    The flag belongs to the open file, which other processes may share, so the file is opened again. A socket, as
    systemd gives, and some systems' pipes cannot be.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return fd


def end_at_standstill(within_ns: int, output: int) -> Callable[[], None]:
    """Write the stacks of all threads to `output` and end the process, with status 14, unless what this returns is
    called at least so often.

    Only functions of libc do it, as other code may hold the interpreter lock for ever. A timer's signal calls alarm,
    with the signal's number, 26, as seconds; the alarm's signal calls _exit. A process that was stopped, by a Ctrl-Z, a
    debugger or `docker pause`, finds the timer's signal when it goes on, and has those seconds to call.
    """
    if sys.platform != "linux":
        return lambda: None
    libc, timer = ctypes.CDLL("librt.so.1"), ctypes.c_void_p()
    libc.signal(signal.SIGVTALRM, libc.alarm)
    libc.signal(signal.SIGALRM, libc._exit)
    faulthandler.register(signal.SIGALRM, output, chain=True)
    # struct sigevent, natively aligned
    libc.timer_create(time.CLOCK_MONOTONIC, struct.pack("Pi52x", 0, signal.SIGVTALRM), ctypes.byref(timer))

    def called() -> None:
        signal.alarm(0)
        libc.timer_settime(timer, 0, struct.pack("4l", 0, 0, *divmod(within_ns, 10**9)), None)

    return called


def thread_stacks(*names: str) -> str:
    """The present stacks of all threads whose names begin with one of `names`."""
    frames = sys._current_frames()
    threads = [one for one in threading.enumerate() if one.name.startswith(names) and one.ident in frames]
    return "".join(f"{one.name}:\n{''.join(traceback.format_stack(frames[one.ident or 0]))}" for one in threads)


def let_children_end(descriptors: Callable[[], Iterable[int]]) -> None:
    """Processes that a model's code forks end by SIGTERM, and keep neither listeners nor connections of this one open.

    They inherit uvicorn's handlers, which only tell its event loop, so that `Pool.terminate` would wait for ever, also
    if its signal came before they are removed: it is blocked until then. And a client whose idle connection this
    process closes would send its next request to nobody.
    """
    own = threading.local()  # `mask`: of a thread that forks

    def block() -> None:
        own.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def as_before() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, own.mask)

    def in_child() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        as_before()
        for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to it too, while requests still need it
            signal.signal(number, signal.SIG_IGN)
        for fd in descriptors():
            with suppress(OSError, ValueError):  # it has just been closed
                one = socket.socket(fileno=fd)
                one.detach() if one.family == socket.AF_UNIX else one.close()  # a pipe that has got its number

    os.register_at_fork(before=block, after_in_parent=as_before, after_in_child=in_child)


class _Terminated(BaseException):
    """Not SystemExit, which a model's code may raise and which then is an error of the model."""


@contextmanager
def ended_by_signals(status: int) -> Iterator[None]:
    """SIGTERM leaves this context by SystemExit, so that what has begun is cleaned up, as by a Ctrl-C. SIGHUP, which a
    terminal sends as it closes, counts as SIGTERM; where it is ignored, as under nohup, it stays so.

    The first process of a container is deaf to a signal without a handler.
    """

    own = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # one that a model's code has forked: it has nothing to clean up
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise _Terminated

    def hang_up(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)  # to its present handler: that of a server drains

    wanted = [(signal.SIGTERM, leave), (signal.SIGHUP, hang_up)]
    before = {one: signal.signal(one, to) for one, to in wanted if signal.getsignal(one) != signal.SIG_IGN}
    try:
        yield
    except _Terminated:
        raise SystemExit(status) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_within(seconds: float, status: int) -> None:
    """End the process with this status after so long, and its children, if it has not ended by itself: threads and
    processes that a model's code has started may never end.
    """

    def end() -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        os._exit(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def name_helper_threads(loop: asyncio.AbstractEventLoop, threads: int) -> None:
    """Give the event loop its helper threads, for decoding, compression and files. They have a name in Linux too."""
    loop.set_default_executor(ThreadPoolExecutor(threads, _HELPER_NAME, _name_thread, (_HELPER_NAME,)))


def _name_thread(name: str) -> None:
    """Name the calling thread for `top -H` and /proc, on Linux: `loadtest.generator.front_loads` finds it there."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
