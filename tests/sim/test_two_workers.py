"""The optimum of two workers beside what `adaptive` does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiers import full

from app.scheduler.estimates.profile import linear
from app.scheduler.optimal import tables as control
from app.scheduler.optimal import two_workers
from app.sim.fleet import Setup, run
from app.sim.two_workers import curves, peak, solved

PROFILE = linear(7, 1, 6)
#: Two at once take 1.2 times, or 3 times as long.
SLOWED = {slow: replace(PROFILE, concurrency_ns={2: tuple(round(slow * t) for t in PROFILE.batch_ns)})
          for slow in (1.0, 1.2, 3.0)}  # fmt: skip


def test_peak_is_that_of_as_many_as_are_best() -> None:
    alone = 6 * 1e9 / PROFILE.batch_ns[5]
    assert [peak(SLOWED[slow]) / alone for slow in (1.0, 1.2, 3.0)] == pytest.approx([2, 2 / 1.2, 1])
    assert peak(PROFILE) == peak(SLOWED[1.0])


@full
@pytest.mark.parametrize(("slow", "load"), [(1.0, 0.3), (1.2, 0.8), (3.0, 0.3)])
def test_adaptive_is_near_the_optimum(slow: float, load: float) -> None:
    """By the exact mean of its table at a known rate; that of `no_wait` is not."""
    profile = SLOWED[slow]
    rate = load * peak(profile)
    together, apart, _ = curves(profile)
    best, beside = solved(profile, rate)
    tables = control.solve(replace(profile.stage(2), errors=()), workers=2, loads=(load,))
    waiting = range(len(best.table[0]))
    columns = [0]  # of a free worker, then by what the other one has left
    for size, time in zip(beside.sizes, beside.times, strict=True):
        for phase in range(1, beside.phases + 1):
            left = time * phase / beside.phases
            columns.append(tables.beside.column(size, left) if tables.beside is not None else 0)
    adaptive = [[tables.serve(0, rows, column) for rows in waiting] for column in columns]
    no_wait = [[min(rows, len(together)) for rows in waiting]] * len(columns)
    means = [two_workers.evaluate(together, apart, rate, beside, table).mean_ns for table in (adaptive, no_wait)]
    assert best.mean_ns * 0.999 < means[0] < 1.01 * best.mean_ns < means[1]


@full
def test_the_simulator_agrees() -> None:
    """`adaptive` on the scheduler itself, in one run whose standard error is about 1 %."""
    profile = SLOWED[1.2]
    rate = 0.6 * peak(profile)
    setup = Setup(profile, rate, requests=8_000, device="shared", workers=(6, 6), max_queue=1 << 30)
    assert run(setup)["mean_ms"] == pytest.approx(solved(profile, rate)[0].mean_ns / 1e6, rel=0.04)
