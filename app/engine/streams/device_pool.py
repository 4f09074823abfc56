"""The slots of a model on a device of streams (Ebird, section V).

Rules
    1. Each input has one contiguous device buffer with a row for each slot. A row is copied there as its request
       arrives, on the one in-stream, and the slot's in-event is recorded behind the copy. Rows that arrive before the
       launcher has come to the first of them share a message, a copy where they are neighbours, and an event. Rows of
       best-effort requests are copied when their unit is pushed: until then real-time rows never wait for them.
    2. Copies run in the order in which they were enqueued. Slots are reused in any order, so each group of rows that
       are copied together has a number, and a unit waits for the in-event of the highest number among its slots, and
       for no other.
    3. A staging row is not handed out again before its in-event has fired, nor a device row before the out-event of its
       unit has: until then `give_back` keeps the slot.
    4. Results are not written into slots: see `results.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from app.contract import TensorSpec
from app.engine.pool import Allocate, Pool, Slots, has_slab
from app.engine.streams.runtime import Runtime
from app.models.base import TORCH_DTYPES


class Copies:
    """The order of the copies on the in-stream. `done`: every copy up to this number is known to be over."""

    def __init__(self) -> None:
        #: Held while a number is given and its copy handed on, so both have one order, and while rows join a copy.
        self.lock = threading.Lock()
        self.last = 0
        self.done = 0

    def over(self, number: int) -> None:
        """Copies up to `number` are over. Two threads at once may leave the lower number, which is the safe side."""
        if number > self.done:
            self.done = number


class StreamPool(Pool):
    """A Pool in pinned memory, with a device row for each slot.

    `arrive` and `give_back` belong to the pool's owner, `arrived`, `copy_in` and `in_event` to the launcher. `keep`
    gets slots that were given back before their copy was over, and gives them back again when it is.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        slots: int,
        copies: Copies,
        memory: tuple[Allocate, Allocate],
        keep: Callable[[StreamPool, Slots], None],
    ) -> None:
        """`memory` allocates pinned host memory and device memory."""
        pinned, device = memory
        super().__init__(specs, slots, allocate=pinned)
        self.copies = copies
        #: Per input the device buffer [slots, *bounds]; None for rows of any length, which each unit copies itself.
        self.rows = [
            device((slots, *spec.bounds), TORCH_DTYPES[spec.datatype]) if has_slab(spec) else None for spec in specs
        ]
        #: Per slot the number of the copy of its row, 0 for none, and the slot whose in-event follows that copy.
        self.numbers = [0] * slots
        self.sources = [0] * slots
        self.events: list[Any] = [None] * slots
        #: Copies made into each of the device buffers.
        self.moves = 0
        self._keep = keep
        self._arrived: list[int] = []  # slots that the launcher has not come to

    def arrive(self, slots: Slots) -> bool:
        """The rows in `slots` have been written. True if the launcher does not know of any yet. Under the lock."""
        alone = not self._arrived
        if alone:
            self.copies.last += 1
        self._arrived += slots
        numbers, sources, first = self.numbers, self.sources, self._arrived[0]
        for slot in slots:
            numbers[slot] = self.copies.last if alone else numbers[first]
            sources[slot] = first
        return alone

    def arrived(self) -> list[int]:
        """The rows that are to be copied now, the one whose event they share first."""
        with self.copies.lock:
            slots, self._arrived = self._arrived, []
        return slots

    def copy_in(self, runtime: Runtime, stream: Any, slots: Slots) -> None:
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
            self.moves += 1
            for host, device in zip(self.slabs, self.rows, strict=True):
                if device is not None and host is not None:
                    device[first:end].copy_(host[first:end], non_blocking=True)

    def in_event(self, slots: Slots) -> tuple[int, Any]:
        """The highest number among the slots' copies, and its event: rule 2."""
        last = max(slots, key=self.numbers.__getitem__)
        return self.numbers[last], self.events[self.sources[last]]

    def renew(self, slots: Slots) -> None:
        """The rows in these slots have been copied, or will never be: what is written there next is to be copied."""
        for slot in slots:
            self.numbers[slot] = 0

    def give_back(self, slots: Slots) -> None:
        """As any pool does; slots whose copy may not be over yet come back later."""
        done, numbers = self.copies.done, self.numbers
        late = [slot for slot in slots if numbers[slot] > done]
        if late:
            slots = [slot for slot in slots if numbers[slot] <= done]
        self.renew(slots)
        super().give_back(slots)
        if late:
            self._keep(self, late)


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
