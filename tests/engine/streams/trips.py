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
    """What a world's rows are. `rows` makes the input of a number, `expected` its outputs, `steps` how many it takes.

    `cells`: rows that have made different numbers of steps share a unit. `known`: the host knows when a row ends.
    `bad`: by number, the step at which it fails.
    """

    model: Model
    rows: Callable[[int], Array]
    expected: Callable[[int], list[Array]]
    steps: Callable[[int], int]
    cells: bool = False
    known: bool = True
    bad: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Row:
    """`made`: steps, or stages. `alone`: it was in a unit that failed."""

    slot: int
    number: int
    made: int = 0
    runs: bool = False
    alone: bool = False
    over: bool = False


@dataclass(eq=False)
class Unit:
    worker: int
    rows: list[Row]
    job: Job
    over: bool = False


class World:
    """A scheduler that cuts units of several steps from rows at one boundary, in any order, and recalls some."""

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
        self.several = 0  # units that made more than a step
        self.lost = False
        device.start(self.heard)

    def arrive(self) -> None:
        if self.lost:
            return
        try:
            (slot,) = self.executor.pool.take(1)
        except MemoryError:
            return
        self.number += 1
        values = self.trips.rows(self.number)
        lengths = dict.fromkeys(self.executor.axes, values.size)
        self.executor.pool.set_lengths([slot], lengths)
        self.executor.pool.write([slot], 0, values[None], lengths)
        self.rows.append(Row(slot, self.number))
        self.device.arrive(self.executor, [slot])

    def push(self) -> None:
        worker = self.random.randrange(len(self.device.workers))
        ready = [row for row in self.rows if not row.runs]
        if self.flying[worker] == 3 or not ready:
            return
        first = self.random.choice(ready)
        rows = [row for row in ready if not row.alone and (self.trips.cells or row.made == first.made)]
        capacity = self.device.spec.workers[worker].capacity
        n = self.random.randint(1, capacity)
        chosen = [first]
        if not first.alone:  # as often as not in the order in which they came
            chosen = rows[:n] if self.random.random() < 0.5 else self.random.sample(rows, min(n, len(rows)))
        left = min(self.trips.steps(row.number) - row.made for row in chosen)
        steps = left if self.random.random() < 0.5 else self.random.randint(1, left)
        stage = 0 if self.trips.cells else chosen[0].made
        onward = self.trips.cells and self.random.random() < 0.7
        size = self.random.randint(len(chosen), capacity)
        slots = [row.slot for row in chosen]
        job = Job(len(self.units), self.executor, slots, size, stage, steps, continue_without=onward)
        for row in chosen:
            row.runs = True
        self.units.append(Unit(worker, chosen, job))
        self.flying[worker] += 1
        self.device.push(worker, job)

    def recall(self) -> None:
        """A unit that runs is to end soon."""
        if running := [unit for unit in self.units if not unit.over]:
            job = self.random.choice(running).job
            if self.random.random() < 0.5:
                job.recalled = True
            else:
                job.continue_without = False

    def leave(self) -> None:
        waiting = [row for row in self.rows if not row.runs]
        if waiting:
            self.let_go(self.random.choice(waiting))

    def let_go(self, row: Row) -> None:
        self.rows.remove(row)
        assert self.executor.activations is not None
        self.executor.activations.let_go([row.slot])
        self.executor.pool.give_back([row.slot])

    def heard(self, completion: Completion) -> None:
        outcome, ran = completion.outcome, completion.ran
        unit = self.units[outcome.unit_id]
        assert not unit.over, "reported twice"
        rows = unit.rows
        if ran is None:
            self.lost = self.lost or outcome.error is Fault.DEVICE
            assert self.lost or self.trips.bad, completion.message
            for row in rows:
                row.alone = True
                if len(rows) == 1 and self.trips.bad.get(row.number) == row.made:
                    row.over = True
                    self.refused.append(row.number)
        else:
            assert outcome.steps == ran.steps >= 1
            self.several += ran.steps > 1
            for position, row in enumerate(rows):
                row.made += ran.steps
                row.alone = False
                assert row.made <= self.trips.bad.get(row.number, row.made), "a step that fails has ended well"
                if row.made == self.trips.steps(row.number):
                    place = outcome.ended.index(position) if self.trips.cells else position
                    self.check(row, [output[place] for output in ran.outputs])
                else:
                    assert position not in outcome.ended
        if outcome.continues:
            assert 0 < len(outcome.ended) < len(rows)
            unit.rows = [row for row in rows if not row.over]
        else:
            unit.over = True
            self.flying[unit.worker] -= 1
        for row in rows:
            if row.over or not outcome.continues:
                row.runs = False
            if row.over or (self.lost and not row.runs):
                self.let_go(row)

    def check(self, row: Row, outputs: list[Array]) -> None:
        for got, expected in zip(outputs, self.trips.expected(row.number), strict=True):
            assert np.array_equal(got[tuple(map(slice, expected.shape))], expected), (row.number, got, expected)
        row.over = True
        self.answered.append(row.number)

    def act(self) -> None:
        kinds: list[Callable[[], Any]] = [self.arrive, self.push, self.leave, self.recall]
        if self.random.random() < 0.4:
            self.random.choices(kinds, [3, 8, 0.3, 1])[0]()
        else:
            self.device.turn()

    def settle(self) -> None:
        """Everything ends, and nothing is left of it."""
        while self.rows:
            assert len(self.units) < 5_000, "rows that never end"
            self.push()
            self.device.turn()
            if self.lost:
                for row in [row for row in self.rows if not row.runs]:
                    self.let_go(row)
        while self.device.turn():
            pass
        assert all(unit.over for unit in self.units)
        kept = self.executor.activations
        assert kept is not None
        assert (kept.rows, kept.nbytes) == (0, 0)
        if not self.device.fake.broken:
            assert self.executor.pool.used == 0
