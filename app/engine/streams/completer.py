"""The threads that wait for the device: one for each worker's units, and others for whatever else must be over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from app.engine.device import Completion, completed, failed, fault_of
from app.engine.streams.device_pool import Copies
from app.engine.streams.runtime import Runtime
from app.engine.streams.unit import UnitInFlight
from app.engine.streams.worker import StreamWorker
from app.scheduler.types import Fault


class Completer:
    """Waits for the units of one worker, the oldest first, and reports them. `lose` is told that the device failed."""

    def __init__(
        self,
        worker: StreamWorker,
        runtime: Runtime,
        copies: Copies,
        clock: Callable[[], int],
        lose: Callable[[BaseException], None],
    ) -> None:
        self._worker = worker
        self._runtime = runtime
        self._copies = copies
        self._clock = clock
        self._lose = lose
        self.thread = threading.Thread(target=self._main, name=f"worker {worker.index}", daemon=True)

    def complete(self, unit: UnitInFlight) -> None:
        """Wait until the unit is over, and report it."""
        try:
            if unit.lost is not None:
                raise unit.lost
            self._runtime.synchronize(unit.block.out_event)
            unit.conclude(self._runtime, lambda: self._worker.ends)
            self._copies.over(unit.number)
            unit.end()
            completion = self._completion(unit)
        except BaseException as exc:
            # Nobody knows what the device still reads and writes: the unit keeps what it has, for good.
            unit.lost = exc
            self._lose(exc)
            completion = failed(unit.unit_id, Fault.DEVICE, exc)
        completion.worker = self._worker.index
        unit.report(completion)

    def _completion(self, unit: UnitInFlight) -> Completion:
        error = unit.error
        if error is None:
            ran, self._worker.ended = unit.settle(self._runtime, self._worker.ended, self._clock)
            return completed(unit.unit_id, ran)
        unit.memory.blocks.give_back(unit.block)
        completion = failed(unit.unit_id, fault_of(error), error)
        if completion.outcome.error is Fault.DEVICE:
            self._lose(error)
        return completion

    def _main(self) -> None:
        self._runtime.attach()
        with torch.inference_mode():
            while (unit := self._worker.units.get()) is not None:
                self.complete(unit)
                del unit  # outputs belong to the callers now


class EventWatcher:
    """Waits for events that no unit waits for, and then calls what was sent with them. One after another."""

    def __init__(self, name: str, runtime: Runtime, lose: Callable[[BaseException], None]) -> None:
        self._runtime = runtime
        self._lose = lose
        self.items: queue.SimpleQueue[tuple[Sequence[Any], Callable[[], None]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def send(self, events: Sequence[Any], then: Callable[[], None]) -> None:
        """Call `then` when the events have fired; never, if the device fails."""
        self.items.put((events, then))

    def end(self) -> None:
        self.items.put(None)

    def next(self) -> bool:
        """Handle one item, waiting for it; False at the end."""
        item = self.items.get()
        if item is None:
            return False
        events, then = item
        try:
            for event in events:
                self._runtime.synchronize(event)
            then()
        except BaseException as exc:
            self._lose(exc)
        return True

    def _main(self) -> None:
        self._runtime.attach()
        while self.next():
            pass
