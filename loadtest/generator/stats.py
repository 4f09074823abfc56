"""Statistics of runs: percentiles of one run, means over several with confidence intervals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from .client import TimedRequest
from .http import line_of, value_of
from .seen_answers import UNCHECKED

_MS = 1e6
Column = NDArray[np.int64]

#: Quantiles of Student's t for a two-sided 95 %, by degrees of freedom from 1.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_TIMES = "intended", "offered", "sent", "ended"
_BATCH, _TIMING = line_of(b"x-batch-size"), line_of(b"server-timing")
_COMPUTE = re.compile(rb"compute;dur=([0-9.]+)")
_QUEUE = re.compile(rb"queue;dur=([0-9.]+)")
_TOTAL = re.compile(rb"total;dur=([0-9.]+)")

PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
#: The figures of a run, in the order of the JSON: title in the table, and unit.
FIGURES = {
    "mean_ms": ("mean", "ms"), "p50_ms": ("50 %", "ms"), "p90_ms": ("90 %", "ms"), "p99_ms": ("99 %", "ms"),
    "p999_ms": ("99.9 %", "ms"), "max_ms": ("longest", "ms"), "throughput": ("answers", "/s"),
    "goodput": ("within the deadline", "/s"), "client_queue_ms": ("wait for a connection", "ms"),
    "lag_p50_ms": ("generator's lag, 50 %", "ms"), "lag_p99_ms": ("generator's lag, 99 %", "ms"),
    "mean_batch": ("rows in a batch", ""), "compute_ms": ("server: compute", "ms"),
    "server_ms": ("server: total", "ms"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repeat:
    """One run. Columns are int64 ns with one entry for each request, in the order of their intended instants.

    `intended_ns` counts from the start. `latency_ns`, from the intended instant to the last byte, is -1 without a right
    answer. `wait_ns`, for a connection, is -1 if the request was not sent. `queue_ns`, `compute_ns`, `server_ns`
    (Server-Timing: queue, compute, total) are -1 and `batch` (X-Batch-Size) is 0 if the server does not report them.
    `lag_ns` is how late this process was: for each request in an open loop, at each check in a closed one.
    """

    seed: int
    duration_s: float
    elapsed_s: float  # to the last answer, at least `duration_s`
    intended_ns: Column
    latency_ns: Column
    wait_ns: Column
    lag_ns: Column
    compute_ns: Column
    server_ns: Column
    queue_ns: Column
    batch: Column
    status: Counter[int]
    errors: Counter[str]  # by kind; errors and completed requests add up to all
    examples: dict[str, str]  # the full text of the first error of each kind
    unchecked: int  # completed but not compared, because of too many different answers

    @property
    def completed(self) -> Column:
        """Latencies of the right answers in ns, in the order of their intended instants."""
        return self.latency_ns[self.latency_ns >= 0]

    @property
    def unlagged(self) -> Column:
        """`completed` of an open loop, measured from when each request was offered to the pool."""
        return (self.latency_ns - self.lag_ns)[self.latency_ns >= 0]

    def figures(self, deadline_ms: float | None) -> dict[str, float | None]:
        """The values of FIGURES; None for unknown ones."""
        done = self.completed
        found: dict[str, float | None] = {
            "mean_ms": _mean(done, _MS),
            **{name: percentile(done, share) for name, share in PERCENTILES.items()},
            "max_ms": float(done.max()) / _MS if len(done) else None,
            "throughput": len(done) / self.elapsed_s,
            "goodput": None if deadline_ms is None else int((done <= deadline_ms * _MS).sum()) / self.elapsed_s,
            "client_queue_ms": _mean(self.wait_ns[self.wait_ns >= 0], _MS),
            "lag_p50_ms": percentile(self.lag_ns, 0.5),
            "lag_p99_ms": percentile(self.lag_ns, 0.99),
        }
        batches = self.batch[self.batch > 0]
        # each of the b rows of a batch reports b, so the mean over batches is the harmonic mean over rows
        found["mean_batch"] = len(batches) / float((1 / batches).sum()) if len(batches) else None
        found["compute_ms"] = _mean(self.compute_ns[self.compute_ns >= 0], _MS)
        found["server_ms"] = _mean(self.server_ns[self.server_ns >= 0], _MS)
        return found


def collect(
    log: Sequence[TimedRequest], start_ns: int, duration_s: float, seed: int, wrong: Sequence[str], lags: Sequence[int]
) -> Repeat:
    """The Repeat of a finished log. `wrong`: see `Answers.judge`. `lags`: of a closed loop; empty for an open one."""
    intended, offered, sent, ended = (_column(map(attrgetter(name), log)) for name in _TIMES)
    numbers = _column(request.answer for request in log)
    faults = [fault_of(request, wrong) for request in log]
    right = np.array([not fault for fault in faults], bool)
    errors, examples = by_kind(faults)
    batches = [value_of(request.head, _BATCH) for request in log]
    timings = [value_of(request.head, _TIMING) for request in log]
    last = int(ended.max()) - start_ns if len(ended) else 0
    return Repeat(
        seed=seed,
        duration_s=duration_s,
        elapsed_s=max(duration_s, last / 1e9),
        intended_ns=intended - start_ns,
        latency_ns=np.where(right, ended - intended, -1),
        wait_ns=np.where(sent > 0, sent - offered, -1),
        lag_ns=np.array(lags, np.int64) if len(lags) else offered - intended,
        compute_ns=_timing(timings, _COMPUTE),
        server_ns=_timing(timings, _TOTAL),
        queue_ns=_timing(timings, _QUEUE),
        batch=np.array([int(size) if size.isdigit() else 0 for size in batches], np.int64),
        status=Counter(request.status for request in log if request.status),
        errors=errors,
        examples=examples,
        unchecked=int((right & (numbers == UNCHECKED)).sum()),
    )


def fault_of(request: TimedRequest, wrong: Sequence[str]) -> str:
    """Why there is no right answer; "" if there is. `wrong`: see `Answers.judge`."""
    if request.status != 200 or request.answer == UNCHECKED:
        return request.fault
    return request.fault or wrong[request.answer]


def by_kind(faults: Iterable[str]) -> tuple[Counter[str], dict[str, str]]:
    """Counts by kind, which is the text before the colon, and the first fault of each kind."""
    errors: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for fault in filter(None, faults):
        kind = fault.partition(":")[0]
        errors[kind] += 1
        examples.setdefault(kind, fault)
    return errors, examples


def percentile(values: Column, share: float) -> float | None:
    """The percentile by nearest rank, of ns in ms; None without values."""
    if not len(values):
        return None
    rank = max(1, math.ceil(share * len(values)))
    return float(np.partition(values, rank - 1)[rank - 1]) / _MS


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % confidence interval of the mean (Student's t); None for fewer than two values."""
    if len(values) < 2:
        return None
    freedom = len(values) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom  # to 0.002 beyond the table
    return t * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def summary(repeats: Sequence[Repeat], deadline_ms: float | None) -> dict[str, float | None]:
    """The mean of each figure over the repeats, with `NAME_ci95`. `max_ms` is the largest, without an interval."""
    each = [repeat.figures(deadline_ms) for repeat in repeats]
    found: dict[str, float | None] = {}
    for name in FIGURES:
        values = [value for figures in each if (value := figures[name]) is not None]
        found[name] = (max(values) if name == "max_ms" else sum(values) / len(values)) if values else None
        found[f"{name}_ci95"] = None if name == "max_ms" else interval(values)
    return found


def _mean(values: Column, unit: float) -> float | None:
    return float(values.mean()) / unit if len(values) else None


def _column(values: Iterable[int]) -> Column:
    return np.fromiter(values, np.int64)


def _timing(timings: Sequence[bytes], pattern: re.Pattern[bytes]) -> Column:
    found = (timing and pattern.search(timing) for timing in timings)
    return np.array([round(float(match[1]) * _MS) if match else -1 for match in found], np.int64)
