"""Late Batching's experiment: an LSTM cell, by `late` and by `adaptive`, against padded buckets on the same device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.scheduler.estimates.profile import Profile
from experiments.papers.stages_runs import QUEUE, System, figures
from planner.fleet import Setup

CELL_MS = 0.2
CELL_FILL = 64
CELL_BATCH = 512
WMT = "lognormal:22:0.65:1:330"
POLICIES = ("late", "adaptive")
WIDTHS = (5, 10, 20, 40, 330)  # of the baseline's buckets
DATASETS = {"fixed 20": "fixed:20", "WMT-like": WMT}
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def cell() -> Profile:
    sizes = range(1, CELL_BATCH + 1)
    step = Profile(tuple(round(CELL_MS * max(1.0, size / CELL_FILL) * 1e6) for size in sizes), cell=True)
    return replace(step, cell=False, model="lstm", stages=(step,))


def padded() -> Profile:
    """The same cell, run for the longest row of each batch."""
    step = cell().batch_ns
    return Profile(step, by_length=tuple((length, tuple(length * time for time in step)) for length in (1, 330)))


def cells(given: tuple[str, int]) -> dict[str, Any]:
    """One data set: the best bucket width, what each serves at most, and latencies at shares of the baseline's most.

    Rates at most are of so many requests, latencies of a tenth: percentiles need no more, and low loads take longest.
    """
    name, requests = given

    def served(setup: Setup, rate: float, count: int = requests) -> dict[str, float]:
        return figures(System(setup), rate, count, least_s=0)

    by_cell = {policy: Setup(cell(), 1.0, policy, max_queue=QUEUE, lengths=DATASETS[name]) for policy in POLICIES}
    base = by_cell["late"]
    buckets = {
        width: replace(base, profile=padded(), policy="no_wait", length_buckets=tuple(range(width, 330, width)))
        for width in (WIDTHS if name != "fixed 20" else WIDTHS[-1:])
    }
    flood = 3 * base.peak
    most = {width: served(setup, flood)["throughput"] for width, setup in buckets.items()}
    width = max(most, key=lambda one: most[one])
    found: dict[str, Any] = {
        "dataset": name, "width": width, "widths": {str(one): rate for one, rate in most.items()},
        "most": {"buckets": most[width]}, "shares": {},
    }  # fmt: skip
    for policy, setup in by_cell.items():
        found["most"][policy] = served(setup, flood)["throughput"]
    for share in SHARES:
        rate = share * most[width]
        compared = {"buckets": buckets[width], **by_cell}
        found["shares"][str(share)] = {
            system: served(setup, rate, requests // 10) for system, setup in compared.items()
        }
    return found
