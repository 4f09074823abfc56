"""Whether best-effort work starts: the budget, the worker that is kept, the rules of padding."""

from __future__ import annotations

from typing import Any

import pytest

from app.scheduler.estimates.profile import Profile
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, ClassSpec, Fault, Klass, Outcome, Stage, Step

from .driven import calls_of, feed, finish, scheduler_of
from .world import make_call, make_device, make_program

REAL, BEST = Klass
CURVE = (10, 20, 30, 40)  # a row takes 10
PADDED = Profile((50, 60, 90, 70))  # three rows go faster as four


def serving(*capacities: int, budget: int = 1000, programs: int = 1, **options: Any) -> Scheduler:
    """Each program's batches take 10 for each row."""
    stages = options.pop("stages", (Stage(Profile(CURVE)),))
    device = make_device(*capacities, classes=ClassSpec(budget_ns=budget), **options)
    models = (make_program(ident, stages=stages, policy="no_wait", max_batch=4) for ident in range(1, programs + 1))
    return scheduler_of(*models, device=device)


def staged(
    *programs: tuple[int, ...], budget: int = 20, capacities: tuple[int, ...] = (1, 1, 1), multi_step: bool = True
) -> Scheduler:
    """Programs 1, 2 and so on, of one row, whose stages take so long; workers go on by themselves."""
    stages = [tuple(Stage(Profile((time,) if time else ())) for time in times) for times in programs]
    models = (make_program(n, stages=one, policy="no_wait", max_batch=1) for n, one in enumerate(stages, 1))
    device = make_device(*capacities, classes=ClassSpec(budget_ns=budget), multi_step=multi_step)
    return scheduler_of(*models, device=device)


def submit(scheduler: Scheduler, klass: Klass, *idents: int, now: int = 0, **options: Any) -> Step:
    return feed(scheduler, *(make_call(ident, klass=klass, arrived=now, **options) for ident in idents), now=now)


def rows(units: Any) -> list[list[int]]:
    return [calls_of(unit) for unit in units]


class TestBudget:
    def test_rows_that_go_faster_in_a_larger_batch_do_so(self) -> None:
        """Three take 90 and four 70: three go as four."""
        for waiting, taken, size in ((2, [1, 2], 2), (3, [1, 2, 3], 4), (5, [1, 2, 3, 4], 4)):
            scheduler = serving(4, budget=75, stages=(Stage(PADDED),))
            (unit,) = submit(scheduler, BEST, *range(1, waiting + 1)).start
            assert (rows([unit]), unit.size) == ([taken], size)
            assert unit.forecast.predicted <= 75

    def test_it_is_that_of_all_units_handed_over(self) -> None:
        scheduler = serving(2, 2, 4, budget=30)
        step = submit(scheduler, BEST, 1, 2, 3, 4)
        assert rows(step.start) == [[1, 2], [3]]

    def test_as_work_goes_on_there_is_room_for_more(self) -> None:
        scheduler = serving(2, 2, 4, budget=25)
        step = submit(scheduler, BEST, 1, 2, 3)
        assert (rows(step.start), step.wake_at) == ([[1, 2]], 5)
        assert rows(scheduler.step(5).start) == [[3]]

    def test_only_the_end_of_a_unit_makes_room_for_one_that_exceeds_it(self) -> None:
        """Nothing wakes the driver before."""
        scheduler = serving(1, 1, 1, budget=20, stages=(Stage(Profile((30,))),))
        (unit,) = submit(scheduler, BEST, 1).start
        step = submit(scheduler, BEST, 2, now=15)
        assert (step.start, step.wake_at) == ([], None)
        assert finish(scheduler, unit, 65).start

    def test_no_wake_up_while_a_longer_stage_is_to_come(self) -> None:
        """Where one runs that is the longest left, there is room when the rest of it is short enough."""

        def wakes(*times: int, now: int) -> int | None:
            scheduler = staged(times, (14,))
            submit(scheduler, BEST, 1)
            return submit(scheduler, BEST, 2, program=2, now=now).wake_at

        assert (wakes(5, 19, now=3), wakes(19, 5, now=3), wakes(5, 19, now=8)) == (None, 13, 18)

    def test_a_recalled_unit_counts_with_the_stage_that_runs(self) -> None:
        scheduler = serving(1, 1, budget=20, multi_step=True, stages=tuple(Stage(Profile((n,))) for n in (19, 1, 1)))
        (unit,) = submit(scheduler, BEST, 1).start
        assert submit(scheduler, REAL, 2, now=5).recall == [unit]
        assert unit.forecast.predicted == 19


def test_best_effort_starts_while_real_time_rows_are_held() -> None:
    """They wait for others to join them, not for the device: best effort delays them by its budget at most."""
    holds = make_program(1, policy="window", max_delay_ns=50)
    bulk = make_program(2, batch_ns=CURVE, policy="no_wait", max_batch=4)
    scheduler = scheduler_of(holds, bulk, device=make_device(4, classes=ClassSpec(budget_ns=20)))
    submit(scheduler, REAL, 1)
    assert rows(submit(scheduler, BEST, 5, 6, 7, 8, program=2).start) == [[5, 6]]


