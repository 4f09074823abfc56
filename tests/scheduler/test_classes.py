"""Real time and best effort: who goes first, who shares a unit, whose work counts in admission, and one class alone.

That no unit holds rows of both, in any trace of any policy, is checked by `Book._check_start`, and that a class is
refused for its own rows only by `Book.check_refusal`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from tiers import repeatable, some

from app.scheduler.policies import POLICIES
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Klass, Reason, Refusal, Step

from .test_admission import backlog_ns
from .test_invariants import MIXED, traces
from .world import Trace, World, make_call, make_device, make_program

MS = 1_000_000
REAL, BEST = Klass
FEW = repeatable(5)


def scheduler_of(*capacities: int, **options: Any) -> Scheduler:
    scheduler = Scheduler(make_device(*capacities))
    scheduler.add_program(make_program(**options), 0)
    return scheduler


def submit(scheduler: Scheduler, klass: Klass, first: int, count: int, now: int = 0, **options: Any) -> None:
    for ident in range(first, first + count):
        scheduler.submit(make_call(ident, klass=klass, arrived=now, **options), now)


def rows(step: Step) -> list[list[int]]:
    """The calls of each unit that starts."""
    return [[row.call.id for row in unit.rows] for unit in step.start]


class TestAdmission:
    """Batches of up to four rows take 10 ms; one runs at a time."""

    def flooded(self, max_queue: int = 1024) -> Scheduler:
        scheduler = scheduler_of(4, policy="no_wait", batch_ns=(10 * MS,) * 4, max_batch=4, max_queue=max_queue)
        submit(scheduler, BEST, 1, 4)
        scheduler.step(0)
        submit(scheduler, BEST, 5, 8)
        return scheduler

    def test_each_class_has_a_queue_of_its_own(self) -> None:
        scheduler = self.flooded(max_queue=8)
        assert [scheduler.has_room(1, 1, klass) for klass in (REAL, BEST)] == [True, False]
        assert scheduler.admit(1, 8, REAL, None, 0) is None
        refusal = scheduler.admit(1, 1, BEST, None, 0)
        assert refusal is not None
        assert refusal.reason is Reason.QUEUE_FULL
        submit(scheduler, REAL, 20, 8)
        assert (scheduler.waiting(1), scheduler.waiting(1, REAL), scheduler.waiting(1, BEST)) == (16, 8, 8)
        assert not scheduler.has_room(1, 1, REAL)

    def test_both_count_with_a_best_effort_call_in_batches_of_their_own(self) -> None:
        """A batch runs, two more of best effort wait, and one of two real-time rows; its own row begins another."""
        scheduler = self.flooded()
        submit(scheduler, REAL, 20, 2)
        assert scheduler.admit(1, 1, BEST, 50 * MS, 0) is None
        assert scheduler.admit(1, 1, BEST, 50 * MS - 1, 0) == Refusal(Reason.DEADLINE_UNREACHABLE, 40 * MS)
        assert backlog_ns(scheduler, 0) == 40 * MS


@pytest.mark.parametrize("policy", some([MIXED, *POLICIES], 8))
def test_real_time_calls_alone_are_served_as_if_there_were_no_classes(policy: str) -> None:
    """So what nobody uses changes nothing."""

    def steps(trace: Trace, preset: str) -> tuple[list[dict[str, Any]], dict[int, Refusal]]:
        device = replace(trace.device, classes=replace(trace.device.classes, preset=preset))
        world = World(replace(trace, device=device)).run()
        return world.entries[1:], world.refusals

    @FEW
    @given(traces(policy, "realtime"))
    def holds(trace: Trace) -> None:
        assert steps(trace, "reef") == steps(trace, "streams")

    holds()
