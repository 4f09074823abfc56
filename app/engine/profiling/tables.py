"""Solves control tables for policies that use them, in a process of their own.

Until the tables of a model are solved, its batches are formed as by `no_wait`. They are solved again when its profile
has been measured, or live batches have corrected it, and enter the scheduler as an input.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from app.child import Child
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables


class Solver:
    """Solves control tables in a child process, one at a time. It is started when first asked, and ended by `close`.

    Solving takes from a tenth of a second to seconds. On a thread, at 6,000 requests a second, it made the mean latency
    5 to 10 times as long meanwhile.
    """

    _child: Child | None = None

    async def solve(self, *args: Any, **named: Any) -> ControlTables:
        """As `control.solve`. The child ends when this is cancelled.

        Raises what `control.solve` raises, OSError if there is no process, and EOFError if it has ended early.
        """
        if self._child is None or self._child.process.poll() is not None:
            await self.close()
            self._child = Child(idle=True)
        try:
            return cast(ControlTables, await asyncio.to_thread(self._child.ask, control.solve, *args, **named))
        except asyncio.CancelledError:
            self._child.process.kill()  # the thread, which waits for an answer, ends it
            self._child = None
            raise

    async def close(self) -> None:
        """End the child. Nothing is being solved."""
        if self._child is not None:
            await asyncio.to_thread(self._child.end)
