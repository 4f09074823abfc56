"""The loads that servers are compared under: connections that always have a request in flight, and Poisson arrivals."""

from __future__ import annotations

import numpy as np

from app.bench.client import Pool, Request
from app.bench.drive import ClosedLoop, OpenLoop
from app.bench.http import Response
from app.bench.plan import Target
from app.bench.run import endless_picks, without_collections
from app.bench.stats import percentile
from loadtest.common.experiment import Data
from loadtest.common.paths import LOOPBACK

CONNECTIONS = 64
OPEN_CONNECTIONS = 512  # more wait in the client, which counts
TIMEOUT_S = 10.0


class Answers:
    """Keeps the first answer to each body, to be compared between contenders."""

    def __init__(self) -> None:
        self.first: dict[int, bytes] = {}

    def note(self, pick: int, response: Response) -> int:
        self.first.setdefault(pick, response.body)
        return 0


async def run_once(
    payloads: list[bytes], port: int, answers: Answers, seconds: float, rate: float | None, seed: int
) -> Data:
    """One load on a server: answers a second, and latencies in ms from the intended instant."""
    target = Target.parse(f"http://{LOOPBACK}:{port}")
    limit = CONNECTIONS if rate is None else OPEN_CONNECTIONS
    choose = np.random.default_rng([seed, 3])
    async with Pool(target, payloads, answers.note, limit=limit, timeout_s=TIMEOUT_S) as pool:
        drive: ClosedLoop | OpenLoop
        if rate is None:
            drive = ClosedLoop(pool, endless_picks(choose, range(len(payloads))), CONNECTIONS, seconds)
        else:
            gaps = np.random.default_rng([seed, 1]).exponential(1e9 / rate, int(rate * seconds * 1.5) + 16)
            instants = gaps.cumsum().astype(np.int64)
            instants = instants[instants < seconds * 1e9]
            picks = choose.integers(0, len(payloads), len(instants))
            drive = OpenLoop(pool, list(map(Request, instants.tolist(), picks.tolist())))
        with without_collections():
            await drive.run()
    log, start = drive.log, drive.start_ns
    intended, ended = (np.array([getattr(one, name) for one in log], np.int64) for name in ("intended", "ended"))
    right = np.array([one.status == 200 for one in log], bool)
    latency = (ended - intended)[right]
    in_time = int((ended[right] <= start + seconds * 1e9).sum())
    return {
        "per_s": in_time / seconds,
        "mean_ms": float(latency.mean()) / 1e6 if len(latency) else None,
        "p50_ms": percentile(latency, 0.5),
        "p99_ms": percentile(latency, 0.99),
        "failed": int((~right).sum()),
        "requests": len(intended),
    }
