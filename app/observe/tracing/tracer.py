"""Which calls are traced, and which batches they were in. On the event loop: nothing here waits.

A span is made of times that the server measures anyway, once its call has ended. So a call that is not sampled costs
two random numbers and a header, and one that is little more: the rest is done on the exporter's thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from app.contract import Lease

from .spans import MOST_BATCHES, BatchSpan, CallSpan, Parent, Unrecorded, parent_of

Record = CallSpan | BatchSpan
_HALF = (1 << 64) - 1  # the part of a trace's number that decides; OpenTelemetry's TraceIdRatioBased looks at the same


MOST_FORCED = 100  # calls a second that are recorded because their caller says so: anybody may say so


class Tracer:
    """Hands each span that is to be recorded to `offer`, which must return at once.

    `ratio`: the part of the calls that are recorded where their caller does not say (parent-based sampling). Below 1,
    no more than MOST_FORCED a second are recorded because their caller asks for it.
    """

    def __init__(self, offer: Callable[[Record], None], ratio: float = 1.0) -> None:
        self._offer = offer
        self._bound = round(ratio * (1 << 64))
        self._bits = random.Random().getrandbits
        self._second = self._forced = 0  # calls that came in this second and whose caller says that they are recorded
        self._in_flight: dict[int, CallSpan] = {}  # recorded calls whose rows wait or run, by lease

    def begin(self, headers: Mapping[bytes, bytes], arrived: int) -> CallSpan | Unrecorded:
        """The span of a new call; `CallSpan.set_request` comes next.

        `traceparent` names its parent, which decides whether it is recorded; a malformed one is ignored.
        """
        given = headers.get(b"traceparent")
        parent = None if given is None else parent_of(given)
        if parent is not None and parent.sampled and not self._may_force(arrived):
            parent = parent._replace(sampled=False)
        if parent is None:
            trace_id = self._number(128)
            parent = Parent(trace_id, 0, trace_id & _HALF < self._bound)
        ident = (parent.trace_id, self._number(64))
        return CallSpan(self._ended, ident, parent.span_id, headers, arrived) if parent.sampled else Unrecorded(ident)

    def _may_force(self, arrived: int) -> bool:
        """Whether one more call of this second is recorded because its caller says so."""
        second = arrived // 1_000_000_000
        if second != self._second:
            self._second, self._forced = second, 0
        self._forced += 1
        return self._forced <= MOST_FORCED or self._bound > _HALF

    def submitted(self, span: CallSpan, lease: Lease) -> None:
        """The call's rows are in the queue: batches that they run in are its own."""
        self._in_flight[span.submitted(lease)] = span

    def recorded_calls(self, leases: Iterable[int]) -> list[CallSpan]:
        """Those of the calls that are recorded, each once."""
        calls = self._in_flight
        return list({lease: calls[lease] for lease in leases if lease in calls}.values()) if calls else []

    def batch_ended(self, batch: BatchSpan, calls: list[CallSpan]) -> None:
        """A batch has ended, with rows of these calls. It belongs to no one call's trace: it has one of its own."""
        batch.ident = (self._number(128), self._number(64))
        batch.recorded = len(calls)
        batch.calls = [call.ident for call in calls[:MOST_BATCHES]]
        for call in calls:
            call.add_batch(batch)
        self._offer(batch)

    def _ended(self, span: CallSpan, lease: int | None) -> None:
        if lease is not None:
            self._in_flight.pop(lease, None)
        self._offer(span)

    def _number(self, bits: int) -> int:
        return self._bits(bits) or 1  # 0 is no number of a span
