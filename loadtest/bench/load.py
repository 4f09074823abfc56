"""What a load is, and what comes of one: the shapes that both clients (ours and wrk) share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

#: The checkout: child processes start here, so that they can import this package.
ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"
CONNECTIONS = 64
#: After the last request was sent: how long answers may still take, seconds.
GRACE_S = 10.0


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
    """A closed loop: `connections` clients, each sending `request` again as soon as it is answered.

    It ends after `seconds` or `max_requests`, whichever is first. Where `answer` is given each body must equal it.
    `capture` names a response header whose values are kept, up to `max_captured` of them.
    """

    port: int
    request: Request
    seconds: float
    connections: int = CONNECTIONS
    max_requests: int = 5_000_000
    answer: bytes | None = None
    capture: str = ""
    max_captured: int = 50_000


@dataclass(frozen=True)
class Result:
    """What a load brought: answers with status 200 within `seconds`, and what went wrong, by kind.

    Latencies in milliseconds, as the client saw them. `captured` pairs a latency with the header's value.
    """

    requests: int
    seconds: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    failed: dict[str, int] = field(default_factory=dict)
    captured: list[tuple[float, str]] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds > 0 else 0.0


class LoadError(Exception):
    """A load could not be run, or was not answered as it must be."""


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in ascending order; NaN of none."""
    if not ordered:
        return float("nan")
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]
