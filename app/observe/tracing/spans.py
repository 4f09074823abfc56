"""What spans are made of: plain values, recorded on the event loop when a batch or a call has ended.

Times are monotonic nanoseconds. A record does not change any more once it has been handed over. The header
`traceparent` of requests and answers is W3C's Trace Context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import NamedTuple

from app.contract import Answer, Lease, ModelInfo
from app.errors import StarlingError

MOST_BATCHES = 128  # that one call remembers, and calls that one batch links to: OpenTelemetry's limits, too
_LONGEST_MESSAGE = 500  # characters of an error
_LONGEST_PATH, _LONGEST_NAME = 2048, 256  # characters of what a client sends, which may be more, as in the access log
_LONGEST_HEADER = 1024  # bytes of each header that is kept; a `tracestate` so long counts as none
_KEPT_HEADERS = (b"user-agent", b"tracestate")

SpanId = tuple[int, int]  # of a trace, and of a span in it
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1  # the one flag that version 00 defines


class Parent(NamedTuple):
    """The span that a request belongs to, and whether its caller records the trace."""

    trace_id: int
    span_id: int
    sampled: bool


def parent_of(header: bytes) -> Parent | None:
    """What a `traceparent` names; None for a malformed one, which counts as none (Trace Context, 3.2.2).

    A later version may say more behind the flags; version 00 must end there, and ff is no version.
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
    """A batch that has ended, well or not.

    `rows` without padding, `size` with it. `stage`: the first that ran, of a model in stages, else None; `steps`: how
    many stages, or steps of a recurrent model. `parts`: nanoseconds of input, model and output, nothing where it
    failed; `stage_ns`: of each stage.
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
    """How a call failed. Not the exception itself: its traceback would keep whatever the call had alive."""

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
    """A call that is not sampled: all that is left of its span is the header that says so."""

    __slots__ = ("traceparent",)

    def __init__(self, ident: SpanId) -> None:
        self.traceparent = traceparent(*ident, False)

    def succeeded(self, info: ModelInfo, klass: str, answer: Answer) -> bytes:
        return self.traceparent

    def failed(self, info: ModelInfo | None, klass: str, exc: Exception, status: int) -> bytes:
        return self.traceparent


class CallSpan:
    """One call, from its head to its answer. Whoever answers it calls `succeeded` or `failed`, once."""

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
        self._leave = leave  # called when the call has ended, with its lease
        self._lease: int | None = None
        self.ident = ident
        self.parent = parent  # the caller's span; 0: none
        # Not all of them: spans wait for a collector, and heads may be long.
        self.headers = {name: headers[name][:_LONGEST_HEADER] for name in _KEPT_HEADERS if name in headers}
        self.arrived = arrived
        self.rows = self.entered = 0  # how many rows, and when they entered the queue; 0: they have not
        self.ended = 0
        self.batches: list[BatchSpan] = []
        self.batches_left_out = 0  # batches that it ran in beyond those
        self.method = self.path = self.route = self.model = self.klass = ""
        self.request_id = b""
        self.info: ModelInfo | None = None
        self.answer: tuple[int, int, int] | None = None  # largest batch, nanoseconds of queue and of compute
        self.failure: Failure | None = None

    @property
    def traceparent(self) -> bytes:
        """The value of the header of its answer."""
        return traceparent(*self.ident, True)

    def set_request(self, method: str, path: str, route: str, model: str, request_id: bytes) -> None:
        """What is asked for. `route`: the path, with the names of model and version left out."""
        self.method, self.path, self.model = method[:_LONGEST_NAME], path[:_LONGEST_PATH], model[:_LONGEST_NAME]
        self.route, self.request_id = route, request_id

    def submitted(self, lease: Lease) -> int:
        """Its rows are in the queue. Returns the lease's number."""
        self._lease, self.entered, self.rows = lease.id, lease.entered, len(lease.rows)
        return lease.id

    def add_batch(self, batch: BatchSpan) -> None:
        """Some of its rows were in a batch."""
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
        if info is not None:  # the route need not say it
            self.model = info.name
        self.ended = monotonic_ns()
        self._leave(self, self._lease)
        return self.traceparent
