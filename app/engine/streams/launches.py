"""What the launchers do for each message: copy rows, launch units, take leave of unloaded models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.engine.device import Freed, Report
from app.engine.pool import Slots
from app.engine.streams.captures import Streams
from app.engine.streams.device_pool import Copies, StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.launcher import Launcher
from app.engine.streams.runtime import Health, Runtime
from app.engine.streams.step import Failed
from app.engine.streams.unit import UnitRun
from app.engine.streams.worker import EventWatcher, StreamWorker
from app.scheduler.types import Fault


@dataclass(slots=True)
class Callbacks:
    """Whom the device tells of its units and slots, see `Device.start`."""

    report: Report
    freed: Freed


class Launches:
    """`copy`, `launch`, `watch` and `unload` are called on the shared launcher, in the order of their messages."""

    def __init__(
        self,
        runtime: Runtime,
        health: Health,
        workers: Sequence[StreamWorker],
        *,
        streams: Streams,
        copies: Copies,
        watcher: EventWatcher,
        leaving: EventWatcher,
        own_launcher: Callable[[str], Launcher],
        clock: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._health = health
        self._streams = streams
        self._workers = workers
        self._copies = copies
        self._watcher = watcher
        self._leaving = leaving
        self._own_launcher = own_launcher
        self._clock = clock
        self.in_stream = streams.take(0)
        self.callbacks: Callbacks

    def copy(self, pool: StreamPool) -> None:
        slots = pool.arrived()
        if self._health.lost is None:
            pool.copy_in(self._runtime, self.in_stream, slots)

    def launch(self, unit: UnitRun) -> None:
        """Launch the steps of a unit that are planned, or have the model's own launcher do it."""
        executor = unit.executor
        if executor.unloaded:  # and its own launcher ends, if it has one
            unit.stop(Failed(Fault.MODEL, RuntimeError("the model has been unloaded")))
            self._launch(unit)
            return
        if executor.launcher is None and not executor.known:  # no batch has run yet: it may block, or compile
            executor.launcher = self._own_launcher(executor.model.info.name)
        if executor.launcher is None:
            self._launch(unit)
        else:
            executor.launcher.send(self._launch, unit)

    def _launch(self, unit: UnitRun) -> None:
        unit.launch(self._runtime, self._health, self._clock)

    def watch(self, pool: StreamPool, slots: Slots) -> None:
        """Slots were given back whose copies may not be over."""
        if self._health.lost is None:
            number, event = pool.in_event(slots)
            self._watcher.send([event], partial(self._copied, number, pool, slots))

    def unload(self, executor: StreamExecutor) -> None:
        if executor.unloaded:
            return
        executor.unloaded = True
        if executor.launcher is None:
            self._release_later(executor)
        else:
            executor.launcher.send(self._release_later, executor)
            executor.launcher.end()

    def _release_later(self, executor: StreamExecutor) -> None:
        """On the model's launcher, which has enqueued all of its units. Until the streams have come this far, a graph
        may be running, and rows may be on their way into memory that the next model would be given.
        """
        if self._health.lost is None:
            streams = [self.in_stream, *(stream for worker in self._workers for stream in (worker.stream, worker.out))]
            events: list[Any] = [self._runtime.event() for _ in streams]
            for event, stream in zip(events, streams, strict=True):
                self._runtime.record(event, stream)
            self._leaving.send(events, partial(self._release, executor))

    # on the event watchers

    def _copied(self, number: int, pool: StreamPool, slots: Slots) -> None:
        self._copies.over(number)
        self.callbacks.freed(pool, slots)

    def _release(self, executor: StreamExecutor) -> None:
        for memory in executor.memories:
            if memory.graphs is not None:
                self._streams.release(memory.graphs.capture, memory.graphs.graphs)
        executor.memories.clear()
