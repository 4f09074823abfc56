"""Helper threads for decoding, encoding and compression. Real-time requests get them first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

from app.contract import Klass, Waiter, wait

_P = ParamSpec("_P")
_T = TypeVar("_T")


class HelperThreads:
    """Runs functions on the event loop's executor, with a limit per class. Used on the event loop.

    At most `threads` functions run at once. Best-effort requests leave one thread free, unless there is only one.
    Waiting functions start in order of class, then of arrival.
    """

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._kept = 1 if threads > 1 else 0  # free threads that best-effort requests leave alone
        self._waiting: tuple[deque[Work], ...] = (deque(), deque())  # by class

    def run(self, klass: Klass, function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> Awaitable[_T]:
        """What the function returns or raises. Once begun it runs to its end, even if its caller has left."""
        return wait(Work(self, klass, partial(function, *args, **named)))

    def add(self, work: Work) -> None:
        """Begin this work as soon as there is a thread for it."""
        self._waiting[work.klass].append(work)
        self._begin()

    def remove(self, work: Work) -> None:
        """It has not begun, and is not needed any more."""
        self._waiting[work.klass].remove(work)

    def _begin(self) -> None:
        for queue, kept in zip(self._waiting, (0, self._kept), strict=True):
            while queue and self._free > kept:
                self._free -= 1
                work = queue.popleft()
                try:
                    running = asyncio.get_running_loop().run_in_executor(None, work.begin())
                except RuntimeError as error:  # the system starts no more threads
                    self._free += 1
                    work.failed(error)
                else:
                    running.add_done_callback(partial(self._ended, work))

    def _ended(self, work: Work, running: asyncio.Future[object]) -> None:
        self._free += 1
        if running.cancelled():  # the loop is being closed
            return
        self._begin()
        if (error := running.exception()) is None:
            work.ended(running.result())
        else:
            work.failed(error)


class Work:
    """A function for a helper thread. Implements contract.Pending."""

    def __init__(self, threads: HelperThreads, klass: Klass, function: Callable[[], object]) -> None:
        self.klass = klass
        self._threads = threads
        self._function: Callable[[], object] | None = function
        self._waiter: Waiter

    def submit(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._threads.add(self)

    def abandon(self, heir: Waiter) -> None:
        self._waiter = heir
        if self._function is not None:  # it waits for a thread
            self._threads.remove(self)
            heir.set_result(None)

    # called by HelperThreads

    def begin(self) -> Callable[[], object]:
        """There is a thread: what it is to run."""
        function, self._function = self._function, None
        assert function is not None  # it begins once
        return function

    def ended(self, value: object) -> None:
        self._waiter.set_result(value)

    def failed(self, error: BaseException) -> None:
        self._waiter.set_exception(error)
