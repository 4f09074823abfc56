"""Delays refusals while very many connections are open.

Most refused clients retry at once, whatever `Retry-After` says. With 2,500 of them a server only reads and refuses: as
long as 1,024 sockets are readable, uvloop polls them again and again before it calls anything else, so batches, answers
and probes wait for seconds. A client retries only after it has its answer. So refusals are delayed, and no connection
is read twice in one turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from app.contract import Waiter

FREE = 512  # with no more open connections, refusals are not delayed: half of what the loop polls at a time
#: 8 refusals every 4 ms cost at most a third of a core: 25 us each on a kept connection, 150 us on a new one.
_EVERY_S = 0.004
_AT_ONCE = 8
_LONGEST_S = 1.0  # the least value of `Retry-After`: no refusal waits longer, unless the loop is late


class RefusalQueue:
    """Sends refusals in order, a few every 4 ms. The more there are, the longer each waits, up to a second.

    They are sent evenly, so that clients refused together do not retry together. `connections` returns how many are
    open. There is one timer, and none while nothing waits.
    """

    def __init__(self, connections: Callable[[], int]) -> None:
        self._connections = connections
        self._waiting: deque[Waiter] = deque()

    def needed(self) -> bool:
        """Whether a refusal has to wait."""
        return bool(self._waiting) or self._connections() > FREE

    def submit(self, waiter: Waiter) -> None:
        """Tell the waiter when the turn of its refusal has come. The queue is a contract.Pending for all of them."""
        if not self._waiting:
            self._pass_later()
        self._waiting.append(waiter)

    def abandon(self) -> bool:
        """A refusal whose client has left keeps its turn, which costs nothing."""
        return False

    def _pass_later(self) -> None:
        asyncio.get_running_loop().call_later(_EVERY_S, self._pass)

    def _pass(self) -> None:
        waiting = self._waiting
        count = max(_AT_ONCE, -int(-len(waiting) * _EVERY_S // _LONGEST_S))
        try:
            for _ in range(min(count, len(waiting))):
                waiting.popleft().set_result(None)
        finally:  # if one raises, the others still get their turn
            if waiting:
                self._pass_later()
