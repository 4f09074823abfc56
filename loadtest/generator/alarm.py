"""Timers that are more exact than those of an event loop: a Linux timerfd, 20 to 50 us late.

Without one it is the loop's timer, whose lag is measured as any other.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_NS = 1_000_000_000
_MONOTONIC, _ABSOLUTE = 1, 1  # CLOCK_MONOTONIC, TFD_TIMER_ABSTIME

clock = time.monotonic_ns  # CLOCK_MONOTONIC, which the timerfd counts in


class _Times(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class TimerFd:
    def __init__(self, callback: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._fd: int = libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._times = _Times()
        self._reference = ctypes.byref(self._times)
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._ring)

    def set(self, at_ns: int) -> None:
        # 0 would disarm the timer; an instant in the past rings at once
        self._times.at_s, self._times.at_ns = divmod(max(at_ns, 1), _NS)
        self._settime(self._fd, _ABSOLUTE, self._reference, None)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it has been set again since it rang
            return
        self._callback()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class LoopTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._at_ns = 0

    def set(self, at_ns: int) -> None:
        self.close()
        self._at_ns = at_ns
        self._handle = self._loop.call_later(max(0, at_ns - clock()) / _NS, self._ring)

    def _ring(self) -> None:
        if clock() < self._at_ns:  # loops round, and count from the beginning of their turn
            self.set(self._at_ns)
        else:
            self._callback()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


#: `set(at_ns)` has the callback called once on the loop, never before that instant. It replaces an earlier `set`.
Alarm = TimerFd | LoopTimer


def make(callback: Callable[[], None]) -> Alarm:
    """The most exact alarm that this platform has, for the running loop."""
    try:
        return TimerFd(callback)
    except (OSError, AttributeError, NotImplementedError):  # no such call, or a loop without add_reader
        return LoopTimer(callback)
