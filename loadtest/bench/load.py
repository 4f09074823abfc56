"""A closed loop of one prepared request, and what came of it: the terms that both clients, ours and wrk, share."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError, Server, ServerError

CONNECTIONS = 64
#: A request without an answer after so many seconds has failed.
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Request:
    """One prepared POST. `name` is how reports call it."""

    name: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def encode(self, port: int) -> bytes:
        """The request as it goes over the wire."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {LOOPBACK}:{port}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + self.body


@dataclass(frozen=True)
class Load:
    """`connections` clients, each sending `request` again as soon as it is answered, for `seconds`.

    Where `answer` is given each body must equal it. `timed`: of how many answers the server's own times are kept.
    """

    port: int
    request: Request
    seconds: float
    connections: int = CONNECTIONS
    answer: bytes | None = None
    timed: int = 0


@dataclass(frozen=True)
class TimedAnswer:
    """What the client saw of a request, and what the server said of it (Server-Timing, X-Batch-Size); milliseconds."""

    latency_ms: float
    total_ms: float
    queue_ms: float
    compute_ms: float
    batch: int


@dataclass(frozen=True)
class Result:
    """What a load brought: answers with status 200 within `seconds`, and what went wrong, by kind.

    Latencies in milliseconds, as the client saw them.
    """

    requests: int
    seconds: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    failed: dict[str, int] = field(default_factory=dict)
    timed: list[TimedAnswer] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds > 0 else 0.0


class LoadError(MeasurementError):
    """A load could not be run, or was not answered as it must be."""


def answer_of(server: Server, request: Request) -> tuple[dict[str, str], bytes]:
    """Headers and body of one answer to `request`. Raises ServerError on any other status than 200."""
    status, headers, body = server.call("POST", request.path, request.body, dict(request.headers))
    if status != 200:
        log = f"\n{server.said()}" if status >= 500 else ""
        raise ServerError(f"{request.name}: status {status}, {body[:200]!r}{log}")
    return headers, body
