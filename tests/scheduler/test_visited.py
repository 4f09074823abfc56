"""A step of the scheduler looks at the rows that it moves, however many wait: visited rows are counted, not time."""

from __future__ import annotations

from itertools import product
from typing import Any, ClassVar

import pytest

from app.scheduler.estimates.profile import Profile
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, Fault, Klass, Outcome, Row, Stage, Unit

from .driven import scheduler_of
from .world import make_device, make_program

WAITING = 250  # more than the rows that are moved
FULL = 4
STEPS = 60
TIMES = Profile((10, 11, 12, 13), handover_ns=5)
BY_LENGTH = Profile((10, 11, 12, 13), by_length=((4, (5, 6, 7, 8)), (16, (20, 22, 24, 26))))


class Seen(Row):
    """A row that is noted whenever something of it is read or changed."""

    __slots__ = ()
    rows: ClassVar[set[int]] = set()

    def __getattribute__(self, name: str) -> Any:
        Seen.rows.add(id(self))
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        Seen.rows.add(id(self))
        super().__setattr__(name, value)


def submit(
    scheduler: Scheduler, ident: int, klass: Klass, priority: int, rows: int = 1, deadline: int | None = None
) -> None:
    made = [Seen(ident, 3 + ident % 9) for _ in range(rows)]
    scheduler.submit(Call(ident, 1, made, klass, priority, ident, deadline), ident)


def visited(scheduler: Scheduler, unit: Unit, now: int, fault: Fault | None = None) -> tuple[int, list[Unit]]:
    """Rows looked at by the end of a unit and the step behind it, and what that starts."""
    cell = scheduler.states[1].program.stages[unit.stage].repeats
    ended = tuple(range(len(unit.rows))) if cell and now // 10 % 9 == 0 else ()
    outcome = Outcome(unit.id, fault, 10, ended, times=() if cell else (10,))
    Seen.rows.clear()
    scheduler.finished(outcome, now)
    started = scheduler.step(now).start
    return len(Seen.rows), started


CELL = (Stage(TIMES, repeats=True),)
STAGES = (Stage(TIMES), Stage(TIMES), Stage(TIMES))
LENGTHS = (Stage(BY_LENGTH), Stage(BY_LENGTH))


KINDS = {"whole": (Stage(TIMES),), "stages": STAGES, "cell": CELL, "lengths": LENGTHS}
WAITS = ("behind", "before", "no_room", "classes", "best_effort")
POLICIES = ("adaptive", "late", "no_wait", "dva_load")


@pytest.mark.parametrize(("wait", "kind", "policy"), list(product(WAITS, KINDS, POLICIES)))
def test_rows_visited_do_not_grow_with_those_that_wait(wait: str, kind: str, policy: str) -> None:
    stages = KINDS[kind]
    device = make_device(FULL, max_alive=FULL + 2 if wait == "no_room" else 1 << 30)
    program = make_program(stages=stages, policy=policy, max_batch=FULL, max_queue=1 << 30)
    scheduler = scheduler_of(program, device=device)
    others = Klass.BEST_EFFORT if wait in ("classes", "best_effort") else Klass.REALTIME
    own = Klass.BEST_EFFORT if wait == "best_effort" else Klass.REALTIME
    submit(scheduler, 1, own, 5, FULL, deadline=1 << 40)
    units = scheduler.step(1).start
    for ident in range(2, WAITING + 2):
        submit(scheduler, ident, others if ident % 2 else own, 0 if wait in ("before", "no_room") else 5)
    scheduler.step(WAITING + 2)
    total, now = 0, 10 * WAITING
    for number in range(STEPS):
        now += 10
        found, units = visited(scheduler, units[0], now, Fault.MODEL if number == STEPS // 2 else None)
        if number:  # the first step sorts what has come, where rows are sorted by length
            total += found
        assert units, number
    assert total <= 6 * FULL * STEPS, total
