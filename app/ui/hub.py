"""Sends the state of the server to all open live pages, a few times a second.

Without open pages there is no timer and the engine reports no batches. Only a sample is kept every ten seconds. Each
message is made once for all pages. All of it runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from app.contract import Catalog
from app.errors import NotReady, QueueFull
from app.lifecycle import Lifecycle
from app.observe.logs import LastErrors
from app.observe.snapshot import Snapshot
from app.scheduler.types import Outcome, Unit
from app.ui import messages
from app.ui.history import History, Machine

INTERVAL_S = 0.4
MOST_WATCHERS = 16
MOST_BLOCKS = 256  # of batches in a tick: a page cannot draw more of them
_MOST_MESSAGES = 16  # queued for a slow page: six seconds

#: Called with each ended unit, its outcome, and when it began and ended.
OnUnitEnd = Callable[[Unit, Outcome, int, int], None]


class Watcher:
    """The messages for one page. `next` waits for each; None: the stream has ended."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.next = self._messages.get

    def send(self, message: bytes) -> bool:
        """Queue a message. If the queue is full, empty it and return False: the page then needs a new start."""
        if self._messages.qsize() >= _MOST_MESSAGES:
            while not self._messages.empty():
                self._messages.get_nowait()
            return False
        self._messages.put_nowait(message)
        return True

    def end(self) -> None:
        """End the stream after the queued messages."""
        self._messages.put_nowait(None)


class Source(Protocol):
    """The engine, as the hub sees it."""

    clock: Callable[[], int]

    def snapshot(self) -> Snapshot: ...
    def watch(self, on_unit_end: OnUnitEnd | None) -> None: ...


class Hub:
    """Must be constructed on the event loop. `about`: the content of each page's first message.

    `machine` returns what the process uses; it raises nothing.
    """

    def __init__(
        self,
        source: Source,
        catalog: Catalog,
        health: Lifecycle,
        about: Mapping[str, Any],
        errors: LastErrors,
        machine: Callable[[], Machine],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._clock, self._snapshot, self._watch = source.clock, source.snapshot, source.watch
        self._catalog = catalog
        self._health = health
        self._interval_s = interval_s
        self._hello = messages.encoded("hello", messages.hello(about, round(interval_s * 1000)))
        self._origin = source.clock()
        self._errors = errors
        self._machine = machine
        self._history = History()
        self._batches: list[messages.Drawn] = []  # since the last tick
        self._errors_sent = 0
        self._watchers: list[Watcher] = []
        self._timer: asyncio.TimerHandle | None = None
        self._models_state: messages.ModelsState | None = None
        self._models = b""

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """A watcher for one page. Raises QueueFull if too many pages are open, NotReady while the server stops."""
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

    def record(self) -> None:
        """Keep a sample for pages that are opened later, if one is due. Called about once a second."""
        at_us = self._now_us()
        if self._history.due(at_us):
            self._history.add(at_us, self._snapshot(), self._machine())

    def close(self) -> None:
        """End all streams with a last message."""
        self._end("the server has stopped")

    def _join(self, watcher: Watcher) -> None:
        watcher.send(self._hello)
        watcher.send(self._history_message())
        self._watchers.append(watcher)
        if len(self._watchers) > 1:
            watcher.send(self._models)
            return
        self._models_state = None
        self._batches, self._errors_sent = [], self._errors.total
        self._watch(self._on_ended)
        self._tick()

    def _leave(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        if not self._watchers:
            self._pause()

    def _pause(self) -> None:
        """No page is open: stop the timer and the engine's reports."""
        self._watch(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, why: str) -> None:
        message = messages.encoded("bye", {"reason": why})
        for watcher in self._watchers:
            watcher.send(message)
            watcher.end()
        self._watchers.clear()
        self._pause()

    def _tick(self) -> None:
        self._timer = None
        if self._health.closing:
            self._end("the server is shutting down")
            return
        # Set first, so that an exception below, which the event loop logs, does not end the ticks.
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)
        batches, self._batches = self._batches, []
        snapshot, news = self._snapshot(), []
        state = messages.models_state(self._catalog.index(), snapshot)
        if state != self._models_state:
            self._models = messages.encoded("models", messages.models(state, self._catalog.ready()))
            self._models_state = state
            news.append(self._models)
        blocks = messages.merge_batches(batches, MOST_BLOCKS, round(self._interval_s * 1e6))
        errors, self._errors_sent = self._errors.since(self._errors_sent), self._errors.total
        tick = messages.tick(self._now_us(), self._health.ready(), snapshot, blocks, errors, self._machine())
        news.append(messages.encoded("tick", tick))
        for watcher in self._watchers:
            if not all(map(watcher.send, news)):
                watcher.send(self._history_message())
                watcher.send(self._models)

    def _history_message(self) -> bytes:
        return messages.encoded("history", {**self._history.as_dict(), "errors": self._errors.since(0)})

    def _on_ended(self, unit: Unit, outcome: Outcome, began: int, ended: int) -> None:
        """The engine calls this for each ended unit while a page is open."""
        self._batches.append(messages.batch(unit, outcome, began - self._origin, ended - began))

    def _now_us(self) -> int:
        return (self._clock() - self._origin) // 1000
