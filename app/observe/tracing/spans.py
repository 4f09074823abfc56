"""The records that spans are made of: plain values, taken on the event loop.

Times are monotonic nanoseconds. After it has been passed on a record does not change. The header `traceparent` of
requests and answers is W3C's Trace Context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import NamedTuple

from app.contract import Answer, Lease, ModelInfo
from app.errors import StarlingError

MOST_BATCHES = 128  # batches that a call records, and calls that a batch links to: OpenTelemetry's limits
_LONGEST_MESSAGE = 500  # characters of an error
_LONGEST_PATH, _LONGEST_NAME = 2048, 256  # characters kept of what a client sends, as in the access log
_LONGEST_HEADER = 1024  # bytes kept of a header; so long a `tracestate` is ignored later
_KEPT_HEADERS = (b"user-agent", b"tracestate")

SpanId = tuple[int, int]  # of a trace, and of a span in it
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1  # the one flag that version 00 defines


class Parent(NamedTuple):
    """The client's span that a request belongs to, and whether the client records the trace."""

    trace_id: int
    span_id: int
    sampled: bool


def parent_of(header: bytes) -> Parent | None:
    """Parse a `traceparent`. None if it is malformed and to be ignored (Trace Context, 3.2.2).

    Later versions may have more after the flags; version 00 must end there, and ff is not a version.
    """
    found = _TRACEPARENT.fullmatch(header.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def traceparent(trace_id: int, span_id: int, sampled: bool) -> bytes:
    """The header's value for a span."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, sampled)


@dataclass(slots=True, eq=False)
class BatchSpan:
    """A batch that has ended, with or without an error.

    `rows` without padding, `size` with it. `stage`: for a model in stages the first that ran, else None. `steps`: how
    many stages, or steps of a recurrent model, ran. `parts`: nanoseconds of input, model and output; empty if it
    failed. `stage_ns`: of each stage.
    """

    info: ModelInfo
    number: int
    worker: int
    reason: str
    operation: str
    klass: str
    rows: int
    size: int
    stage: int | None
    steps: int
    started: int
    ended: int
    parts: tuple[int, ...] = ()
    stage_ns: Sequence[int] = ()
    error: str = ""
    ident: SpanId = (0, 0)
    recorded: int = 0  # calls with rows in it whose trace is recorded
    calls: list[SpanId] = field(default_factory=list)  # the first of them


@dataclass(slots=True, eq=False)
class Failure:
    """How a call failed. The exception itself is not kept: its traceback would keep the call's objects alive."""

    status: int
    code: str
    message: str
    cause: tuple[str, str] | None  # type and message of what the model raised

    @classmethod
    def of(cls, exc: Exception, status: int) -> Failure:
        """`status` is that of the answer."""
        if not isinstance(exc, StarlingError):
            return cls(status, "internal", "", _described(exc))
        cause = None if exc.cause is None else _described(exc.cause)
        return cls(status, exc.code, exc.message[:_LONGEST_MESSAGE], cause)


def _described(exc: BaseException) -> tuple[str, str]:
    return type(exc).__qualname__, str(exc)[:_LONGEST_MESSAGE]


class Unrecorded:
    """A call that is not sampled. It only has a `traceparent` that says so."""

    __slots__ = ("traceparent",)

    def __init__(self, ident: SpanId) -> None:
        self.traceparent = traceparent(*ident, False)

    def succeeded(self, info: ModelInfo, klass: str, answer: Answer) -> bytes:
        return self.traceparent

    def failed(self, info: ModelInfo | None, klass: str, exc: Exception, status: int) -> bytes:
        return self.traceparent


class CallSpan:
    """One recorded call, from its head to its answer. `succeeded` or `failed` must be called once."""

    __slots__ = (
        "_lease",
        "_leave",
        "answer",
        "arrived",
        "batches",
        "batches_left_out",
        "ended",
        "entered",
        "failure",
        "headers",
        "ident",
        "info",
        "klass",
        "method",
        "model",
        "parent",
        "path",
        "request_id",
        "route",
        "rows",
    )  # fmt: skip

    def __init__(
        self,
        leave: Callable[[CallSpan, int | None], None],
        ident: SpanId,
        parent: int,
        headers: Mapping[bytes, bytes],
        arrived: int,
    ) -> None:
        self._leave = leave  # called when the call has ended, with its lease number
        self._lease: int | None = None
        self.ident = ident
        self.parent = parent  # the caller's span; 0: none
        # Only a few: spans wait for a collector, and heads may be long.
        self.headers = {name: headers[name][:_LONGEST_HEADER] for name in _KEPT_HEADERS if name in headers}
        self.arrived = arrived
        self.rows = self.entered = 0  # the number of rows, and when they entered the queue; 0: they did not
        self.ended = 0
        self.batches: list[BatchSpan] = []
        self.batches_left_out = 0  # number of batches beyond MOST_BATCHES
        self.method = self.path = self.route = self.model = self.klass = ""
        self.request_id = b""
        self.info: ModelInfo | None = None
        self.answer: tuple[int, int, int] | None = None  # largest batch, nanoseconds of queue and of compute
        self.failure: Failure | None = None

    @property
    def traceparent(self) -> bytes:
        """The value of the header in its answer."""
        return traceparent(*self.ident, True)

    def set_request(self, method: str, path: str, route: str, model: str, request_id: bytes) -> None:
        """Set the request's attributes. `route`: the path with placeholders for model and version."""
        self.method, self.path, self.model = method[:_LONGEST_NAME], path[:_LONGEST_PATH], model[:_LONGEST_NAME]
        self.route, self.request_id = route, request_id

    def submitted(self, lease: Lease) -> int:
        """The rows are in the queue. Returns the lease's number."""
        self._lease, self.entered, self.rows = lease.id, lease.entered, len(lease.rows)
        return lease.id

    def add_batch(self, batch: BatchSpan) -> None:
        """Record a batch with rows of the call."""
        if len(self.batches) < MOST_BATCHES:
            self.batches.append(batch)
        else:
            self.batches_left_out += 1

    def succeeded(self, info: ModelInfo, klass: str, answer: Answer) -> bytes:
        """The call has its answer. Returns the value of its `traceparent`."""
        self.answer = (answer.batch, answer.queue_ns, sum(answer.times))
        return self._end(info, klass)

    def failed(self, info: ModelInfo | None, klass: str, exc: Exception, status: int) -> bytes:
        """The call is answered with an error. Returns the value of its `traceparent`."""
        self.failure = Failure.of(exc, status)
        return self._end(info, klass)

    def _end(self, info: ModelInfo | None, klass: str) -> bytes:
        self.info, self.klass = info, klass
        if info is not None:  # the route may not name the model
            self.model = info.name
        self.ended = monotonic_ns()
        self._leave(self, self._lease)
        return self.traceparent
