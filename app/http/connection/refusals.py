"""Refusals that wait while very many connections are open.

Most refused clients send again at once, whatever `Retry-After` asks for. With 2,500 of them a server does nothing
but read and refuse: the event loop polls its sockets again and again before it calls anything else as long as 1,024 of
them have something to read, so that batches, answers and probes wait for seconds. A client sends again only when it
has its answer. So refusals are delayed, and no connection is read twice in one turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

FREE = 512  # open connections up to which a refusal leaves at once: half of what the loop polls at a time
#: A refusal costs 25 us on a connection that is kept, and 150 us with a new one for each: at most a third of a core.
_EVERY_S = 0.004
_AT_ONCE = 8
_LONGEST_S = 1.0  # the least value of `Retry-After`: no refusal waits longer, unless the loop is late


class RefusalQueue:
    """Refusals in order, some every 4 ms: the more there are the longer each waits, up to a second.

    They leave evenly, so that clients refused together do not retry together. `connections` returns how many
    are open. One timer, and none while nothing waits.
    """

    def __init__(self, connections: Callable[[], int]) -> None:
        self._connections = connections
        self._waiting: deque[Callable[[], object]] = deque()

    def needed(self) -> bool:
        """Whether a refusal has to wait."""
        return bool(self._waiting) or self._connections() > FREE

    def wait(self, loop: asyncio.AbstractEventLoop, refuse: Callable[[], object]) -> None:
        """Call `refuse` when its turn has come. It raises nothing."""
        if not self._waiting:
            loop.call_later(_EVERY_S, self._pass, loop)
        self._waiting.append(refuse)

    async def turn(self) -> None:
        """Wait for a turn, where that is needed."""
        if self.needed():
            loop = asyncio.get_running_loop()
            come = asyncio.Event()
            self.wait(loop, come.set)
            await come.wait()

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        count = max(_AT_ONCE, -int(-len(waiting) * _EVERY_S // _LONGEST_S))
        try:
            for _ in range(min(count, len(waiting))):
                waiting.popleft()()
        finally:  # one that raises keeps no other from its turn
            if waiting:
                loop.call_later(_EVERY_S, self._pass, loop)
