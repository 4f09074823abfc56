"""What a policy is offered: rows that wait at one key, and how much of the device a unit of them may have now.

An offer computes what a policy asks when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.scheduler.rows.ledger import LATE_TIMER_NS, Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import LengthWindow, ReadySet, longest_of
from app.scheduler.types import Batch, Klass, Row, Unit
from app.scheduler.workers import Workers, running_stage

NEVER = 1 << 62  # the deadline of a row that has none


@dataclass(slots=True, eq=False)
class Offer:
    """Rows of one class that wait at one key, on workers that are `usable` now. Times are in nanoseconds.

    `share` sets the rest: `room`, the new rows that may start; `rows`, the most rows of one unit; `exact`, up to how
    many of these may run unpadded, more must be padded to `rows`. If `rows` is 0, none may start before `until` (None:
    before the next input).

    `ready.count`: rows that wait, at least 1. `ready.started`: those of them that have run before, which need no room.
    `full`: the most rows that a unit of this key ever has.
    """

    ready: ReadySet
    state: ProgramState
    ledger: Ledger
    workers: Workers
    usable: Sequence[int]
    full: int
    room: int = 0
    rows: int = 0
    exact: int = 0
    until: int | None = None

    # the rows

    @property
    def stage(self) -> int:
        return self.ready.key[1]

    @property
    def cell(self) -> bool:
        """Whether the rows make steps of a cell here."""
        return self.state.program.stages[self.ready.key[1]].repeats

    def oldest(self) -> int:
        """When the row that has waited longest arrived."""
        return self.ready.oldest()

    def first(self, rows: int) -> list[Row]:
        """The first so many rows that may run."""
        return self.ready.first(rows, self.room)

    def by_length(self) -> LengthWindow | None:
        """The lengths that may be picked from, at the first stage; None if rows may not be picked, or all are alike."""
        if not self.state.estimates.curves.lengths or self.ready.key[1]:
            return None
        return self.ready.length_window(min(self.ready.count, self.rows) - 1)

    def due(self, now: int) -> int:
        """When the first rows must be handed over to keep their deadlines; NEVER if none has one."""
        if not self.ledger.deadlines.heap:
            return NEVER
        rows = min(self.ready.count, self.rows)
        first = self.first(rows)
        earliest = min(deadlines_of(first), default=NEVER)
        if earliest == NEVER:
            return NEVER
        lead_ns = self.begins(now) - now
        running, _ = self.free()
        time = self.state.estimates.time(rows, self.stage, running, longest_of(first), lead_ns)
        return earliest - time - time // 4 - LATE_TIMER_NS - lead_ns

    # the device

    def capacities(self) -> list[int]:
        """The largest units of the usable workers, largest first, never empty.

        There may be room for fewer rows, see `rows`: only best-effort units may not be padded beyond that.
        """
        capacity = self.state.capacity[self.stage]
        if len(self.usable) == 1:
            found = [capacity[self.usable[0]]]
        else:
            found = sorted((capacity[worker] for worker in self.usable), reverse=True)
        return [min(self.rows, largest) for largest in found] if self.ready.klass is Klass.BEST_EFFORT else found

    def free(self) -> tuple[int, int]:
        """How many units run once one more has started, and how many may start now, each on a worker of its own."""
        return self.workers.running_and_free(self.usable)

    def begins(self, now: int) -> int:
        """When the first of the usable workers would begin a unit that it is handed now."""
        return self.workers.soonest(self.usable, now)

    def others(self) -> list[Unit]:
        """The last units of the other workers, if their ends are predicted."""
        return self.workers.last_units(self.usable)

    def neighbours(self) -> Neighbours:
        """The batches and the other stages of its program, if that has stages or a cell."""
        return Neighbours(self)

    def shared(self) -> bool:
        """Whether rows of other programs wait or run on this device."""
        program = self.ready.key[0]
        waiting = any(ready.key[0] != program for ready in self.ledger.ready.nonempty)
        return waiting or any(unit.program != program for unit in self.workers.units.values())


class Neighbours:
    """The batches and the other stages of a program with stages or a cell, as seen from one key.

    `alike`, `waiting`: by stage, the rows that wait there in the same length bucket, and in all. At the first stage
    they count only as far as the device has room for them.
    """

    __slots__ = ("_first", "_offer", "_sets", "alike", "waiting")

    def __init__(self, offer: Offer) -> None:
        program, _, bucket = offer.ready.key
        stages = len(offer.state.program.stages)
        self._offer = offer
        self._sets = offer.ledger.ready.of_program(program, offer.ready.klass)
        self._first = offer.first(min(offer.ready.count, offer.rows))
        self.alike, self.waiting = [0] * stages, [0] * stages
        most = offer.room  # rows of the first stage that could run: others must wait for room
        for ready in self._sets:
            _, at, lengths = ready.key
            most += 0 if at else ready.started
            self.waiting[at] += ready.count
            self.alike[at] += ready.count if lengths == bucket else 0
        self.alike[0], self.waiting[0] = min(self.alike[0], most), min(self.waiting[0], most)

    # the rows here

    @property
    def batch(self) -> Batch | None:
        """The batch of the first row here; None: it has not started."""
        return self._first[0].batch if self._first else None

    @property
    def here(self) -> int:
        """How many rows of that batch are first in order here."""
        batch = self.batch
        return next((place for place, row in enumerate(self._first) if row.batch is not batch), len(self._first))

    @property
    def newcomers(self) -> bool:
        """Whether some row that waits at this cell has made no step of it."""
        return any(not row.steps for row in self._first)

    @property
    def other_buckets(self) -> int:
        """Rows that wait at this stage in other length buckets."""
        here = self._offer.ready
        alike = (ready for ready in self._sets if ready.key[1] == here.key[1] and not ready.again)
        return sum(ready.count for ready in alike if ready is not here)

    def missing(self, now: int) -> int:
        """Rows of the first row's batch that have not reached this stage.

        Rows in a unit of several stages count as being where they are predicted to be.
        """
        batch, stage = self.batch, self._offer.stage
        if batch is None or not stage:
            return 0
        late, unit = batch.size - batch.completed(stage - 1), self._under_way(batch)
        return late - len(unit.rows) if unit and unit.stage < stage <= _stage_of(unit, now) else late

    # the other stages, in this length bucket

    @property
    def upstream_stage(self) -> int:
        """The last stage before this one at which rows wait; -1: there is none."""
        return max((at for at in range(self._offer.stage) if self.alike[at]), default=-1)

    @property
    def upstream(self) -> int:
        """How many wait there."""
        stage = self.upstream_stage
        return self.alike[stage] if stage >= 0 else 0

    @property
    def downstream_stage(self) -> int:
        """The first later stage at which rows wait; -1: there is none."""
        return next((at for at in range(self._offer.stage + 1, len(self.alike)) if self.alike[at]), -1)

    @property
    def downstream(self) -> int:
        """Rows that wait at all later stages."""
        return sum(self.alike[self._offer.stage + 1 :])

    # the program

    def wait_elsewhere(self) -> tuple[int, int]:
        """Rows that wait at earlier stages, and at later ones, cells not counted."""
        stage, stages = self._offer.stage, self._offer.state.program.stages
        short = [0 if one.repeats else count for one, count in zip(stages, self.waiting, strict=True)]
        return sum(short[:stage]), sum(short[stage + 1 :])

    @property
    def active(self) -> int:
        """Rows that have started and not ended."""
        program, klass = self._offer.ready.key[0], self._offer.ready.klass
        units = self._offer.workers.units.values()
        running = sum(len(unit.rows) for unit in units if unit.program == program and unit.klass is klass)
        return running + sum(self.waiting[1:])

    @property
    def newest(self) -> Batch | None:
        """The newest batch of any bucket."""
        batches = self._offer.state.batches
        return None if batches is None else batches.latest(self._offer.ready.klass)

    def open_batch(self, now: int) -> Batch | None:
        """The newest batch, if new rows may join it: in this length bucket and not in its last stage."""
        newest = self.newest
        if newest is None or newest.bucket != self._offer.ready.key[2]:
            return None
        unit = self._under_way(newest)
        return None if unit is not None and _stage_of(unit, now) == len(self.alike) - 1 else newest

    def _under_way(self, batch: Batch) -> Unit | None:
        """The running unit of several stages that holds this batch, if there is one."""
        stages = self._offer.state.program.stages
        units = (unit for unit in self._offer.workers.units.values() if unit.rows[0].batch is batch)
        return next((unit for unit in units if unit.course.steps > 1 and not stages[unit.stage].repeats), None)


class JoinOffer(NamedTuple):
    """A running unit of a cell, and the waiting rows that would join it if it ended now. Times in nanoseconds."""

    left: int  # steps until the unit ends by itself
    ending: int  # rows of it that end with its last step
    stay: Sequence[int]  # for each of its other rows, the steps left after that
    joiners: int  # rows that would join
    steps: int  # steps that the first of these has left
    time: Callable[[int], int]  # rows -> the time of a step
    boundary_ns: int  # the cost of ending one unit and beginning another


def deadlines_of(rows: Iterable[Row]) -> list[int]:
    """The deadline of each row; NEVER for a row without one."""
    return [NEVER if row.call.deadline is None else row.call.deadline for row in rows]


def _stage_of(unit: Unit, now: int) -> int:
    """The stage that a unit of several stages is predicted to run now; its last one if times are unknown."""
    return unit.stage + running_stage(unit, now)[0]
