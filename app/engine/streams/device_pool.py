"""The slots of a model on a device of streams (Ebird, section V).

Rules
    1. Each input has one contiguous device buffer with a row for each slot. A row is copied there as its request
       arrives, on the one in-stream, and the slot's in-event is recorded behind the copy. Rows that arrive before a
       launcher has come to the first of them share a message, a copy where they are neighbours, and an event. Rows of
       best-effort requests are copied when their unit is pushed: until then real-time rows never wait for them.
    2. Copies run in the order in which they were enqueued. Slots are reused in any order, so each group of rows that
       are copied together has a number, and a unit waits for the in-event of the highest number among its slots, and
       for no other.
    3. A staging row is not handed out again before its in-event has fired, nor a device row before the out-event of its
       unit has: slots that are given back earlier, because nobody waits for their rows any more, are kept until then.
    4. Results are not written into slots: see `results.py`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from app.contract import TensorSpec
from app.engine.pool import Allocate, Pool, Slots, has_slab
from app.engine.streams.cuda import CudaRuntime
from app.models.base import TORCH_DTYPES

_TO_COME = sys.maxsize  # in place of the number of a copy that has not been enqueued: it is not over, whatever is


class Copies:
    """The order of the copies on the in-stream. `done`: every copy up to this number is known to be over."""

    def __init__(self) -> None:
        self.arriving = threading.Lock()  # while rows are announced, or taken to be copied
        self.enqueuing = threading.Lock()  # so that numbers are in the order of the stream
        self.last = 0
        self.done = 0

    def over(self, number: int) -> None:
        """Copies up to `number` are over. Two threads at once may leave the lower number, which is the safe side."""
        if number > self.done:
            self.done = number


class StreamPool(Pool):
    """A Pool in pinned memory, with a device row for each slot.

    `take`, `arrive` and `give_back` belong to the pool's owner, `copy_arrived` and `in_event` to the launchers.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        slots: int,
        copies: Copies,
        memory: tuple[Allocate, Allocate],
        fired: Callable[[Any], bool],
    ) -> None:
        """`memory` allocates pinned host memory and device memory; `fired`: whether an event has."""
        pinned, device = memory
        super().__init__(specs, slots, allocate=pinned)
        self.copies = copies
        #: Per input the device buffer [slots, *bounds]; None for rows of any length, which each unit copies itself.
        self.rows = [
            device((slots, *spec.bounds), TORCH_DTYPES[spec.datatype]) if has_slab(spec) else None for spec in specs
        ]
        #: Per slot the number of the copy of its row, 0 for none, and the in-event that follows that copy.
        self.numbers = [0] * slots
        self.events: list[Any] = [None] * slots
        self._fired = fired
        self._late: list[int] = []  # given back, but their copies may not be over
        self._arrived: list[int] = []  # slots that no launcher has come to

    def arrive(self, slots: Slots) -> bool:
        """The rows in `slots` have been written. True if the launchers do not know of any yet."""
        with self.copies.arriving:
            alone = not self._arrived
            self._arrived += slots
            for slot in slots:
                self.numbers[slot] = _TO_COME
        return alone

    def copy_arrived(self, runtime: CudaRuntime, stream: Any) -> None:
        """Enqueue the copy of all rows that have arrived, if no other launcher has done so. On any launcher's thread:
        when this returns, whatever arrived before has a number and an event.
        """
        copies = self.copies
        with copies.enqueuing:
            with copies.arriving:
                slots, self._arrived = self._arrived, []
            if slots:
                self.copy_in(runtime, stream, slots)
                copies.last += 1
                for slot in slots:
                    self.numbers[slot], self.events[slot] = copies.last, self.events[slots[0]]

    def copy_in(self, runtime: CudaRuntime, stream: Any, slots: Slots) -> None:
        """Enqueue the copy of the rows and record their in-event."""
        runtime.enqueue(stream, lambda: self._move(slots))
        event = self.events[slots[0]]
        if event is None:
            event = self.events[slots[0]] = runtime.event()
        # A row of an older request may still refer to this event. It then waits for a later copy than its own, which
        # is longer than needed and never too short.
        runtime.record(event, stream)

    def _move(self, slots: Slots) -> None:
        self.move(sorted(slots))  # neighbours are one copy

    def move(self, slots: Slots) -> None:
        """Copy the rows to the device, on the current stream."""
        for first, end in runs(slots):
            for host, device in zip(self.slabs, self.rows, strict=True):
                if device is not None and host is not None:
                    device[first:end].copy_(host[first:end], non_blocking=True)

    def in_event(self, slots: Slots) -> tuple[int, Any]:
        """The highest number among the slots' copies, and its event: rule 2."""
        last = max(slots, key=self.numbers.__getitem__)
        return self.numbers[last], self.events[last]

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
        """Whether the copy of a slot's row, if there was one, is known to be over."""
        number = self.numbers[slot]
        return number <= self.copies.done or (number != _TO_COME and self._fired(self.events[slot]))


def runs(slots: Slots) -> list[tuple[int, int]]:
    """The slots as half-open ranges of neighbours, in their order."""
    if isinstance(slots, range):
        return [(slots.start, slots.stop)]
    found: list[tuple[int, int]] = []
    for slot in slots:
        if found and found[-1][1] == slot:
            found[-1] = (found[-1][0], slot + 1)
        else:
            found.append((slot, slot + 1))
    return found
