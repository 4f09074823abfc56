"""Coroutines of the server, which yield what they wait for, in a test of asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from app.contract import Pending


def running(coroutine: Any) -> asyncio.Future[Any]:
    """Run one, as a request of the server does."""
    runner = _Runner(coroutine)
    runner.set_result(None)
    return runner.future


class _Runner:
    def __init__(self, coroutine: Any) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(self._left)
        self._coroutine = coroutine if hasattr(coroutine, "send") else coroutine.__await__()
        self._pending: Pending | None = None

    def set_result(self, value: Any) -> None:
        self._continue(self._coroutine.send, value)

    def set_exception(self, error: BaseException) -> None:
        self._continue(self._coroutine.throw, error)

    def _continue(self, go_on: Any, told: Any) -> None:
        self._pending = None
        try:
            pending = go_on(told)
        except StopIteration as end:
            if not self.future.done():
                self.future.set_result(end.value)
        except BaseException as error:
            if not self.future.done():
                self.future.set_exception(error.with_traceback(None))
        else:
            self._pending = pending
            pending.submit(self)

    def _left(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() and self._pending is not None:
            self._pending.abandon()
