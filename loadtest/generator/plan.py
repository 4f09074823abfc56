"""The options of a measurement, checked when the plan is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from planner import arrivals
from planner.drawn_lengths import Lengths

_S = 1e9
_RATES = 1e-4, 1e6  # at most what a client can send; at far less the first instants drawn at once are beyond any clock
_REQUESTS = 10_000_000  # of a run: all are in memory before it begins
_MOST = {"concurrency": 65_536, "connections": 1_000_000, "rows": 1_000_000, "repeats": 1_000_000}


class Unusable(ValueError):
    """The server or the model cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address from its URL. `authority`: for the Host header. `prefix`: the path before /v2."""

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """`http://host:port/prefix`; the scheme may be left out. Raises ValueError."""
        try:
            url.encode("ascii")
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError
        except ValueError:
            raise ValueError(f"url: expected http://host:port, got {url!r}") from None
        tls = parts.scheme == "https"
        authority = parts.netloc.rpartition("@")[2]
        return cls(parts.hostname, port or (443 if tls else 80), tls, authority, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """One measurement of one model. Raises ValueError, `field: expected ..., got ...`.

    `rate` (per second) makes an open loop, `concurrency` (requests in flight) a closed one; only `find_peak` needs
    neither. Repeat k has the seed `seed + k`. `shapes` (NAME:d,d) are those of one row, without the batch axis.
    `headers` are NAME: VALUE. `priority` is sent as the parameter of that name, if it is given.
    """

    url: str
    model: str
    rate: float | None = None
    concurrency: int | None = None
    arrivals: str = "poisson"
    duration_s: float = 10
    warmup_s: float = 2
    repeats: int = 3
    seed: int = 0
    payload: str = "json"
    rows: int = 1
    lengths: str = "16"
    shapes: tuple[str, ...] = ()
    data: Path | None = None
    deadline_ms: float | None = None
    connections: int = 256
    timeout_s: float = 10
    headers: tuple[str, ...] = ()
    priority: int | None = None
    check: str = "values"
    max_lag_ms: float | None = None

    def __post_init__(self) -> None:
        Target.parse(self.url)
        Lengths(self.lengths, [self.seed])
        if not self.model:
            raise ValueError("model: expected a model's name; give --model")
        if self.concurrency is not None and (self.rate is not None or self.arrivals != "poisson"):
            raise ValueError("concurrency: a closed loop has no rate and no arrivals")
        if self.concurrency is None:
            arrivals.make(self.arrivals, 1.0 if self.rate is None and not self.traced else self.rate, self.seed)
            if self.rate is not None and not _RATES[0] <= self.rate <= _RATES[1]:
                raise ValueError(
                    f"rate: expected {_RATES[0]:g} to {_RATES[1]:g} requests per second, got {self.rate:g}"
                )
        for name, least in (("concurrency", 1), ("repeats", 1), ("rows", 1), ("connections", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")
            if value is not None and value > _MOST.get(name, value):
                raise ValueError(f"{name}: expected at most {_MOST[name]}, got {value}")
        for name in ("duration_s", "timeout_s", "deadline_ms", "max_lag_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                raise ValueError(f"{name}: expected above 0 and below 1e6, got {value}")
        if not 0 <= self.warmup_s < 1e6:
            raise ValueError(f"warmup_s: expected at least 0 and below 1e6, got {self.warmup_s}")
        if self.rate is not None and self.rate * max(self.duration_s, self.warmup_s) > _REQUESTS:
            raise ValueError(f"rate: expected at most {_REQUESTS} requests in a run, got {self.rate:g} per second")
        for name, choices in (("payload", ("json", "binary")), ("check", ("values", "shapes"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: expected {' or '.join(choices)}, got {getattr(self, name)!r}")
        for header in self.headers:
            name, colon, value = header.partition(":")
            if not (colon and name.strip() and (name + value).isascii() and (name + value).isprintable()):
                raise ValueError(f"header: expected NAME: VALUE, got {header!r}")

    @property
    def target(self) -> Target:
        return Target.parse(self.url)

    @property
    def path(self) -> str:
        """The path of the model's metadata; inference is below it."""
        return f"{self.target.prefix}/v2/models/{quote(self.model, safe='')}"

    @property
    def traced(self) -> bool:
        """Whether arrivals are a recorded trace, which has its own rate."""
        return self.arrivals.startswith("trace:")

    @property
    def mean_rate(self) -> float | None:
        """Requests per second in the long run: that of the arrival process, or of the trace."""
        if self.concurrency is not None:
            return None
        return arrivals.make(self.arrivals, self.rate, self.seed).rate

    def instants(self, rate: float | None, seed: int, duration_s: float) -> NDArray[np.int64]:
        """When to send requests, in ns from the start; the simulator uses the same instants for the same arguments."""
        end = round(duration_s * _S)
        chunks: list[NDArray[np.int64]] = []
        for chunk in arrivals.make(self.arrivals, rate, seed).chunks():
            chunks.append(chunk[chunk < end])
            if len(chunks[-1]) < len(chunk):
                break
        return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
