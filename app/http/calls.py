"""What both ways of taking an inference request share: which call a path means, its lease, its answer, its errors.

One call: find the model, check admission, decode the body, take slots and write the inputs into them, wait, encode the
outputs, answer. `direct.py` does so for plain requests, from the HTTP protocol; `inference.py` for all others, as an
ASGI application.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from app.contract import CLASSES, Answer, Lease, Served
from app.errors import BadRequest, ModelFailed, QueueFull, StarlingError, TooManyConnections
from app.http.access import Access
from app.http.access_log import AccessLog
from app.http.body import BodyReader, Limits, given_id
from app.http.codecs.base import Codec, DecodedCall, RequestHeaders, answer_through, client_inputs, read_through
from app.http.codecs.friendly import Friendly
from app.http.codecs.v1 import V1
from app.http.codecs.v2 import V2
from app.http.connection.refusals import Turns
from app.http.prefix import without
from app.http.query import NOTHING, Asked, parse_query
from app.http.shares import Shares, permit
from app.http.threads import HelperThreads
from app.observe.logs import CauseLog
from app.observe.tracing.tracer import Tracer

log = logging.getLogger("starling.http")

_PATHS = re.compile(
    r"/v2/models/(?P<v2>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer"
    r"|/v1/models/(?P<v1>[^/:]+)(?:/versions/(?P<v1_version>[^/:]+))?:predict"
    r"|/predict/(?P<friendly>[^/]+)"
)
_OFF_LOOP_ROWS = 16  # rows of labels from which an answer is made off the event loop
ROUTES, LONGEST_ROUTE = 1024, 512  # paths remembered, and characters of each: clients may send any number of others
#: The head of an answer, formatted in one piece: a list of headers costs three times as much.
_HEAD = (
    b"x-request-id: %s\r\nserver-timing: queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\nx-batch-size: %d\r\n"
    b"%scontent-length: %d\r\n"
)
_JSON = b"content-type: application/json\r\n"
_BINARY = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
_COMPRESSED = b"content-encoding: %s\r\nvary: accept-encoding\r\n"
_V2, _V1, _FRIENDLY = V2(), V1(), Friendly()
X_CLASS = b"x-class"
TRACEPARENT = b"traceparent: %s\r\n"
_CLASSES = {name.encode(): name for name in CLASSES}


@dataclass(frozen=True, slots=True)
class Route:
    """What a path means: its protocol and its model; and what the query behind it asks for."""

    codec: Codec
    model: str
    version: str | None
    template: str = ""  # the path, with the names of model and version left out
    asked: Asked = NOTHING

    def with_query(self, query: bytes) -> Route:
        """The route with what a query asks for. Raises BadRequest."""
        return replace(self, asked=parse_query(query)) if query and self.codec.takes_query else self


def _template(path: str, version: str | None) -> str:
    return path % ("" if version is None else "/versions/{version}")


class Calls:
    """Calls as HTTP sees them. `connections` returns how many connections the server has open.

    `access_log` None: nothing is written of requests. `tracer` None: nobody records spans of calls.
    `root_path` is the prefix that an ingress may leave on paths. `rejected` counts requests by their error's code, of
    which no model knows.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        access: Access,
        access_log: AccessLog | None,
        connections: Callable[[], int],
        tracer: Tracer | None = None,
        root_path: str = "",
        rejected: Counter[str] | None = None,
    ) -> None:
        self.limits = limits
        self.rejected = Counter() if rejected is None else rejected
        self.tracer = tracer
        self.root_path = root_path
        self.bodies = BodyReader(limits)
        self.threads = HelperThreads(limits.threads)
        self.access = access
        self.access_log = access_log
        self.keyed = access.keys is not None
        self._shares = Shares()
        self._connections = connections
        self.turns = Turns(connections)  # of those who are refused
        self._causes = CauseLog(log)
        self._routes: dict[str, Route] = {}
        ids = (b"%s-%x" % (prefix, n) for prefix in [secrets.token_hex(4).encode()] for n in itertools.count())
        self.new_id = ids.__next__  # a request's id, if its client gives none

    # who may come

    def crowded(self) -> bool:
        """Whether too many connections are open."""
        return self._connections() > self.limits.connections

    # a request

    def route(self, path: str) -> Route | None:
        """What a path means; None for one that infers nothing."""
        route = self._routes.get(path)
        if route is not None:
            return route
        found = _PATHS.fullmatch(without(self.root_path, path))
        if found is None:
            return None
        if found["v2"]:
            route = Route(_V2, found["v2"], found["version"], _template("/v2/models/{model}%s/infer", found["version"]))
        elif found["v1"]:
            version = found["v1_version"]
            route = Route(_V1, found["v1"], version, _template("/v1/models/{model}%s:predict", version))
        else:
            route = Route(_FRIENDLY, found["friendly"], None, "/predict/{model}")
        if len(path) <= LONGEST_ROUTE:
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[path] = route
        return route

    def request_id(self, headers: RequestHeaders) -> bytes:
        """The id that the client gave, if it is one, or a new one."""
        return given_id(headers) or self.new_id()

    def klass(self, headers: RequestHeaders) -> str:
        """The class that a request's headers name; "" for none. Raises BadRequest for one that there is not."""
        given = headers.get(X_CLASS)
        if given is None:
            return ""
        klass = _CLASSES.get(given)
        if klass is None:
            raise BadRequest(f"X-Class: expected {' or '.join(CLASSES)}, got {given[:40].decode('latin-1')!r}")
        return klass

    def best_effort(self, served: Served, klass: str) -> bool:
        """Whether calls of this class leave the last part of each resource alone. "": the model's default class."""
        return (klass or served.info.batching.default_class) != CLASSES[0]

    def most_held(self, served: Served, klass: str) -> int:
        """How many bytes all bodies may hold together with one of this class.

        Raises TooManyConnections for a best-effort one while those open are left to real time.
        """
        limits = self.limits
        if not self.best_effort(served, klass):
            return limits.inflight
        if self._connections() > (most := limits.best_effort_connections):
            raise TooManyConnections(
                f"more than {most} connections are open: the rest are for real-time requests", retry_after_s=1
            )
        return limits.best_effort_inflight

    def admits(self, served: Served, codec: Codec, klass: str) -> bool:
        """Refuse a call of a class that has no room, before its body is read; False if that depends on its body.

        Where the queue of best effort is full, and that of real time is not, the body may name that. The other way
        round the call is refused: a refusal under load must be cheap. Raises QueueFull or NotReady.
        """
        first = CLASSES[0]
        if codec.names_class and (klass or served.info.batching.default_class) != first and served.has_room(first):
            return False
        served.admit(0, klass)
        return True

    def lease(
        self, served: Served, call: DecodedCall, asked: Asked, klass: str, arrived: int, headers: RequestHeaders
    ) -> Lease:
        """Take slots for a call of a class. `asked`: of its query; `arrived`: monotonic nanoseconds.

        Raises Forbidden, or QueueFull, where the request's key may not have them.
        """
        limit = served.info.batching.max_queue
        if call.rows > limit:
            raise BadRequest(
                f"{call.rows} rows in one request: the queue of model {served.info.name!r} holds {limit}; "
                f"send at most {limit} at a time, or raise max_queue (--max-queue, or in model.toml)"
            )
        priority = call.priority or asked.priority
        key = self.access.key_of(headers) if self.keyed else None
        if key is not None:
            permit(key, klass or served.info.batching.default_class, priority)
        lease = served.lease(
            call.rows, lengths=call.lengths, own_lengths=call.own_lengths, klass=klass,
            priority=priority, timeout_us=call.timeout_us or asked.timeout_us,
            parameters=call.parameters, arrived_ns=arrived,
        )  # fmt: skip
        if key is not None and self.access.several:
            queue = (served.info.name, served.info.version, klass or served.info.batching.default_class)
            try:
                self._shares.take(queue, key, call.rows, limit)
            except QueueFull:
                lease.close()
                raise
            lease.on_close = partial(self._shares.give_back, queue, key, call.rows)
        return lease

    # its body and its answer, on the ASGI way

    def slow_to_decode(self, served: Served, codec: Codec, headers: RequestHeaders, body: bytes) -> bool:
        """Whether `decode` takes longer than the event loop should stand still."""
        return served.model.front is not None or codec.slow_to_decode(served, headers, body)

    def decode(self, served: Served, codec: Codec, headers: RequestHeaders, body: bytes) -> DecodedCall:
        """The call that a body means, with the inputs of the model itself. Raises a leaf of StarlingError."""
        call = codec.decode(served, headers, body, self.limits)
        front = served.model.front
        if front is not None:
            read_through(front, call, client_inputs(served.info))
        return call

    def slow_to_encode(self, served: Served, codec: Codec, call: DecodedCall) -> bool:
        """Whether `encode` takes longer than the event loop should stand still."""
        front = served.model.front
        slow = front is not None and (call.rows > _OFF_LOOP_ROWS or not front.quick)
        return slow or codec.slow_to_encode(served, call)

    def encode(self, served: Served, codec: Codec, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        """As the codec's, from the outputs of the model itself."""
        front = served.model.front
        return codec.encode(served, call, answer if front is None else answer_through(front, call, answer))

    # its answer

    def succeeded(
        self,
        served: Served,
        klass: str,
        request_id: bytes,
        arrived: int,
        answer: Answer,
        body: bytes,
        json_length: int | None,
        encoding: str | None = None,
    ) -> bytes:
        """Count a call that is answered with `body`, and return the header lines of its answer.

        `json_length`: of the body's JSON part, where binary tensors follow; `encoding`: how the body is compressed.
        """
        total = time.monotonic_ns() - arrived
        kind = _JSON if json_length is None else _BINARY % json_length
        if encoding is not None:
            kind += _COMPRESSED % encoding.encode()
        served.finish("ok", total, klass)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s: ok, %.3f ms, batch %d", request_id.decode(), served.info.name, total / 1e6, answer.batch)
        return _HEAD % (
            request_id, answer.queue_ns / 1e6, answer.compute_ns / 1e6, total / 1e6, answer.batch, kind, len(body),
        )  # fmt: skip

    def failed(
        self, exc: Exception, served: Served | None, klass: str, request_id: bytes, arrived: int, path: str
    ) -> None:
        """Count a call that is answered with an error, and log what people who run the server should know of it."""
        if not isinstance(exc, StarlingError):
            log.error("unexpected error on %s", path, exc_info=exc)
        code = exc.code if isinstance(exc, StarlingError) else "internal"
        if served is None:
            self.rejected[code] += 1
        else:
            served.finish(code, time.monotonic_ns() - arrived, klass)
            self._log_cause(exc, served, request_id)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s: %s", request_id.decode(), path, exc)

    def _log_cause(self, exc: Exception, served: Served, request_id: bytes) -> None:
        """Log what the model's own code did wrong, if that is why the request failed."""
        cause = exc.cause if isinstance(exc, StarlingError) else None
        if cause is None and isinstance(exc, ModelFailed):
            cause = exc  # nothing was raised: the model broke its promise
        if cause is not None:
            info = served.info
            self._causes.log(cause, f"{info.name} version {info.version}", request_id.decode())
