"""When control tables are solved, for policies that use them; and solves them, in a process of their own.

Until the tables of a model are solved, its batches are formed as by `no_wait`. They are solved again when its profile
has been measured, or live batches have corrected it, and enter the scheduler as an input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from app.child import Child
from app.scheduler.estimates.curve import Curve
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables

_UNSURE = 0.2  # error of the best known size above which no table differs from serving all that waits
#: Time between two solutions, half as long again each time up to the last. A solution takes a fortieth of a second of
#: a core, for several workers half a second, which on busy cores their batches miss: five of them in twelve seconds
#: cost an encoder on two workers up to 40 % of its mean latency.
_FIRST_NS, _FIRST_OF_SEVERAL_NS, _LONGEST_NS = 1_000_000_000, 10_000_000_000, 60_000_000_000


class Due:
    """Tables are due again when batches have run since the last: soon after the start at first, then seldom.

    They do not wait for a curve to move by more than its error: with much noise, tables would keep what was wrong at
    first (`python -m experiments.policies.learned`).
    """

    __slots__ = ("_at", "_corrections", "_gap_ns")

    def __init__(self, workers: int = 1) -> None:
        self._at = self._corrections = 0
        self._gap_ns = _FIRST_NS if workers == 1 else _FIRST_OF_SEVERAL_NS

    def again(self, curves: Sequence[Curve], now: int) -> bool:
        """Whether to solve them now. `curves`: of all stages. Cheap."""
        return now >= self._at and self._corrections < sum(curve.corrections for curve in curves)

    def begin(self, curves: Sequence[Curve], errors: Sequence[float], now: int) -> bool:
        """They are to be solved from these curves, if `errors` of the whole are small enough for it to make sense."""
        self._corrections = sum(curve.corrections for curve in curves)
        if errors and min(errors) > _UNSURE:
            return False
        self._at = now + self._gap_ns
        self._gap_ns = min(self._gap_ns * 3 // 2, _LONGEST_NS)
        return True


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
