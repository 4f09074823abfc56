"""Helper threads for decoding, encoding and compression. Real-time requests get them first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque())  # real time, best effort

    async def run(self, best_effort: bool, function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Run the function on a thread. Once begun it runs to its end, even if the caller is cancelled."""
        await self.acquire(best_effort)
        return await self.run_acquired(function, *args, **named)

    async def acquire(self, best_effort: bool) -> None:
        """Wait for a thread. The caller must then call `run_acquired` at once."""
        if self._free > (self._kept if best_effort else 0):
            self._free -= 1
        else:
            await self._queue(best_effort)

    async def run_acquired(self, function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Like `run`, after `acquire`."""
        running = asyncio.ensure_future(asyncio.to_thread(function, *args, **named))
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        finally:
            del running  # its exception has this frame: a cycle, which would keep a refused body until it is collected

    def _ended(self, running: asyncio.Task[_T]) -> None:
        if not running.cancelled():
            running.exception()  # marks it as retrieved: asyncio would log it if the caller was cancelled
        self._give_back()

    async def _queue(self, best_effort: bool) -> None:
        """Wait until `_give_back` passes a thread to this caller."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[best_effort].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it got the thread in the same turn of the loop
                self._give_back()
            raise

    def _give_back(self) -> None:
        """A thread is free: pass it to the first waiting caller that may use it."""
        self._free += 1
        for queue, kept in zip(self._waiting, (0, self._kept), strict=True):
            while queue and self._free > kept:
                turn = queue.popleft()
                if not turn.done():  # else it was cancelled
                    turn.set_result(None)
                    self._free -= 1
