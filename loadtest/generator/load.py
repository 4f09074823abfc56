"""A closed loop of one prepared request and its result: the types that its clients use."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError, Server, ServerError

CONNECTIONS = 64
#: A request without an answer after so many seconds has failed.
TIMEOUT_S = 10.0
#: The status of a request that was not admitted.
REFUSED = 429


@dataclass(frozen=True)
class PreparedRequest:
    """One prepared POST. `name` is its name in reports."""

    name: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def encode(self, port: int) -> bytes:
        """The bytes of the HTTP request."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {LOOPBACK}:{port}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + self.body


@dataclass(frozen=True)
class Load:
    """`connections` clients, each sending `request` again as soon as it is answered, for `seconds`.

    If `answer` is given, each body must equal it. `timed`: the number of answers whose server times are returned.
    With `refusals` answers with status 429 are counted, too; without it they are failures.
    """

    port: int
    request: PreparedRequest
    seconds: float
    connections: int = CONNECTIONS
    answer: bytes | None = None
    timed: int = 0
    refusals: bool = False


@dataclass(frozen=True)
class TimedAnswer:
    """A request's latency at the client and its times in the server (Server-Timing, X-Batch-Size), milliseconds."""

    latency_ms: float
    total_ms: float
    queue_ms: float
    compute_ms: float
    batch: int


@dataclass(frozen=True)
class LoadResult:
    """The result of a load: right answers with status 200 and those with 429 within `seconds`, and failures by kind.

    `refused` is 0 unless the load counts refusals. Latencies are those at the client, in milliseconds.
    """

    requests: int
    seconds: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    failed: dict[str, int] = field(default_factory=dict)
    timed: list[TimedAnswer] = field(default_factory=list)
    refused: int = 0

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def refused_per_second(self) -> float:
        return self.refused / self.seconds if self.seconds > 0 else 0.0


class LoadError(MeasurementError):
    """A load could not be run, or some answers were wrong."""


def answer_of(server: Server, request: PreparedRequest) -> tuple[dict[str, str], bytes]:
    """Headers and body of one answer to `request`. Raises ServerError if its status is not 200."""
    status, headers, body = server.call("POST", request.path, request.body, dict(request.headers))
    if status != 200:
        log = f"\n{server.last_output()}" if status >= 500 else ""
        raise ServerError(f"{request.name}: status {status}, {body[:200]!r}{log}")
    return headers, body
