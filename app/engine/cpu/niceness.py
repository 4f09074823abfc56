"""Worker threads that run best-effort units give way to the others, where the system lets a thread go back from that.

A thread may always lower its own priority; to raise it again takes a privilege (CAP_SYS_NICE, or RLIMIT_NICE), which
containers often lack. A thread that could not go back would stay slow for real-time units too, so this is tried first.
"""

from __future__ import annotations

import functools
import os
import sys
import threading

_NICER = 10  # of 19; a core that both want goes to the other for about nine tenths of the time


class Niceness:
    """Of the thread that calls it, which calls nobody else's."""

    def __init__(self) -> None:
        self._own = os.getpriority(os.PRIO_PROCESS, 0)  # on Linux 0 is the thread
        self._nice = False

    def set(self, nice: bool) -> None:
        """Give way to other threads from now on, or no more. Does nothing where nothing changes."""
        if nice is not self._nice:
            os.setpriority(os.PRIO_PROCESS, 0, min(19, self._own + _NICER) if nice else self._own)
            self._nice = nice


@functools.cache
def may_be_nice() -> bool:
    """Whether a thread of this process can give way and come back. Tried once, on a thread that ends with it.

    On Linux alone: elsewhere this would be the priority of the whole process.
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
