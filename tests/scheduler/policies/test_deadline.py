"""Units start as late as deadlines allow and no later; in a backlog they stay large enough to keep up.

- a row that is alone on an idle device ends in time wherever an earlier start would have ended in time
- while a worker is idle and rows wait that all fit in one unit, a wake-up is asked for by their latest start
"""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from app.scheduler.estimates.profile import Profile
from app.scheduler.policies import policy_for
from app.scheduler.rows.ledger import LATE_TIMER_NS
from app.scheduler.types import DeviceSpec, Program, Stage, Step

from ..driven import MS, feed, finish, scheduler_of
from ..world import Arrival, Trace, World, make_call, make_device, make_program

LARGEST = 8
TIMES = tuple((6 + 4 * size) * MS for size in range(1, LARGEST + 1))  # each row more takes longer than timers are late
PER_LENGTH = Profile(TIMES, by_length=((10, tuple(t // 2 for t in TIMES)), (100, TIMES)))


def program(given: Profile | None = None, **options: object) -> Program:
    return make_program(stages=(Stage(given or Profile(TIMES)),), policy="deadline", max_batch=LARGEST, **options)


class Busy(World):
    """Many rows have arrived in the last window, so that company is expected."""

    def _plan(self) -> None:
        super()._plan()
        self.scheduler.states[1].estimates.arrivals.steady = 1_000.0


def run(arrivals: list[tuple[int, int]], device: DeviceSpec | None = None, **options: object) -> World:
    """Calls of one row: (arrival, time to the deadline), in ms."""
    calls = tuple(Arrival(at * MS, timeout=timeout * MS) for at, timeout in arrivals)
    return Busy(Trace(device or make_device(LARGEST), (program(**options),), calls)).run()


def started(world: World) -> list[tuple[float, int]]:
    """When each unit started, in ms, and its rows."""
    return [(unit.started / MS, len(unit.rows)) for unit in world.units]


def test_only_the_default_policy_has_the_objective() -> None:
    assert policy_for("adaptive", "deadline") == "deadline"
    assert policy_for("adaptive", "latency") == policy_for("adaptive", 0.5) == "adaptive"
    assert policy_for("window", "deadline") == "window"


class TestAlone:
    @pytest.mark.parametrize(("workers", "start"), [(1, 0), (2, 24 - 14)])
    def test_it_is_held_only_if_a_row_that_just_misses_it_is_in_time(self, workers: int, start: int) -> None:
        """24 ms leave 12 ms a unit where one worker must end it first, 16 where two do so in turn. T(2) = 14 ms."""
        assert started(run([(0, 24)], make_device(*[LARGEST] * workers))) == [(start, 1)]

    def test_it_is_not_held_where_hardly_any_row_comes(self) -> None:
        """20 rows a second: in the 36 ms that it could be held, 0.7 come."""
        scheduler = scheduler_of(program(), device=make_device(LARGEST))
        for rate, started in ((0.0, 1), (20.0, 1), (30.0, 0)):
            scheduler.states[1].estimates.arrivals.steady = rate
            units = feed(scheduler, make_call(round(rate), deadline=50 * MS)).start
            assert len(units) == started
            for unit in units:
                finish(scheduler, unit, compute_ns=10 * MS)


class TestCompany:
    def test_the_example_of_the_documentation(self) -> None:
        """T(b) = 4 + 2 b ms: held until 25 - T(3) = 15 ms."""
        world = run([(0, 25), (8, 25)], given=Profile(tuple((4 + 2 * size) * MS for size in range(1, LARGEST + 1))))
        assert started(world) == [(15, 2)]

    def test_rows_of_a_size_that_is_padded_have_the_time_of_that(self) -> None:
        """Three rows run as four: held for a fourth, whose unit takes as long."""
        slotted = Profile(tuple(time * MS for time in (10, 20, 40, 30, 50, 60, 70, 80)))
        world = run([(0, 100)] * 3, given=slotted)
        assert [(unit.size, len(unit.rows)) for unit in world.units] == [(4, 3)]
        assert world.units[0].started == (100 - 30) * MS - LATE_TIMER_NS


def test_in_a_backlog_rows_that_are_nearly_late_leave_so_that_units_keep_up() -> None:
    """When the worker is free, at 38 ms, the first of 8 rows has 11 ms left, each other 2 ms more.

    One row would end in time with it. Deadlines of 48 ms allow 24 ms a unit, four rows, which take 22 ms: only two
    rows have so long. Three take 18 ms: four leave, and the last one later.
    """
    scheduler = scheduler_of(program(), device=make_device(LARGEST))
    (busy,) = feed(scheduler, make_call(0, LARGEST, deadline=900 * MS)).start
    for n in range(1, 9):
        scheduler.submit(make_call(n, arrived=(2 * n - 1) * MS, deadline=(2 * n + 47) * MS), 16 * MS)
    step = finish(scheduler, busy, 38 * MS, compute_ns=38 * MS)
    assert [drop.call.id for drop in step.drop] == [1, 2, 3, 4]
    assert [[row.call.id for row in unit.rows] for unit in step.start] == [[5, 6, 7]]


class TestLengths:
    """T(b, 100) is twice T(b, 10) = 5, 7, 9, ... ms."""

    def first(self, *calls: tuple[int, int | None], profile: Profile = PER_LENGTH) -> list[int]:
        """Lengths of the rows of the first unit. Calls: (length, deadline in ms); all are there at 0."""
        scheduler = scheduler_of(program(profile), device=make_device(LARGEST))
        given = (make_call(n, lengths=(length,), deadline=due and due * MS) for n, (length, due) in enumerate(calls))
        (unit,) = feed(scheduler, *given).start
        return [row.length for row in unit.rows]

    @pytest.mark.parametrize(
        ("calls", "lengths"),
        [
            pytest.param([(10, 40), (10, 41), (100, 300)], [10, 10], id="those-that-all-end-by-its-deadline-join"),
            pytest.param([(10, 6), (10, 41), (100, 300)], [10], id="or-none"),
            pytest.param([(100, None), (10, 13), (10, 13)], [100], id="a-long-row-does-not-wait-for-ever"),
            pytest.param([(100, 11), (10, 11), (10, 6)], [10], id="as-many-short-rows-as-end-in-time-together"),
            pytest.param([(100, 20), (10, 60), (10, 60)], [100, 10], id="a-long-row-first-where-others-have-time"),
        ],
    )
    def test_rows_that_go_first(self, calls: list[tuple[int, int | None]], lengths: list[int]) -> None:
        assert self.first(*calls) == lengths

    def test_a_row_that_would_make_three_others_late_is_dropped(self) -> None:
        flat = Profile((10 * MS,) * LARGEST, by_length=((10, (5 * MS,) * LARGEST), (100, (10 * MS,) * LARGEST)))
        assert self.first((10, 6), *[(100, 11)] * 3, profile=flat) == [100, 100, 100]


class Watched(Busy):
    """Checks the latest start of what waits while a worker is idle."""

    def _carry_out(self, step: Step) -> None:
        super()._carry_out(step)
        waiting = [facts.entry.call for facts in self.book.waiting[1]]
        busy = {unit.worker for unit in self.book.units.values()}
        deadlines = [call.deadline for call in waiting if call.deadline is not None]
        if deadlines and 0 < len(waiting) < LARGEST and len(busy) < len(self.trace.device.workers):
            assert self._timer <= min(deadlines) - TIMES[len(waiting)]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Calls of a few rows at any distance, with deadlines from hopeless to far away."""
    gap = draw(st.sampled_from([3, 30]))
    one = st.tuples(st.integers(0, gap), st.integers(1, 3), st.sampled_from([5, 12, 30, 60, 61, 200]), st.booleans())
    drawn = draw(st.lists(one, min_size=1, max_size=25))
    times = accumulate(gap for gap, *_ in drawn)
    mixed, lengths = draw(st.booleans()), draw(st.sampled_from([(10,), (100,), (10, 100), (100, 10, 10)]))
    arrivals = tuple(
        Arrival(
            at * MS,
            lengths=tuple(lengths[n % len(lengths)] for n in range(rows)),
            timeout=(timeout if mixed else 60) * MS if timely else None,
        )
        for at, (_, rows, timeout, timely) in zip(times, drawn, strict=True)
    )
    given = draw(st.sampled_from([Profile(TIMES), PER_LENGTH]))
    device = make_device(
        *draw(st.sampled_from([(8,), (8, 8), (8, 2)])),
        push_depth=draw(st.integers(1, 2)),
        push_ahead_ns=draw(st.sampled_from([0, MS])),
    )
    return Trace(
        device, (program(given),), arrivals, seed=draw(st.sampled_from([None, 1])), inputs=((100 * MS, "tick", ()),)
    )


@repeatable(200)
@given(traces())
def test_the_invariants_hold_where_rows_are_held(trace: Trace) -> None:
    Busy(trace).run()


@repeatable(200)
@given(traces())
def test_no_wake_up_is_missed(trace: Trace) -> None:
    timely = tuple(Arrival(a.at, lengths=(0,), timeout=60 * MS) for a in trace.arrivals)
    Watched(Trace(make_device(8, 8), (program(),), timely)).run()


@repeatable(100)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(10, 120)), min_size=1, max_size=8))
def test_a_row_alone_ends_in_time_wherever_it_can(calls: list[tuple[int, int]]) -> None:
    """Each comes when the one before has left."""
    at, arrivals = 0, []
    for gap, timeout in calls:
        arrivals.append((at, timeout))
        at += gap + timeout
    world = run(arrivals)
    assert [world.how(n) for n in range(len(calls))] == ["done"] * len(calls)
