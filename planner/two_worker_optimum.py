"""For two workers of a profile: the optimal policy, and the exact mean latencies of `adaptive` and `no_wait`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal import two_workers
from app.scheduler.optimal.process import Process
from app.scheduler.optimal.time_left import TimeLeft, kept_sizes
from app.scheduler.optimal.two_workers import Solution
from planner.profile_times import occupied_ns

_PHASES = 16
_EACH = 8  # up to this largest batch each size has columns of its own


def curves(profile: Profile) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """By rows: nanoseconds while two units run, nanoseconds alone, and the sizes at which rows are run.

    If the profile has no times of two units at once, they do not slow each other.
    """
    both = profile.times(2) if profile.concurrency_ns else profile.batch_ns
    together, sizes = padded(tuple(time + (profile.handover_ns or 0) for time in both))
    occupied = occupied_ns(profile)
    return together, tuple(occupied[size - 1] for size in sizes), sizes


def peak(profile: Profile) -> float:
    """The highest throughput in rows per second, with two workers, or with one if that is faster."""
    together, apart, _ = curves(profile)
    return max(size * 1e9 / min(both / 2, one) for size, (both, one) in enumerate(zip(together, apart, strict=True), 1))


def solved(profile: Profile, rate: float) -> tuple[Solution, TimeLeft]:
    """The best policy, and its columns. Takes seconds."""
    together, apart, _ = curves(profile)
    largest = len(together)
    sizes = tuple(range(1, largest + 1)) if largest <= _EACH else kept_sizes(largest, 2)
    beside = TimeLeft(sizes, tuple(together[size - 1] for size in sizes), _PHASES)
    process = Process(together, apart, rate, beside)
    return two_workers.solve(process, process.allowed(idling=True)), beside


def evaluated(process: Process, table: Sequence[Sequence[int]], tolerance: float = 1e-3) -> Solution:
    """The mean latency of the policy that runs `table[column][waiting]` rows, of as many as the process has states.

    Raises ValueError for a table that does not keep up with the rate or runs more rows than wait.
    """
    chosen = np.array(table, dtype=np.int64)
    if (chosen < 0).any() or (chosen > np.arange(process.states + 1)).any() or not chosen[0, -1]:
        raise ValueError("table: expected 0 to as many rows as wait, and not 0 at its end where both workers are free")
    found = two_workers.solve(process, chosen == np.arange(process.largest + 1)[:, None, None], tolerance=tolerance)
    if not found.settled:
        raise ValueError(f"rate: expected one that the policy keeps up with, got {process.rate * 1e9 / process.unit:g}")
    return found


def compared(profile: Profile, rate: float) -> tuple[Solution, float | None, float | None, list[str]]:
    """The best policy, the mean latencies in ns of `adaptive` and `no_wait` at a known rate, and the columns' names.

    None for a policy that does not keep up with the rate.
    """
    together, apart, _ = curves(profile)
    best, beside = solved(profile, rate)
    stage = replace(profile, errors=(), stages=())
    tables = control.solve(stage, workers=2, loads=(min(0.98, rate / peak(profile)),))
    waiting = range(len(best.table[0]))
    times = zip(beside.sizes, beside.times, strict=True)
    #: All columns but the first: rows of the other unit, phase, and nanoseconds that it has left.
    places = [(size, phase, time * phase / _PHASES) for size, time in times for phase in range(1, _PHASES + 1)]
    ours = [[tables.serve(0, rows) for rows in waiting]]
    for size, _, left in places:
        column = tables.beside.column(size, left) if tables.beside is not None else 0
        ours.append([tables.serve(0, rows, column) for rows in waiting])
    every = [[min(rows, len(together)) for rows in waiting]] * len(ours)
    process = Process(together, apart, rate, beside, states=len(waiting) - 1)

    def mean(table: Sequence[Sequence[int]]) -> float | None:
        with suppress(ValueError):  # it does not keep up with the rate
            return evaluated(process, table).mean_ns
        return None

    return best, mean(ours), mean(every), ["free", *(f"{phase}/{_PHASES} left of {size}" for size, phase, _ in places)]
