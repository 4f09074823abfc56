"""A worker of a device of streams: the stream it computes on, and the stream its results leave on."""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import cached_property
from typing import Any

from app.engine.streams.unit import UnitInFlight
from app.scheduler.types import WorkerSpec


class StreamWorker:
    """`units` are those launched and not yet reported, in the order of their launch. `stream` makes a stream."""

    def __init__(self, index: int, spec: WorkerSpec, stream: Callable[[int], Any]) -> None:
        self.index = index
        self.spec = spec
        self._make = stream
        self.stream = stream(spec.priority)
        self.out = stream(spec.priority)
        self.units: queue.SimpleQueue[UnitInFlight | None] = queue.SimpleQueue()
        self.ended = 0  # when its last unit had computed, by the host's clock

    @cached_property
    def ends(self) -> Any:
        """For its completer: what must not wait for the units behind, whose results have places on `out` already."""
        return self._make(self.spec.priority)
