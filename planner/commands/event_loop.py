"""The event loop of commands that await: a Ctrl-C and SIGTERM end what runs in it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop of the server's kind: uvloop, whose sockets cost half of asyncio's.

    SIGTERM cancels it, as a Ctrl-C does: what a handler raises while the loop waits, the loop logs and forgets.
    """
    import asyncio  # slow to import

    from uvicorn.loops.auto import auto_loop_factory

    before: Any = signal.getsignal(signal.SIGTERM)
    own, terminated = os.getpid(), False

    async def cancelled_by_signal() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def end(number: int, frame: FrameType | None) -> None:
            nonlocal terminated
            if os.getpid() != own:  # one that a model's code has forked
                before(number, frame)
            terminated = True
            loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGTERM, end)
        try:
            return await work
        finally:
            signal.signal(signal.SIGTERM, before)

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        handled = callable(before) and threading.current_thread() is threading.main_thread()
        try:
            return runner.run(cancelled_by_signal() if handled else work)
        finally:
            if terminated:
                before(signal.SIGTERM, None)
