"""Lowers the priority of a worker thread while it runs best-effort units, if the system lets it raise it again.

A thread may always lower its own priority. Raising it again requires a privilege (CAP_SYS_NICE, or RLIMIT_NICE), which
containers often lack. Without it the thread would stay slow for real-time units, so this is tried first.
"""

from __future__ import annotations

import functools
import os
import sys
import threading

_NICER = 10  # of 19: on a shared core the other thread gets about nine tenths of the time


class Niceness:
    """The priority of the calling thread. Each thread must have its own object."""

    def __init__(self) -> None:
        self._own = os.getpriority(os.PRIO_PROCESS, 0)  # on Linux 0 is the thread
        self._nice = False

    def set(self, nice: bool) -> None:
        """Lower the priority from now on, or restore it."""
        if nice is not self._nice:
            os.setpriority(os.PRIO_PROCESS, 0, min(19, self._own + _NICER) if nice else self._own)
            self._nice = nice


@functools.cache
def may_be_nice() -> bool:
    """Whether a thread of this process can lower its priority and restore it. Tried once, on a thread of its own.

    Linux only: elsewhere this would change the priority of the whole process.
    """
    if sys.platform != "linux":
        return False
    came_back: list[bool] = []
    thread = threading.Thread(target=_try, args=(came_back,), name="niceness")
    thread.start()
    thread.join()
    return came_back == [True]


def _try(came_back: list[bool]) -> None:
    try:
        niceness = Niceness()
        niceness.set(True)
        niceness.set(False)
        came_back.append(True)
    except OSError:  # not allowed
        came_back.append(False)