class TestPadding:
    @pytest.mark.parametrize(
        ("slower", "expected"), [(None, []), (0.5, []), (0.02, [[2]])], ids=["not-measured", "much", "little"]
    )
    def test_goes_by_the_pair(self, slower: float | None, expected: list[list[int]]) -> None:
        scheduler = serving(4, 4, programs=2)
        scheduler.pair({} if slower is None else {(1, 2): slower}, 0)
        submit(scheduler, BEST, 8, program=2)  # it runs, and those that follow will wait
        submit(scheduler, BEST, 2, program=2)
        step = submit(scheduler, REAL, 1)
        assert [unit.worker for unit in step.start] == [1]
        assert rows(finish(scheduler, next(iter(scheduler.units.values())), 10).start) == expected

    def test_what_is_longer_than_the_budget_ends_before_the_real_time_unit(self) -> None:
        def follows(now: int) -> list[list[int]]:
            scheduler = serving(4, 4, budget=5)
            scheduler.pair({(1, 1): 0.0}, 0)
            unit = submit(scheduler, BEST, 7, 8).start[0]
            submit(scheduler, REAL, 1, 2)  # until 20
            return rows(finish(scheduler, unit, now).start)

        assert (follows(10), follows(11)) == ([[8]], [])

    @pytest.mark.parametrize("multi_step", [False, True])
    def test_it_ends_before_the_last_of_several_real_time_units(self, multi_step: bool) -> None:
        """Of two, which end at 10 and at 30, as one stage or as three."""
        long = (10, 10, 10) if multi_step else (30,)
        scheduler = staged((10,), long, (20,), budget=5, capacities=(1, 1, 1, 4), multi_step=multi_step)
        scheduler.pair({(1, 3): 0.0, (2, 3): 0.0}, 0)
        for ident in (1, 2):
            submit(scheduler, REAL, ident, program=ident)
        assert rows(submit(scheduler, BEST, 3, program=3).start) == [[3]]

    @pytest.mark.parametrize("worker", [0, 1])
    def test_it_joins_real_time_work_on_whichever_of_equal_workers_that_runs(self, worker: int) -> None:
        """No worker is the one that is kept: one of them stays free of best-effort work."""
        scheduler = serving(4, 4, programs=2)
        scheduler.pair({(1, 2): 0.02}, 0)
        units = {unit.worker: unit for ident in (1, 2) for unit in submit(scheduler, REAL, ident).start}
        finish(scheduler, units[1 - worker], 5)
        assert [unit.worker for unit in submit(scheduler, BEST, 9, program=2, now=6).start] == [1 - worker]
        assert not submit(scheduler, BEST, 10, program=2, now=7).start


class TestPreemption:
    STAGES = tuple(Stage(Profile((10, 10, 10, 10))) for _ in range(4))

    def test_a_unit_of_several_stages_ends_with_its_stage(self) -> None:
        scheduler = serving(4, 4, stages=self.STAGES, multi_step=True)
        (unit,) = submit(scheduler, BEST, 1).start
        step = submit(scheduler, REAL, 2, now=5)
        assert (rows(step.start), step.recall) == ([[2]], [unit])
        assert finish(scheduler, unit, 10, steps=1).start == []  # its rows wait where they were until real time is over
        done = finish(scheduler, step.start[0], 45, steps=4, times=(10,) * 4)
        assert [(rows([one]), one.stage) for one in done.start] == [([[1]], 1)]

    def test_rows_that_hold_the_only_room_go_on(self) -> None:
        """Or nobody would ever have any."""
        scheduler = serving(1, stages=self.STAGES, max_alive=1)
        (unit,) = submit(scheduler, BEST, 1).start
        submit(scheduler, REAL, 2, now=5)
        for stage in range(1, 4):
            (unit,) = finish(scheduler, unit, 10 * stage).start
            assert (rows([unit]), unit.stage) == ([[1]], stage)
        assert rows(finish(scheduler, unit, 40).start) == [[2]]

    def test_none_is_handed_over_behind_another(self) -> None:
        """It would be in the way of real-time calls that come meanwhile; but for what its share is owed."""
        scheduler = serving(1, push_depth=2, push_ahead_ns=AT_ONCE)
        (first,) = submit(scheduler, BEST, 1).start
        assert submit(scheduler, BEST, 2).start == []
        assert rows(submit(scheduler, REAL, 4, now=5).start) == [[4]]
        assert finish(scheduler, first, 10).start == []


class TestHold:
    """The driver may ask for a step that starts no best-effort unit, before it has read all that has come."""

    def test_real_time_units_start_and_best_effort_ones_in_the_next_step(self) -> None:
        scheduler = serving(1, 1)
        for ident, klass in enumerate((BEST, REAL)):
            scheduler.submit(make_call(ident, klass=klass), 0)
        step = scheduler.step(0, hold=True)
        assert (rows(step.start), step.held) == ([[1]], False)  # none could start: the pair was not measured
        scheduler.finished(Outcome(step.start[0].id), 10)
        step = scheduler.step(10, hold=True)
        assert (rows(step.start), step.held) == ([], True)
        step = scheduler.step(10)
        assert (rows(step.start), step.held) == ([[0]], False)

    def test_a_lost_device_holds_nothing(self) -> None:
        """Or the driver would look again at every turn of the loop, for as long as it lives."""
        scheduler = serving(1, 1, 1)
        (unit,) = submit(scheduler, BEST, 0).start
        scheduler.submit(make_call(1, klass=BEST), 0)
        assert scheduler.step(0, hold=True).held
        scheduler.finished(Outcome(unit.id, Fault.DEVICE), 10)
        assert not scheduler.step(10).held
