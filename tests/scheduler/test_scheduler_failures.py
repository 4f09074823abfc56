"""Golden cases of failure: the exact units by which a culprit is found, memory caps, broken programs, a lost device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.scheduler.estimates.profile import Profile
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, Call, Fault, Klass, Outcome, Reason, Stage, Step, Unit

from .driven import calls_of, feed, finish, scheduler_of
from .test_scheduler import left
from .world import Arrival, Trace, World, make_call, make_device, make_program


def run(scheduler: Scheduler, step: Step, fault: Callable[[Unit], Fault | None]) -> tuple[list[Unit], Step]:
    """Finish unit after unit until none runs; the units in order, and all that left in one Step."""
    units, over = [], Step([], [], [], None)
    while step.start:
        (unit,) = step.start
        units.append(unit)
        step = finish(scheduler, unit, error=fault(unit))
        over.done += step.done
        over.drop += step.drop
    return units, over


def bad(*calls: int) -> Callable[[Unit], Fault | None]:
    return lambda unit: Fault.MODEL if set(calls) & set(calls_of(unit)) else None


def oom_above(size: int) -> Callable[[Unit], Fault | None]:
    return lambda unit: Fault.OOM if unit.size > size else None


def ones(n: int, first: int = 0) -> list[Call]:
    return [make_call(i) for i in range(first, first + n)]


class TestSplit:
    def test_halves_until_the_culprit_is_alone(self) -> None:
        scheduler = scheduler_of()
        units, over = run(scheduler, feed(scheduler, *ones(8)), bad(5))
        assert [calls_of(unit) for unit in units] == [
            [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7],
        ]  # fmt: skip
        assert [unit.reason for unit in units] == ["full"] + ["retry"] * 6
        assert left(over.drop) == [(5, Reason.MODEL, 0)]
        assert [call.id for call in over.done] == [0, 1, 2, 3, 4, 6, 7]
        assert scheduler._ledger.alive == sum(scheduler.states[1].queue.waiting) == 0

    def test_broken_program_stops_splitting_and_recovers(self) -> None:
        scheduler = scheduler_of(device=make_device(4))
        lengths = []
        for n in range(17):  # 96 units, three times the largest batch, must fail
            units, over = run(scheduler, feed(scheduler, *ones(4, 10 * n)), lambda _: Fault.MODEL)
            lengths.append(len(units))
        assert lengths == [7] * 13 + [5] + [1] * 3
        assert left(over.drop) == [(160 + i, Reason.MODEL, -1) for i in range(4)]  # no row is named
        run(scheduler, feed(scheduler, make_call(200)), bad())
        units, over = run(scheduler, feed(scheduler, *ones(4)), bad(3))
        assert [calls_of(unit) for unit in units] == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
        assert left(over.drop) == [(3, Reason.MODEL, 0)]

    def test_many_bad_rows_alone_make_no_broken_program(self) -> None:
        """A client that sends nothing else must not fail others, with whose rows its next is batched."""
        scheduler = scheduler_of(device=make_device(4))
        for n in range(10, 110):
            run(scheduler, feed(scheduler, make_call(n)), bad(n))
        _, over = run(scheduler, feed(scheduler, *ones(4)), bad(3))
        assert left(over.drop) == [(3, Reason.MODEL, 0)]


class TestOutOfMemory:
    def test_halves_and_the_cap_is_remembered(self) -> None:
        scheduler = scheduler_of()
        units, over = run(scheduler, feed(scheduler, *ones(8)), oom_above(3))
        assert [unit.size for unit in units] == [8, 4, 2, 2, 2, 2]
        assert over.drop == []
        units, _ = run(scheduler, feed(scheduler, *ones(4, 10)), oom_above(3))
        assert [calls_of(unit) for unit in units] == [[10, 11], [12, 13]]

    def test_cap_is_never_raised_by_a_larger_unit_that_fails_later(self) -> None:
        scheduler = scheduler_of(device=make_device(8, push_depth=2, push_ahead_ns=AT_ONCE))
        small = feed(scheduler, make_call(1, 2)).start[0]
        large = feed(scheduler, make_call(2, 8)).start[0]
        scheduler.finished(Outcome(small.id, Fault.OOM), 1)
        scheduler.finished(Outcome(large.id, Fault.OOM), 1)
        running, sizes = scheduler.step(1).start, []
        while running:
            unit = running.pop(0)
            sizes.append(unit.size)
            running += finish(scheduler, unit, 2).start
        assert sizes == [1] * 10

    def test_padding_is_shed_before_a_call_fails(self) -> None:
        scheduler = scheduler_of(make_program(policy="static", max_batch=4, max_delay_ns=0))
        units, over = run(scheduler, feed(scheduler, make_call(0)), oom_above(1))
        assert [unit.size for unit in units] == [4, 1]
        assert [call.id for call in over.done] == [0]


def test_when_the_device_is_lost_every_call_leaves_and_nothing_starts_again() -> None:
    scheduler = scheduler_of(device=make_device(1, 1))
    first, second = feed(scheduler, *ones(3)).start
    step = finish(scheduler, first, error=Fault.DEVICE)
    assert left(step.drop) == [(i, Reason.DEVICE, -1) for i in range(3)]
    assert (step.start, step.wake_at) == ([], None)
    assert scheduler.admit(1, 1, Klass.REALTIME, None, 0).reason is Reason.DEVICE
    step = finish(scheduler, second)
    assert (step.start, step.done, step.drop) == ([], [], [])
    assert scheduler._ledger.alive == sum(scheduler.states[1].queue.waiting) == 0


@pytest.mark.parametrize("policy", ["adaptive", "late", "no_wait"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_newcomer_to_a_cell_that_fails_holds_nobody_up(policy: str, workers: int) -> None:
    """Steps of 10, of workers that go on by themselves; three rows of 300 steps, a bad one, and one of one step."""
    cell = (Stage(Profile((10,) * 8, handover_ns=0), repeats=True),)
    program = make_program(stages=cell, policy=policy, max_batch=8)
    long = [Arrival(number, lengths=(300,), steps=300) for number in range(3)]
    others = replace(long[0], at=100, bad=frozenset({0})), Arrival(155, lengths=(1,))
    world = World(Trace(make_device(*[8] * workers, multi_step=True), (program,), (*long, *others))).run()
    assert [world.how(number) for number in (3, 4)] == ["model", "done"]
    assert world.left[3] < 180
    assert world.left[4] < 220
    assert max(world.left.values()) < 3_100
