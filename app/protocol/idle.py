"""Closes connections that are idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleTimer:
    """One timer over any number of requests: when it goes off, it looks when the last answer was.

    uvicorn makes a timer with each answer and cancels it with the next request. `busy` tells whether a request is being
    answered; `close` is called after `seconds` without one, never before the first answer.
    """

    __slots__ = ("_busy", "_close", "_loop", "_seconds", "_since", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        busy: Callable[[], bool],
        close: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._busy = busy
        self._close = close
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def answered(self) -> None:
        """All requests that have come are answered."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._busy():
            return  # its answer sets the timer again
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._close()
