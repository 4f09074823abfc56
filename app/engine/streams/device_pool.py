"""The slots of a model on a device of streams, by these rules (docs/theory/streams.md has the reasons):

1. Rows are copied when they arrive, on the single in-stream, with an in-event behind; those of best-effort requests
   when their unit is launched, on its own stream.
2. Each group of rows copied together has a number, in the order of the in-stream. A unit waits only for the
   in-event of the highest number among its slots.
3. A staging row is not reused before its in-event has fired, nor a device row before its unit's out-event has.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from app.contract import TensorSpec
from app.engine.pool import Pool, Slots, has_slab, neighbours
from app.engine.streams.cuda import CudaRuntime
from app.models.base import TORCH_DTYPES

_TO_COME = sys.maxsize  # as a copy number: not enqueued yet
_BY_UNIT = -1  # as a copy number: not on the in-stream
_PIECE = 1 << 20  # bytes of a copy; they take 20 to 40 us


class InStream:
    """The stream on which the rows of all models are copied in. `lock` keeps numbers in the order of the stream.

    `done`: copies up to at least this number are over. Completers raise it without a lock, so one may undo another's.
    """

    def __init__(self, runtime: CudaRuntime, stream: Any) -> None:
        self.runtime = runtime
        self.stream = stream
        self.lock = threading.Lock()
        self.last = 0
        self.done = 0


class StreamPool(Pool):
    """A Pool in pinned memory, with a device row for each slot.

    `take`, `arrive` and `give_back` belong to the pool's owner, `copy_arrived` and `follow` to the launchers.
    """

    def __init__(self, specs: Sequence[TensorSpec], slots: int, in_stream: InStream) -> None:
        runtime = in_stream.runtime
        super().__init__(specs, slots, allocate=runtime.pinned)
        self._in_stream = in_stream
        #: By input: the device buffer [slots, *bounds]; None for rows without a largest length, which each unit copies.
        self.rows = [
            runtime.empty((slots, *spec.bounds), TORCH_DTYPES[spec.datatype]) if has_slab(spec) else None
            for spec in specs
        ]
        #: By slot: the number of its row's copy (0: none), and the in-event behind that copy.
        self.numbers = [0] * slots
        self.events: list[Any] = [None] * slots
        self._late: list[int] = []  # slots given back whose copies may not be over
        self._arrived: deque[int] = deque()  # slots whose copy is not enqueued yet

    def arrive(self, slots: Slots) -> None:
        """The rows in `slots` have been written."""
        for slot in slots:
            self.numbers[slot] = _TO_COME
        self._arrived.extend(slots)

    def copy_arrived(self, slots: Slots = ()) -> None:
        """Enqueue the copies of all rows that have arrived. On any launcher's thread.

        When this returns, all rows that arrived before have a number and an event. `slots`: if given, only these are
        needed: return at once if they are enqueued, without waiting for another launcher.
        """
        if slots and all(self.numbers[slot] != _TO_COME for slot in slots):
            return
        arrivals = self._in_stream
        with arrivals.lock:
            arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
            if arrived:
                self._enqueue(arrived, arrivals.stream)
                # A row of an older request may still refer to this event. It then waits for a later copy than its own,
                # which is longer than needed but never too short.
                event = self.events[arrived[0]] or arrivals.runtime.event()
                arrivals.runtime.record(event, arrivals.stream)
                arrivals.last += 1
                for slot in arrived:
                    self.events[slot] = event
                    self.numbers[slot] = arrivals.last  # set last: threads that see it skip the lock

    def _enqueue(self, slots: Slots, stream: Any) -> None:
        self._in_stream.runtime.enqueue(stream, partial(self.move, slots))

    def move(self, slots: Slots) -> None:
        """Copy the rows to the device on the current stream; adjacent rows in one copy."""
        for _, first, end in neighbours([(None, slot) for slot in sorted(slots)]):
            for host, device in zip(self.slabs, self.rows, strict=True):
                if device is not None and host is not None:
                    _copy_in_pieces(device[first:end], host[first:end])

    def follow(self, slots: Slots, stream: Any) -> int:
        """Have work that is enqueued on the stream from now on find the rows of these slots on the device: rule 2.

        Rows that nobody has announced are copied on this stream. Returns the number of the last copy on the in-stream
        that it waits for; 0 if there is none.
        """
        new = [slot for slot in slots if not self.numbers[slot]]
        if new:
            self._enqueue(new, stream)
            for slot in new:
                self.numbers[slot] = _BY_UNIT
        last = max(slots, key=self.numbers.__getitem__)
        number = max(0, self.numbers[last])
        if number:
            self._in_stream.runtime.wait(stream, self.events[last])
        return number

    def copied(self, number: int) -> None:
        """A unit that waited for this copy has ended, so the copy is over: `give_back` need not ask the device."""
        self._in_stream.done = max(self._in_stream.done, number)

    def renew(self, slots: Slots) -> None:
        """Reset the slots: what is written there next must be copied."""
        for slot in slots:
            self.numbers[slot] = 0

    def give_back(self, slots: Slots) -> None:
        """As Pool, but a slot whose copy may not be over yet is kept until it is."""
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
        """As Pool. Kept slots are freed first if their copies are over by now."""
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


def _copy_in_pieces(target: torch.Tensor, source: torch.Tensor) -> None:
    if source.nbytes <= _PIECE:
        target.copy_(source, non_blocking=True)
        return
    into, values, step = target.view(-1), source.view(-1), max(1, _PIECE // source.element_size())
    for at in range(0, len(values), step):
        into[at : at + step].copy_(values[at : at + step], non_blocking=True)
