"""The slots of a model on a device of streams (Ebird, section V).

Rules
    1. Each input has one contiguous device buffer with a row for each slot. A row is copied there as its request
       arrives, on the one in-stream, and the slot's in-event is recorded behind the copy. Rows that arrive before a
       launcher has come to the first of them share a copy where they are neighbours, and an event. Rows of best-effort
       requests are copied when their unit is pushed: until then real-time rows never wait for them.
    2. Copies run in the order in which they were enqueued. Slots are reused in any order, so each group of rows that
       are copied together has a number, and a unit waits for the in-event of the highest number among its slots, and
       for no other.
    3. A staging row is not handed out again before its in-event has fired, nor a device row before the out-event of its
       unit has: slots that are given back earlier, because nobody waits for their rows any more, are kept until then.
    4. Results are not written into slots: see `step.py`.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from app.contract import TensorSpec
from app.engine.pool import Pool, Slots, has_slab
from app.engine.streams.cuda import CudaRuntime
from app.models.base import TORCH_DTYPES

_TO_COME = sys.maxsize  # in place of the number of a copy that has not been enqueued


class InStream:
    """The stream that all rows of all models arrive on. `lock`: numbers are in the order of the stream.

    `done`: copies up to this number are over, and maybe more. Completers raise it, and may undo the raise of another.
    """

    def __init__(self, runtime: CudaRuntime, stream: Any) -> None:
        self.runtime = runtime
        self.stream = stream
        self.lock = threading.Lock()
        self.last = 0
        self.done = 0


class StreamPool(Pool):
    """A Pool in pinned memory, with a device row for each slot.

    `take`, `arrive` and `give_back` belong to the pool's owner, `copy_arrived` and `in_event` to the launchers.
    """

    def __init__(self, specs: Sequence[TensorSpec], slots: int, in_stream: InStream) -> None:
        runtime = in_stream.runtime
        super().__init__(specs, slots, allocate=runtime.pinned)
        self._in_stream = in_stream
        #: Per input the device buffer [slots, *bounds]; None for rows of any length, which each unit copies itself.
        self.rows = [
            runtime.empty((slots, *spec.bounds), TORCH_DTYPES[spec.datatype]) if has_slab(spec) else None
            for spec in specs
        ]
        #: Per slot the number of the copy of its row, 0 for none, and the in-event that follows that copy.
        self.numbers = [0] * slots
        self.events: list[Any] = [None] * slots
        self._late: list[int] = []  # given back, but their copies may not be over
        self._arrived: deque[int] = deque()  # slots that no launcher has come to

    def arrive(self, slots: Slots) -> None:
        """The rows in `slots` have been written."""
        for slot in slots:
            self.numbers[slot] = _TO_COME
        self._arrived.extend(slots)

    def copy_arrived(self, slots: Slots = ()) -> None:
        """Enqueue the copy of all rows that have arrived, if no other launcher has done so. On any launcher's thread:
        when this returns, whatever arrived before has a number and an event. `slots`: the caller needs no others, and
        does not wait for a launcher that is enqueueing.
        """
        if slots and all(self.numbers[slot] != _TO_COME for slot in slots):
            return
        arrivals = self._in_stream
        with arrivals.lock:
            arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
            if arrived:
                self._copy_in(arrived)
                arrivals.last += 1
                for slot in arrived:
                    self.events[slot] = self.events[arrived[0]]
                    self.numbers[slot] = arrivals.last  # last: who sees it does not ask for the lock

    def _copy_in(self, slots: Slots) -> None:
        """Enqueue the copy of the rows and record their in-event."""
        runtime, stream = self._in_stream.runtime, self._in_stream.stream
        runtime.enqueue(stream, partial(self.move, slots))
        # A row of an older request may still refer to this event. It then waits for a later copy than its own, which
        # is longer than needed and never too short.
        if self.events[slots[0]] is None:
            self.events[slots[0]] = runtime.event()
        runtime.record(self.events[slots[0]], stream)

    def move(self, slots: Slots) -> None:
        """Copy the rows to the device, on the current stream; neighbours are one copy."""
        for first, end in runs(sorted(slots)):
            for host, device in zip(self.slabs, self.rows, strict=True):
                if device is not None and host is not None:
                    device[first:end].copy_(host[first:end], non_blocking=True)

    def in_event(self, slots: Slots) -> tuple[int, Any]:
        """The number of the last copy of these slots, and its event: rule 2."""
        last = max(slots, key=self.numbers.__getitem__)
        return self.numbers[last], self.events[last]

    def copied(self, number: int) -> None:
        """A unit that waited for this copy has ended. So the loop need not ask the device when its slots come back."""
        self._in_stream.done = max(self._in_stream.done, number)

    def renew(self, slots: Slots) -> None:
        """The rows in these slots have been copied, or will never be: what is written there next is to be copied."""
        for slot in slots:
            self.numbers[slot] = 0

    def give_back(self, slots: Slots) -> None:
        """As any pool does, but that slots whose copy may not be over yet are not handed out before it is."""
        late = [slot for slot in slots if not self._copied(slot)]
        if late:
            self._late += late
            self.used -= len(late)
            slots = sorted({*slots}.difference(late))
        self.renew(slots)
        super().give_back(slots)

    @property
    def free(self) -> int:
        return super().free - len(self._late)

    def take(self, n: int) -> Slots:
        """As any pool does; slots that were kept are handed out if their copies are over by now."""
        if self._late:
            late, self._late = self._late, []
            self.used += len(late)
            self.give_back(late)
            if n > self.free:
                raise MemoryError(f"pool: {n} slots wanted, {self.free} free")
        return super().take(n)

    def _copied(self, slot: int) -> bool:
        """Whether the copy of a slot's row, if there was one, is over."""
        number, arrivals = self.numbers[slot], self._in_stream
        return number <= arrivals.done or (number != _TO_COME and arrivals.runtime.fired(self.events[slot]))


def runs(slots: Slots) -> list[tuple[int, int]]:
    """The slots, ascending, as half-open ranges of neighbours."""
    found: list[tuple[int, int]] = []
    for slot in slots:
        if found and found[-1][1] == slot:
            found[-1] = (found[-1][0], slot + 1)
        else:
            found.append((slot, slot + 1))
    return found
