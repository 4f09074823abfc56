"""What the rows of a cell go through, counted step by step, and the check that `adaptive` chose the better way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Row, Stage, Unit

if TYPE_CHECKING:
    from .book import Book

#: What a step of so many rows takes.
Curve = Callable[[int], int]


def sum_of_latencies(lengths: Sequence[int], joiners: int, steps: int, time: Curve, *, now: bool) -> int:
    """Of rows that run and rows that join them now, or when the first of them ends, with all that are left."""
    rows, new, at, total, made = list(lengths), [steps] * joiners, 0, 0, 0
    while rows or new:
        together = now or made >= min(lengths)
        at += time(len(rows) + len(new) * together)
        made += 1
        rows = [left - 1 for left in rows]
        new = [left - together for left in new]
        total += at * (rows.count(0) + new.count(0))
        rows, new = [left for left in rows if left], [left for left in new if left]
    return total


def check_joining(book: Book, unit: Unit, most: int, scheduler: Scheduler) -> None:
    """Of a unit that has not been recalled for rows that wait: that they join now would not lower the sum of latencies.

    However late it is: by the steps that its worker has told of. Exact where the rows that stay end together.
    """
    state, program = scheduler.states[unit.program], book.programs[unit.program]
    latency, cell = state.estimates.latency[unit.stage], program.stages[unit.stage]
    waiting = [facts for facts in book.waiting[program.id] if facts.entry.call.klass is unit.klass]
    assert latency.known, "nothing is known, and they wait"
    assert {facts.stage for facts in waiting} == {unit.stage}, "rows wait before the cell"
    made, _ = book.made.get(unit.id, (0, 0))
    lengths = [min(unit.course.steps, left) - made if (left := _left(row, cell)) <= unit.course.steps else left - made
               for row in unit.rows]  # fmt: skip
    lengths = [max(length, unit.course.steps - made) for length in lengths]
    if len(set(lengths)) > 2 or min(lengths) != unit.course.steps - made:
        return
    room = min(book.device.max_alive - book.alive, program.max_alive - book.alive_of[program.id])
    joiners = min(len(waiting), room, most - len(unit.rows))
    head = min(waiting, key=lambda facts: facts.rank)
    steps = max(1, _left(head.entry.call.rows[head.index], cell))
    ways = [
        sum_of_latencies(lengths, joiners, steps, lambda rows: latency.compute(rows, unit.forecast.running), now=now)
        for now in (False, True)
    ]
    assert ways[0] <= ways[1] + latency.handover.ns * (len(lengths) + joiners), "rows wait that had better join"


def _left(row: Row, cell: Stage) -> int:
    return (0 if cell.own_steps else row.length) - row.steps
