"""Sends the state of the server to all who watch the live page, a few times a second.

While nobody watches there is no timer, and the engine reports no batches. Each message is made once, however many
watch. All of it runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from app.contract import Catalog, Plan
from app.errors import NotReady, QueueFull
from app.lifecycle import Lifecycle
from app.observe.metrics import Snapshot
from app.observe.ui import events
from app.scheduler.types import Outcome, Unit

INTERVAL_S = 0.4
MOST_WATCHERS = 16
MOST_BATCHES = 256  # kept between two ticks; at four ticks a second a page can tell no more of them apart
_MOST_MESSAGES = 16  # that a slow page may be behind: six seconds


class Source(Protocol):
    """What the hub needs of the engine, which imports `observe` and cannot be imported here."""

    clock: Callable[[], int]

    def snapshot(self) -> Snapshot: ...
    def plans(self) -> list[Plan]:
        """In the order of the snapshot's models."""
        ...

    def watch(self, on_ended: Callable[[Unit, Outcome, int, int], None] | None) -> None: ...


class Watcher:
    """The messages for one page: `async for message in watcher`, until the stream ends."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._came = asyncio.Event()
        self._over = False

    def tell(self, message: bytes) -> bool:
        """Whether there was room. If not, all that waits is dropped, and the page needs `models` again."""
        if len(self._messages) >= _MOST_MESSAGES:
            self._messages.clear()
            return False
        self._messages.append(message)
        self._came.set()
        return True

    def end(self) -> None:
        """What waits is still given out."""
        self._over = True
        self._came.set()

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> bytes:
        while not self._messages:
            if self._over:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        return self._messages.popleft()


class Hub:
    """Constructed on the event loop. `about` is each page's first message; `close` ends all streams."""

    def __init__(
        self,
        source: Source,
        catalog: Catalog,
        health: Lifecycle,
        about: Mapping[str, Any],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._source = source
        self._catalog = catalog
        self._health = health
        self._interval_s = interval_s
        self._hello = events.encoded("hello", events.hello(about, round(interval_s * 1000)))
        self._origin = source.clock()
        self._batches: deque[events.Batch] = deque(maxlen=MOST_BATCHES)  # the newest since the last tick
        self._ended = 0  # batches since the last tick
        self._watchers: list[Watcher] = []
        self._timer: asyncio.TimerHandle | None = None
        self._seen: events.Seen | None = None
        self._models = b""

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """A watcher, while this is open. Raises QueueFull where too many watch, NotReady while the server stops."""
        if self._health.closing:
            raise NotReady("the server is shutting down")
        if len(self._watchers) >= MOST_WATCHERS:
            raise QueueFull(f"{MOST_WATCHERS} pages watch already", retry_after_s=5)
        watcher = Watcher()
        try:
            self._join(watcher)
            yield watcher
        finally:
            self._leave(watcher)

    def close(self) -> None:
        """End all streams, saying so."""
        self._end("the server has stopped")

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def _join(self, watcher: Watcher) -> None:
        watcher.tell(self._hello)
        self._watchers.append(watcher)
        if len(self._watchers) > 1:
            watcher.tell(self._models)
            return
        self._seen = None
        self._take_batches()
        self._source.watch(self._on_ended)
        self._tick()

    def _leave(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        if not self._watchers:
            self._rest()

    def _rest(self) -> None:
        """Nobody watches: no timer, and the engine tells nothing."""
        self._source.watch(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, why: str) -> None:
        message = events.encoded("bye", {"reason": why})
        for watcher in self._watchers:
            watcher.tell(message)
            watcher.end()
        self._watchers.clear()
        self._rest()

    def _tick(self) -> None:
        self._timer = None
        if self._health.closing:
            self._end("the server is shutting down")
            return
        # First, so that a fault here, which the loop logs, does not end the ticks.
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)
        snapshot, plans = self._source.snapshot(), self._source.plans()
        messages = []
        seen = events.seen(self._catalog.index(), snapshot, plans)
        if seen != self._seen:
            self._models = events.encoded("models", events.models(seen, self._catalog.ready()))
            self._seen = seen
            messages.append(self._models)
        at_us = (self._source.clock() - self._origin) // 1000
        batches, left_out = self._take_batches()
        tick = events.tick(at_us, self._health.ready(), snapshot, plans, batches, left_out)
        messages.append(events.encoded("tick", tick))
        for watcher in self._watchers:
            if not all(map(watcher.tell, messages)):
                watcher.tell(self._models)

    def _on_ended(self, unit: Unit, outcome: Outcome, began: int, ended: int) -> None:
        """Called for each unit while somebody watches."""
        self._ended += 1
        self._batches.append(events.batch(unit, outcome, began - self._origin, ended - began))

    def _take_batches(self) -> tuple[list[events.Batch], int]:
        """Those since the last tick, oldest first, and how many more there were before them."""
        batches, left_out = list(self._batches), self._ended - len(self._batches)
        self._batches.clear()
        self._ended = 0
        return batches, left_out
