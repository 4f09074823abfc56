"""Rows that go through stages, or steps, on a stepped device: batches change at every boundary, at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.contract import Array, Model
from app.engine.device import Completion, Job
from app.engine.streams.executor import StreamExecutor
from app.scheduler.types import Fault

from .stepped import Stepped


@dataclass(frozen=True)
class Trips:
    """What a world's rows are. `rows` makes the input of a number, `expected` its outputs, `units` how many it takes.

    `cells`: rows that have made different numbers of steps share a unit. `known`: the host knows when a row ends, so
    its next unit may be launched before the one before has ended. `bad`: by number, the unit at which it fails.
    """

    model: Model
    rows: Callable[[int], Array]
    expected: Callable[[int], list[Array]]
    units: Callable[[int], int]
    cells: bool = False
    known: bool = True
    bad: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Row:
    """`at`: the next of its units. `flying`: those that were pushed and not heard of."""

    slot: int
    number: int
    at: int = 0
    flying: list[int] = field(default_factory=list)
    failed: int | None = None  # the first of those that failed
    alone: bool = False
    over: bool = False


@dataclass(eq=False)
class Unit:
    worker: int
    rows: list[Row]
    at: list[int]
    reports: int = 0


class World:
    """A scheduler that cuts units from rows at one boundary, in any order, and launches some ahead of time."""

    def __init__(self, device: Stepped, trips: Trips, slots: int = 16) -> None:
        self.device, self.trips = device, trips
        self.executor: StreamExecutor = device.watched_executor(trips.model, slots)
        self.random = device.fake.random
        self.rows: list[Row] = []
        self.units: list[Unit] = []
        self.flying: Counter[int] = Counter()
        self.number = 100
        self.answered: list[int] = []
        self.refused: list[int] = []
        self.lost = False
        self.launched: list[int] = []  # units of cells
        self.ran: list[int] = []
        device.start(self.heard, self.launched.append)

    def arrive(self) -> None:
        if self.executor.pool.free and not self.lost:
            (slot,) = self.executor.pool.take(1)
            self.number += 1
            values = self.trips.rows(self.number)
            lengths = dict.fromkeys(self.executor.axes, values.size)
            self.executor.pool.set_lengths([slot], lengths)
            self.executor.pool.write([slot], 0, values[None], lengths)
            self.rows.append(Row(slot, self.number))
            self.device.arrive(self.executor, [slot])

    def ready(self, row: Row) -> bool:
        """It waits, or its next unit is known and it is well on its way."""
        if row.over or row.at >= self.trips.units(row.number) or len(row.flying) > 1:
            return False
        return not row.flying or (self.trips.known and row.failed is None and not row.alone)

    def push(self) -> None:
        worker = self.random.randrange(len(self.device.workers))
        ready = [row for row in self.rows if self.ready(row)]
        if self.flying[worker] == 3 or not ready:
            return
        first = self.random.choice(ready)
        rows = [row for row in ready if not row.alone and (self.trips.cells or row.at == first.at)]
        capacity = self.device.spec.workers[worker].capacity
        n = self.random.randint(1, capacity)
        chosen = [first]
        if not first.alone:  # as often as not in the order in which they came
            chosen = rows[:n] if self.random.random() < 0.5 else self.random.sample(rows, min(n, len(rows)))
        unit = Unit(worker, chosen, [row.at for row in chosen])
        self.units.append(unit)
        self.flying[worker] += 1
        stage = 0 if self.trips.cells else chosen[0].at
        ahead = any(row.flying for row in chosen)
        for row in chosen:
            row.flying.append(len(self.units) - 1)
            row.at += 1
        size = self.random.randint(len(chosen), capacity)
        made = unit.at if ahead and self.trips.cells else ()
        slots = [row.slot for row in chosen]
        self.device.push(worker, Job(len(self.units) - 1, self.executor, slots, size, stage, made=made))

    def leave(self) -> None:
        waiting = [row for row in self.rows if not row.flying]
        if waiting:
            self.let_go(self.random.choice(waiting))

    def let_go(self, row: Row) -> None:
        self.rows.remove(row)
        assert self.executor.activations is not None
        self.executor.activations.let_go([row.slot])
        self.executor.pool.give_back([row.slot])

    def heard(self, completion: Completion) -> None:
        ident = completion.outcome.unit_id
        unit, ran = self.units[ident], completion.ran
        unit.reports += 1
        assert unit.reports == 1, "reported twice"
        self.flying[unit.worker] -= 1
        if completion.outcome.error is Fault.DEVICE:
            self.lost = True
        if ran is not None:
            self.ran.append(ident)
        assert ran is not None or self.lost or self.trips.bad, completion.message
        if completion.outcome.error is Fault.VOID:
            behind = zip(unit.rows, unit.at, strict=True)  # of the other unit this may not have been heard yet
            assert any((row.failed is not None and row.failed < at) or len(row.flying) > 1 for row, at in behind)
        for position, (row, at) in enumerate(zip(unit.rows, unit.at, strict=True)):
            row.flying.remove(ident)
            if ran is None:
                row.failed = at if row.failed is None else min(at, row.failed)
                if len(unit.rows) == 1 and self.trips.bad.get(row.number) == at:
                    row.over = True
                    self.refused.append(row.number)
            elif self.ends(row, at):
                place = completion.outcome.ended.index(position) if self.trips.cells else position
                self.check(row, [output[place] for output in ran.outputs])
            else:
                assert position not in completion.outcome.ended
        for row in unit.rows:
            self.settled(row)

    def ends(self, row: Row, at: int) -> bool:
        return at + 1 == self.trips.units(row.number)

    def check(self, row: Row, outputs: list[Array]) -> None:
        for got, expected in zip(outputs, self.trips.expected(row.number), strict=True):
            assert np.array_equal(got[tuple(map(slice, expected.shape))], expected), (row.number, got, expected)
        row.over = True
        self.answered.append(row.number)

    def settled(self, row: Row) -> None:
        """Nothing of it is under way: it is over, or it goes on from the first unit that failed."""
        if row.flying or row not in self.rows:
            return
        if row.over or self.lost:
            self.let_go(row)
        elif row.failed is not None:
            row.at, row.failed, row.alone = row.failed, None, True
        else:
            row.alone = False

    def act(self) -> None:
        kinds: list[Callable[[], Any]] = [self.arrive, self.push, self.leave]
        if self.random.random() < 0.4:
            self.random.choices(kinds, [3, 8, 0.3])[0]()
        else:
            self.device.turn()

    def settle(self) -> None:
        """Everything ends, and nothing is left of it."""
        while self.rows:
            assert len(self.units) < 5_000, "rows that never end"
            self.push()
            self.device.turn()
            if self.lost:
                for row in [row for row in self.rows if not row.flying]:
                    self.let_go(row)
        while self.device.turn():
            pass
        assert all(unit.reports == 1 for unit in self.units)
        told = self.trips.cells and self.trips.known  # what goes on behind a unit can be told when it is launched
        assert not told or set(self.ran) <= set(self.launched)
        assert len(set(self.launched)) == len(self.launched) <= (len(self.units) if told else 0)
        kept = self.executor.activations
        assert kept is not None
        assert (kept.rows, kept.nbytes) == (0, 0)
        if not self.device.fake.broken:
            assert self.executor.pool.used == 0
