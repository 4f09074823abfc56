"""Control tables: the optimum of each load, looked up by the load as it is."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache

import pytest
from pydantic import TypeAdapter
from tiers import full

from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse
from app.scheduler.optimal import solver as optimal
from app.scheduler.optimal import two_workers
from app.scheduler.optimal.process import Process
from app.scheduler.optimal.tables import LOADS, ControlTables, smooth, solve
from app.scheduler.optimal.time_left import TimeLeft
from planner.profile_times import linear

MS = 1_000_000
CURVES = {
    "jagged": parse({"batch_ms": {"1": 4.6, "2": 9.5, "3": 14.0, "4": 10.0, "8": 11.7}}).batch_ns,
    "overhead": linear(7, 0.6, 8).batch_ns,
}
GRID = (0.1, 0.5, 0.9)


@cache
def solved(curve: str) -> ControlTables:
    return solve(Profile(CURVES[curve]), loads=GRID)


def hand_made(*loads: float, **options: object) -> ControlTables:
    """Tables that serve one row each, on a device that serves 100 rows a second."""
    tables = ControlTables(loads, ((0, 1),) * len(loads), 1, (1,), 100.0)
    return replace(tables, **options)  # type: ignore[arg-type]


def test_the_level_is_the_nearest_load() -> None:
    tables = hand_made(*LOADS)
    for rate in (0.1 * step + 0.0123 for step in range(1_200)):
        load = rate / 100
        nearest = min(range(len(LOADS)), key=lambda i: abs(LOADS[i] - load))
        assert tables.level(rate, 1.0) == (nearest if load >= LOADS[0] / 2 else -1)


@full
def test_padding_alone_is_that_of_the_curve_alone() -> None:
    """Three rows are run as four where two units run, and as three where there is one; one worker needs no second."""
    profile = Profile((4 * MS, 5 * MS, 6 * MS, 7 * MS), {2: (8 * MS, 9 * MS, 15 * MS, 12 * MS)})
    one, two = (solve(profile, workers=workers, loads=(0.5,)) for workers in (1, 2))
    assert (two.sizes, two.alone) == ((1, 2, 4, 4), (1, 2, 3, 4))
    assert (one.sizes, one.alone) == ((1, 2, 3, 4), ())


@full
@pytest.mark.parametrize(("lead_ns", "left_ns"), [(2 * MS, MS), (0, 3 * MS), (9 * MS, 0)])
def test_a_hand_over_keeps_the_worker_as_computing_does(lead_ns: int, left_ns: int) -> None:
    """But for what of it passes while the worker ends its last unit."""
    times = (4 * MS, 5 * MS, 9 * MS, 6 * MS)
    found = solve(Profile(times, handover_ns=3 * MS), loads=GRID, lead_ns=lead_ns)
    assert found == solve(Profile(tuple(time + left_ns for time in times)), loads=GRID)


def test_a_batch_in_stages_is_handed_over_for_each_and_ahead_only_for_the_first() -> None:
    """With times by length stages run whole batches."""
    times = (4 * MS, 5 * MS)
    stages = (Profile(times, by_length=((8, times),)),) * 3
    found = solve(Profile(times, handover_ns=3 * MS, stages=stages), loads=GRID, lead_ns=2 * MS)
    slower = tuple(time + 7 * MS for time in times)
    assert found == solve(Profile(slower, stages=(Profile(slower),)), loads=GRID)


def test_those_of_stages_have_values_and_those_of_a_cell_have_none() -> None:
    whole, half = linear(4, 1, 4), linear(2, 0.5, 4)
    found = solve(replace(whole, stages=(half, half)), loads=GRID)
    assert len(found.values) == len(found.inside) == len(GRID)
    assert found == solve(replace(whole, stages=(whole,)), loads=GRID)
    of_cell = solve(replace(whole, stages=(half, replace(half, cell=True))), loads=GRID)
    assert of_cell == replace(found, values=(), inside=()) == solve(whole, loads=GRID)


def test_tables_survive_the_json_of_a_record() -> None:
    tables = solved("jagged")
    stage = Profile(CURVES["jagged"][:4])
    valued = solve(replace(stage, stages=(stage,)), loads=(0.3, 0.5))
    assert len(valued.values) == len(valued.inside) == 2
    several = hand_made(0.5, workers=2, alone=(1,), beside=TimeLeft((1,), (4 * MS,), 2), others=(((0, 1), (0, 0)),))
    for one in (tables, valued, several):
        assert TypeAdapter(ControlTables).validate_python(json.loads(json.dumps(asdict(one)))) == one


@pytest.mark.parametrize("curve", CURVES)
def test_tables_are_the_optimum_of_their_load(curve: str) -> None:
    batch_ns = CURVES[curve]
    tables = solved(curve)
    assert (tables.loads, tables.workers, len(tables.tables)) == (GRID, 1, 3)
    assert tables.peak == pytest.approx(Profile(batch_ns).peak)
    for table, load in zip(tables.tables, GRID, strict=True):
        best = optimal.solve(batch_ns, load * Profile(batch_ns).peak, idling=False, states=128)
        assert table == best.table
        assert (tables.tail, tables.sizes) == (best.tail, best.sizes)


def test_errors_only_smooth_the_times() -> None:
    doubted = Profile(linear(0.2, 3, 8).batch_ns, errors=(0.2,) * 8)
    found, exact = (solve(one, loads=(0.5,)).tables[0] for one in (doubted, replace(smooth(doubted), errors=())))
    assert found == exact != tuple(min(waiting, 8) for waiting in range(len(found)))


@full
class TestWorkers:
    TIMES = (linear(7, 0.6, 8).batch_ns, linear(9, 1.2, 8).batch_ns, linear(12, 2, 8).batch_ns)
    PROFILE = Profile(TIMES[0], {2: TIMES[1], 3: TIMES[2]})

    @pytest.mark.parametrize(("workers", "table"), [(2, 1), (3, 2), (5, 2)])
    def test_batches_take_what_they_take_while_all_run(self, workers: int, table: int) -> None:
        """More workers than were measured run as the most that were; half of them as that many."""
        tables = solve(self.PROFILE, workers=workers, loads=(0.5,))
        times, half = self.TIMES[table], self.TIMES[min(2, -(-workers // 2) - 1)]
        beside = TimeLeft((2, 8), (times[1], times[7]), 8)
        assert (tables.workers, tables.beside, tables.alone) == (workers, beside, tuple(range(1, 9)))
        assert tables.peak == pytest.approx(max(workers * Profile(times).peak, -(-workers // 2) * Profile(half).peak))
        rate = 0.5 * tables.peak
        process = Process(times, half, rate, beside, workers=workers)
        best = two_workers.solve(process, process.allowed(idling=False), tolerance=0.02, rounds=60)
        assert (tables.tables[0], *tables.others[0]) == best.table

    @pytest.mark.parametrize("slow", [2.0, 3.0])
    def test_where_two_gain_nothing_one_waits_for_the_other(self, slow: float) -> None:
        """Their peak is that of one, and hardly anything starts while a unit runs."""
        together = tuple(round(slow * time) for time in self.TIMES[0])
        tables = solve(replace(self.PROFILE, concurrency_ns={2: together}), workers=2, loads=GRID)
        assert tables.peak == pytest.approx(self.PROFILE.peak)
        assert {rows for level in tables.others for column in level for rows in column[:9]} == {0}


@pytest.mark.parametrize(
    ("size", "left", "column"),
    [(1, 0, 1), (1, 1.6, 2), (2, 4, 4), (3, 4, 5), (8, 20, 8), (9, 99, 8), (1, 4.4, 5), (1, 99, 8)],
)
def test_columns(size: int, left: float, column: int) -> None:
    """Of the next size, or of the first that takes so long; at the nearest phase."""
    assert TimeLeft((2, 8), (4, 20), 4).column(size, left) == column


def test_empty_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="profile: expected batch times, got none"):
        solve(Profile())
