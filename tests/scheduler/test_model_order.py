"""A fast model overtakes a slow one if that waits for company; models of about one speed go in order of arrival."""

from __future__ import annotations

from itertools import count

import pytest

from app.scheduler.optimal.tables import ControlTables
from app.scheduler.optimal.time_left import TimeLeft
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Outcome, Profile, Stage

from .world import make_call, make_device, make_program

FAST, SLOW = (10, 11, 12, 13), (100, 110, 120, 130)
"""Nanoseconds, by rows."""


def first_of(*calls: tuple[int, int, int], times: dict[int, Stage], now: int = 1_000, **options: object) -> list[int]:
    """The programs in the order in which their units start, of calls (program, rows, arrival) that wait at `now`."""
    scheduler = Scheduler(make_device(4, **options))
    for program, stage in times.items():
        scheduler.add_program(make_program(program, stages=(stage,), max_batch=4), 0)
    for ident, (program, rows, arrived) in enumerate(calls):
        scheduler.submit(make_call(ident, rows, program=program, arrived=arrived), arrived)
    order = []
    while started := scheduler.step(now).start:
        (unit,) = started
        order.append(unit.program)
        now += unit.predicted or 1
        scheduler.finished(Outcome(unit.id, None, unit.predicted, tuple(range(len(unit.rows)))), now)
    return order


BOTH = {1: Stage(Profile(SLOW)), 2: Stage(Profile(FAST))}


def test_a_fast_model_overtakes_a_slow_one() -> None:
    assert first_of((1, 1, 0), (2, 1, 50), times=BOTH) == [2, 1]


def test_age_outweighs_speed() -> None:
    """At 10 times the speed, a row that came just now does not go before one that has waited long."""
    assert first_of((1, 1, 0), (2, 1, 60), times=BOTH, now=61) == [1, 2]
    assert first_of((1, 1, 0), (2, 1, 60), times=BOTH, now=200) == [2, 1]


@pytest.mark.parametrize(("arrived", "order"), [(35, [2, 1]), (40, [1, 2])])
def test_on_two_workers_overtaking_rows_may_be_half_as_late(arrived: int, order: list[int]) -> None:
    scheduler = Scheduler(make_device(4, 4))
    for program, stage in BOTH.items():
        scheduler.add_program(make_program(program, stages=(stage,), max_batch=4), 0)
    scheduler.submit(make_call(3, program=1, arrived=0), 0)
    scheduler.submit(make_call(4, program=2, arrived=arrived), arrived)
    assert [unit.program for unit in scheduler.step(500).start] == order


@pytest.mark.parametrize(("weights", "ratio"), [((1.0, 3.0), 3.0), ((4.0, 1.0), 0.25)])
def test_weights_share_the_time_of_a_device_that_is_overloaded(weights: tuple[float, float], ratio: float) -> None:
    """Both queues are always full; the second model's batches take half as long."""
    scheduler = Scheduler(make_device(4))
    for (program, stage), weight in zip((BOTH | {2: Stage(Profile((50, 55, 60, 65)))}).items(), weights, strict=True):
        scheduler.add_program(make_program(program, stages=(stage,), max_batch=4, weight=weight), 0)
    idents, now, spent = count(), 0, {1: 0, 2: 0}
    for turn in range(500):
        for program in (1, 2):
            while scheduler.waiting(program) < 80:
                scheduler.submit(make_call(next(idents), program=program, arrived=now), now)
        for unit in scheduler.step(now).start:
            now += unit.predicted
            spent[unit.program] += unit.predicted * (turn > 200)
            scheduler.finished(Outcome(unit.id, None, unit.predicted), now)
    assert spent[2] / spent[1] == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("others", [False, True])
def test_tables_of_several_workers_count_only_while_no_other_model_has_rows(others: bool) -> None:
    """The table runs one row of two, expecting a second worker for the other one, which another model may take."""
    scheduler = Scheduler(make_device(4, 4))
    for program in (1, 2):
        scheduler.add_program(make_program(program, stages=(BOTH[1],), max_batch=4, policy="adaptive"), 0)
    sizes = (1, 2, 3, 4)
    table = ControlTables(
        (0.5,), ((0, 1, 1, 1),), 1, sizes, (0,), 1e6, 2, sizes, beside=TimeLeft((1,), (100,), 1), others=(((0, 1),),)
    )
    scheduler.control(1, table, 0)
    scheduler.submit(make_call(1, 2, program=1, arrived=0), 0)
    if others:
        scheduler.submit(make_call(2, program=2, arrived=1), 1)
    assert len(scheduler.step(1).start[0].rows) == (2 if others else 1)
