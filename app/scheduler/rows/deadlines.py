"""The deadlines of the calls that have not left, the next one first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from app.scheduler.types import Call

_SLACK = 64  # entries of calls that have left, tolerated before the heap is rebuilt


class Deadlines:
    """A heap over `calls`, the calls that have not left, by id.

    Entries of calls that left stay until their time comes; the heap is rebuilt when they outnumber those that live.
    """

    __slots__ = ("_calls", "_heap")

    def __init__(self, calls: Mapping[int, Call]) -> None:
        self._calls = calls
        self._heap: list[tuple[int, int]] = []  # (deadline, call id)

    def __len__(self) -> int:
        """Entries held, those of calls that have left included."""
        return len(self._heap)

    def add(self, deadline: int, call_id: int) -> None:
        heap = self._heap
        if len(heap) > 2 * len(self._calls) + _SLACK:
            heap[:] = [entry for entry in heap if entry[1] in self._calls]
            heapify(heap)
        heappush(heap, (deadline, call_id))

    def passed(self, now: int) -> Iterator[Call]:
        """Take the calls whose deadline is not after `now`. The caller lets each leave."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            call = self._calls.get(heappop(heap)[1])
            if call is not None:
                yield call

    def next(self) -> int | None:
        """The earliest deadline of a call that has not left."""
        heap = self._heap
        while heap and heap[0][1] not in self._calls:
            heappop(heap)
        return heap[0][0] if heap else None
