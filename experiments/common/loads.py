"""Loads on a server of any kind: connections that always have a request in flight, and Poisson arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.common.experiment import Data
from loadtest.common.paths import LOOPBACK
from loadtest.generator.client import ConnectionPool, TimedRequest
from loadtest.generator.drive import ClosedLoop, OpenLoop
from loadtest.generator.http import Response
from loadtest.generator.plan import Target
from loadtest.generator.run import endless_picks, without_collections
from loadtest.generator.stats import percentile

CONNECTIONS = 64
OPEN_CONNECTIONS = 512  # more wait in the client, which counts
TIMEOUT_S = 10.0


JSON = {"Content-Type": "application/json"}


def post(path: str, port: int, body: bytes, headers: Mapping[str, str] = JSON) -> bytes:
    """The bytes of a request."""
    given = {"Host": f"{LOOPBACK}:{port}", **headers, "Content-Length": len(body)}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode() + body


class Answers:
    """Keeps the first answer to each body, to be compared between contenders."""

    def __init__(self) -> None:
        self.first: dict[int, bytes] = {}

    def note(self, pick: int, response: Response) -> int:
        self.first.setdefault(pick, response.body)
        return 0


@dataclass(frozen=True)
class Answered:
    """Of one load: latencies in ns of right answers, which of these came within its time, and what was wrong else."""

    latency_ns: NDArray[np.int64]
    in_time: NDArray[np.bool_]
    faults: list[str]

    def figures(self, seconds: float) -> Data:
        """Answers a second, and latencies in ms from the intended instant."""
        latency = self.latency_ns
        return {
            "per_s": int(self.in_time.sum()) / seconds,
            "mean_ms": float(latency.mean()) / 1e6 if len(latency) else None,
            "p50_ms": percentile(latency, 0.5),
            "p99_ms": percentile(latency, 0.99),
            "failed": len(self.faults),
            "requests": len(latency) + len(self.faults),
        }


async def run_once(
    payloads: list[bytes],
    port: int,
    answers: Answers,
    seconds: float,
    rate: float | None,
    seed: int,
    *,
    connections: int = CONNECTIONS,
    timeout_s: float = TIMEOUT_S,
) -> Answered:
    """One load on a server: Poisson arrivals of this rate, or a closed loop of so many connections."""
    target = Target.parse(f"http://{LOOPBACK}:{port}")
    limit = connections if rate is None else OPEN_CONNECTIONS
    choose = np.random.default_rng([seed, 3])
    async with ConnectionPool(target, payloads, answers.note, limit=limit, timeout_s=timeout_s) as pool:
        drive: ClosedLoop | OpenLoop
        if rate is None:
            drive = ClosedLoop(pool, endless_picks(choose, range(len(payloads))), connections, seconds)
        else:
            gaps = np.random.default_rng([seed, 1]).exponential(1e9 / rate, int(rate * seconds * 1.5) + 16)
            instants = gaps.cumsum().astype(np.int64)
            instants = instants[instants < seconds * 1e9]
            picks = choose.integers(0, len(payloads), len(instants))
            drive = OpenLoop(pool, list(map(TimedRequest, instants.tolist(), picks.tolist())))
        with without_collections():
            await drive.run()
    right = [one for one in drive.log if not one.fault]
    intended, ended = (np.array([getattr(one, name) for one in right], np.int64) for name in ("intended", "ended"))
    in_time = ended <= drive.start_ns + seconds * 1e9
    return Answered(ended - intended, in_time, [one.fault for one in drive.log if one.fault])
