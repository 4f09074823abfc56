"""Decides which calls are recorded, and connects them with their batches. Runs on the event loop; never waits.

A span is made after its call has ended, of times that the server measures anyway. So an unsampled call costs two random
numbers and a header, and a sampled one little more: the rest runs on the exporter's thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from app.contract import Lease

from .spans import MOST_BATCHES, BatchSpan, CallSpan, Parent, Unrecorded, parent_of

Record = CallSpan | BatchSpan
_HALF = (1 << 64) - 1  # the bits of a trace id that decide, as in OpenTelemetry's TraceIdRatioBased
MOST_FORCED = 100  # calls per second that are recorded because the client asks for it: any client may


class Tracer:
    """Passes each recorded span to `offer`, which must return at once.

    `ratio`: the share of calls that are recorded if the client does not decide (parent-based sampling). Below 1, at
    most MOST_FORCED calls per second are recorded because their clients ask for it.
    """

    def __init__(self, offer: Callable[[Record], None], ratio: float = 1.0) -> None:
        self._offer = offer
        self._bound = round(ratio * (1 << 64))
        self._bits = random.Random().getrandbits
        self._second = self._forced = 0  # this second, and its calls whose clients ask to be recorded
        self._in_flight: dict[int, CallSpan] = {}  # recorded calls whose rows wait or run, by lease number

    def begin(self, headers: Mapping[bytes, bytes], arrived: int) -> CallSpan | Unrecorded:
        """The span of a new call. Call `CallSpan.set_request` next.

        The parent in `traceparent` decides whether the call is recorded. A malformed header is ignored.
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
        """Whether one more call of this second may be recorded because its client asks for it."""
        second = arrived // 1_000_000_000
        if second != self._second:
            self._second, self._forced = second, 0
        self._forced += 1
        return self._forced <= MOST_FORCED or self._bound > _HALF

    def submitted(self, span: CallSpan, lease: Lease) -> None:
        """The call's rows are in the queue: from now on batches with them are linked to the call."""
        self._in_flight[span.submitted(lease)] = span

    def recorded_calls(self, leases: Iterable[int]) -> list[CallSpan]:
        """The recorded calls among these leases, each once."""
        calls = self._in_flight
        return list({lease: calls[lease] for lease in leases if lease in calls}.values()) if calls else []

    def batch_ended(self, batch: BatchSpan, calls: list[CallSpan]) -> None:
        """A batch with rows of these calls has ended. Its span has a trace of its own and links to the calls."""
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
        return self._bits(bits) or 1  # 0 is not a valid id
