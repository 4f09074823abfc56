"""Control tables: the best action for each number of waiting rows, solved beforehand for a grid of loads.

`solve` takes seconds, so it must run off the event loop; looking a table up is O(1). Loads are shares of the device's
peak rate, so a device that becomes slower uses another row of the same tables. One worker is never idle while rows
wait; of several, one may wait for another. How they are solved: docs/theory/tables.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.scheduler.estimates.parts import padded, parted
from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.smooth import Estimate, drawn
from app.scheduler.optimal.time_left import TimeLeft, kept_sizes

if TYPE_CHECKING:
    from app.scheduler.optimal.solver import Optimum

LOADS = (0.02, *(round(0.05 * i, 2) for i in range(1, 20)), 0.98)
#: For several workers: their tables take longer to solve and change less from load to load (docs/bench/many.md).
LOADS_OF_SEVERAL = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
LARGEST = 256  # rows: a table for larger batches takes minutes, and their time per row hardly falls any more
_STATES = 128  # waiting rows in a table, at least; beyond them the size of the highest throughput is run
_TOLERANCE = 0.02  # share of the mean latency: the tables hardly change after that
_ROUNDS = 60  # for several workers: the mean may settle later, but the tables hardly change after that
_SEVERAL = 32  # for several workers: the largest batch solved row by row
_PHASES = 8  # phases of a running unit: with 4 the mean latency is up to 4 % higher at load 0.9


@dataclass(frozen=True, slots=True)
class ControlTables:
    """`tables[level][n]`: rows to run if n wait; beyond a table `tail`. Level i is the load `loads[i]`.

    For several workers that is used while more than one is free (column 0), and `others[level][column - 1][n]` while
    one is, 0 to wait until another ends; beyond such a table its last entry.
    """

    loads: tuple[float, ...]
    tables: tuple[tuple[int, ...], ...]
    tail: int
    sizes: tuple[int, ...]  # sizes[b - 1]: the size at which b rows are run, beside other units if there are any
    peak: float  # rows per second of all workers at best
    workers: int = 1
    alone: tuple[int, ...] = ()  # the same for a unit that runs alone; () for one worker
    #: By level, for programs of several stages: the mean number of rows in the system, and the relative value of each
    #: number of waiting rows when the device is free, in rows x ns.
    inside: tuple[float, ...] = ()
    values: tuple[tuple[float, ...], ...] = ()
    beside: TimeLeft | None = None
    others: tuple[tuple[tuple[int, ...], ...], ...] = ()
    mean_ns: tuple[float, ...] = ()  # by level: the mean latency

    def level(self, rate: float, scale: float) -> int:
        """The level nearest to a rate in rows/s on a device that takes `scale` times as long as profiled.

        -1 for one worker below half the lowest load: rows arrive so seldom that waiting for one never pays.
        """
        load = rate * scale / self.peak
        if load < self.loads[0] / 2 and self.beside is None:
            return -1
        nearest = bisect_right(self.loads, load)
        if nearest == len(self.loads) or (nearest and load - self.loads[nearest - 1] < self.loads[nearest] - load):
            return nearest - 1
        return nearest

    def serve(self, level: int, waiting: int, column: int = 0) -> int:
        """Rows to run if so many wait, 0 for wait. `column`: see `TimeLeft`."""
        if column:
            table = self.others[level][column - 1]
            return table[min(waiting, len(table) - 1)]
        table = self.tables[level]
        return table[waiting] if waiting < len(table) else self.tail


def solve(profile: Profile, *, workers: int = 1, loads: Sequence[float] = (), lead_ns: int = 0) -> ControlTables:
    """Tables for `workers` units at once. Takes seconds. Batches beyond 256 rows are not considered.

    `loads`: ascending, below 1; by default `LOADS` or `LOADS_OF_SEVERAL`. A batch is run as one unit, or as one for
    each stage. Each occupies its worker for the profile's hand-over as well, except for `lead_ns` of the first, which
    passes while the worker ends its last unit.

    On one worker tables for stages also have the values of states, which are needed at their boundaries; and without
    times by length, batch times are those of stages that each run a batch in the parts that are fastest.

    Raises ValueError for an empty profile.
    """
    if not profile.batch_ns:
        raise ValueError("profile: expected batch times, got none")
    profile = smooth(profile)
    times = profile.times_of(workers)
    handover_ns = profile.handover_ns or 0
    beyond_ns = max(0, handover_ns - lead_ns) + (len(profile.parts) - 1) * handover_ns
    times = tuple(time + beyond_ns for time in times[:LARGEST])
    if workers > 1:
        apart = tuple(time + beyond_ns for time in profile.times_of(workers - 1)[:LARGEST])
        return _of_several(profile, times, apart, workers, loads or LOADS_OF_SEVERAL)
    stages = () if any(stage.cell for stage in profile.stages) else profile.stages
    if len(stages) > 1 and not any(stage.by_length for stage in stages):
        times = _in_parts(stages, handover_ns, lead_ns)
    return _of_one(times, loads or LOADS, valued=bool(stages))


def _of_one(times: tuple[int, ...], loads: Sequence[float], *, valued: bool) -> ControlTables:
    """Tables for one worker."""
    from app.scheduler.optimal import solver  # imports numpy, which looking tables up does not need

    peak = Profile(times).peak  # rows/s
    states = max(_STATES, 2 * len(times))
    solved: list[Optimum] = []
    for load in loads:
        start = solved[-1].table if solved else ()
        solved.append(solver.solve(times, load * peak, idling=False, states=states, start=start))
    worth = [solver.values(times, best) for best in solved] if valued else []
    return ControlTables(
        loads=tuple(loads),
        tables=tuple(best.table for best in solved),
        tail=solved[-1].tail,
        sizes=solved[0].sizes,
        peak=peak,
        inside=tuple(inside for inside, _ in worth),
        values=tuple(values for _, values in worth),
        mean_ns=tuple(best.mean_ns for best in solved),
    )


def _of_several(
    profile: Profile, together: tuple[int, ...], apart: tuple[int, ...], workers: int, loads: Sequence[float]
) -> ControlTables:
    """Tables for several workers. `together`, `apart`: batch times while all workers run, and while all but one do.

    If the largest batch has more than 32 rows, groups of rows are treated as one row, so that solving takes seconds.
    """
    from app.scheduler.optimal import two_workers
    from app.scheduler.optimal.process import Process

    padded_ns, sizes = padded(together)
    alone_ns = profile.batch_ns[:LARGEST]
    alone = padded(alone_ns)[1]
    group = -(-len(sizes) // _SEVERAL)
    # The padded times: a size that was measured too slow, by a spike, must not make all larger ones slow.
    apart_ns = padded(tuple(apart[size - 1] for size in sizes))[0]
    rows = range(group, len(sizes) + 1, group)
    times, fewer = (tuple(one[size - 1] for size in rows) for one in (padded_ns, apart_ns))
    kept = kept_sizes(len(times))
    beside = TimeLeft(kept, tuple(times[size - 1] for size in kept), _PHASES)
    fastest = [min(both / workers, one / (workers - 1)) for both, one in zip(times, fewer, strict=True)]
    peak = max(rows / time for rows, time in enumerate(fastest, 1))
    errors = tuple(profile.errors[size - 1] for size in rows) if profile.errors else ()
    processes = (Process(times, fewer, load * peak * 1e9, beside, workers=workers) for load in loads)
    solved = [
        two_workers.solve(one, one.allowed(idling=False), tolerance=_TOLERANCE, rounds=_ROUNDS, errors=errors)
        for one in processes
    ]

    def rows_of(table: Sequence[int]) -> tuple[int, ...]:
        waiting = range((len(table) - 1) * group + 1)
        return tuple(min(rows, table[-(-rows // group)] * group) for rows in waiting)

    tables = [[rows_of(column) for column in one.table] for one in solved]
    return ControlTables(
        loads=tuple(loads),
        tables=tuple(columns[0] for columns in tables),
        tail=tables[-1][0][-1],
        sizes=sizes,
        peak=peak * group * 1e9,
        workers=workers,
        alone=alone,
        beside=TimeLeft(tuple(size * group for size in kept), beside.times, _PHASES),
        others=tuple(tuple(columns[1:]) for columns in tables),
        mean_ns=tuple(best.mean_ns for best in solved),
    )


def smooth(profile: Profile) -> Profile:
    """Without what is not significant, see `drawn`."""
    if not any(profile.errors):
        return profile

    def each(times: Sequence[int]) -> tuple[int, ...]:
        known = {size: Estimate(*one) for size, one in enumerate(zip(times, profile.errors, strict=True), 1)}
        return tuple(max(1, round(time)) for time in drawn(known).values())

    together = {units: each(times) for units, times in profile.concurrency_ns.items()}
    return replace(profile, batch_ns=each(profile.batch_ns), concurrency_ns=together)


def _in_parts(stages: Sequence[Profile], handover_ns: int, lead_ns: int) -> tuple[int, ...]:
    """By rows: the time of a batch if each stage runs it padded and in parts, whatever is fastest for the stage."""
    begun = (max(0, handover_ns - lead_ns), *[handover_ns] * (len(stages) - 1))  # later stages are not pushed ahead
    totals = [
        parted(padded(tuple(time + extra for time in stage.batch_ns[:LARGEST]))[0])[0]
        for stage, extra in zip(stages, begun, strict=True)
    ]
    return tuple(map(sum, zip(*totals, strict=True)))
