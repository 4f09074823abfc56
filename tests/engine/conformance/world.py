"""A scheduler that cuts units from rows at one boundary, in any order, recalls some, and loses callers: at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.contract import Array, Model
from app.engine.device import Completion
from app.engine.executor import Job, Stop
from app.scheduler.types import Fault

from .stepped import SteppedCpu, SteppedStreams, try_batch


@dataclass(frozen=True)
class Trips:
    """What a world's rows are. `rows` makes the input of a number, `expected` its outputs, `steps` how many it takes.

    `cells`: rows that have made different numbers of steps share a unit. `own_steps`: the device says when a row has
    made its steps, which may be more, as it reads first. `bad`: by number, the step at which it fails;
    every other one for want of memory.
    """

    model: Model
    rows: Callable[[int], Array]
    expected: Callable[[int], list[Array]]
    steps: Callable[[int], int] = lambda number: 1
    cells: bool = False
    own_steps: bool = False
    bad: dict[int, int] = field(default_factory=dict)


def fault_of(number: int) -> Fault:
    """Of a bad row."""
    return Fault.OOM if number % 2 else Fault.MODEL


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
    stop: Stop
    over: bool = False


class World:
    """`answered` and `refused`: numbers of rows. `lost`: somebody has been told that the device is lost; no more calls
    are taken."""

    def __init__(self, device: SteppedStreams | SteppedCpu, trips: Trips, slots: int = 16) -> None:
        self.device, self.trips = device, trips
        self.executor = device.watched(trips.model, slots)
        self.axes = sorted(self.executor.pool.lengths)
        self.random = device.fake.random
        self.rows: list[Row] = []
        self.units: list[Unit] = []
        self.held: list[tuple[int, list[Array]]] = []  # answers that somebody still reads
        self.flying: Counter[int] = Counter()
        self.number = 100
        self.answered: list[int] = []
        self.refused: list[int] = []
        self.lost = False
        device.start(self.heard)

    def tried(self) -> World:
        """As a model is before it serves."""
        for size in range(1, 5):
            try_batch(self.device, self.executor, size, dict.fromkeys(self.axes, 1 + size % 4))
        if self.executor.activations is not None:
            self.executor.activations.bound(16)
        return self

    def lives(self, turns: int) -> World:
        """So many things happen; then everything ends."""
        for _ in range(turns):
            self.act()
        self.settle()
        return self

    def arrive(self) -> None:
        try:
            slots = [] if self.lost else self.executor.pool.take(self.random.randint(1, 3))
        except MemoryError:
            return
        for slot in slots:
            self.number += 1
            values = self.trips.rows(self.number)
            lengths = dict.fromkeys(self.axes, len(values) if values.ndim else 0)
            self.executor.pool.set_lengths([slot], lengths)
            self.executor.pool.write([slot], 0, values[None], lengths)
            self.rows.append(Row(slot, self.number))
        if self.random.random() < 0.7:  # others are announced when their unit is pushed
            self.device.arrive(self.executor, slots)

    def push(self) -> None:
        worker = self.random.randrange(len(self.device.spec.workers))
        ready = [row for row in self.rows if not row.runs]
        if self.flying[worker] == 3 or not ready or (self.executor.one_unit and self.flying.total()):
            return
        first = self.random.choice(ready)
        rows = [row for row in ready if not row.alone and (self.trips.cells or row.made == first.made)]
        capacity = self.device.spec.workers[worker].capacity
        n = self.random.randint(1, capacity)
        chosen = [first]
        if not first.alone:  # as often as not in the order in which they came
            chosen = rows[:n] if self.random.random() < 0.5 else self.random.sample(rows, min(n, len(rows)))
        left = max(1, min(self.trips.steps(row.number) - row.made for row in chosen))
        steps = left if self.random.random() < 0.5 else self.random.randint(1, left)
        stage = 0 if self.trips.cells else chosen[0].made
        onward = self.trips.cells and self.random.random() < 0.7
        size = self.random.randint(len(chosen), capacity)
        slots = [row.slot for row in chosen]
        job, stop = Job(len(self.units), self.executor, slots, size, stage, steps), Stop(at_next_row=not onward)
        for row in chosen:
            row.runs = True
        self.units.append(Unit(worker, chosen, stop))
        self.flying[worker] += 1
        self.device.push(worker, job, stop)

    def recall(self) -> None:
        """A unit that runs is to end soon."""
        if running := [unit for unit in self.units if not unit.over]:
            stop = self.random.choice(running).stop
            if self.random.random() < 0.5:
                stop.now = True
            else:
                stop.at_next_row = True

    def leave(self) -> None:
        """Somebody goes who has not been served."""
        waiting = [row for row in self.rows if not row.runs]
        if waiting:
            self.release(self.random.choice(waiting))

    def release(self, row: Row) -> None:
        self.rows.remove(row)
        if self.executor.activations is not None:
            self.executor.activations.release([row.slot])
        self.executor.pool.give_back([row.slot])

    def read(self) -> None:
        """An answer has been read to its end."""
        if self.held:
            self.check(*self.held.pop(self.random.randrange(len(self.held))))

    def heard(self, completion: Completion) -> None:
        outcome, ran = completion.outcome, completion.ran
        unit = self.units[outcome.unit_id]
        assert not unit.over, "reported twice"
        assert completion.worker == unit.worker
        rows = unit.rows
        if ran is None:
            self.failed(rows, completion)
        else:
            assert outcome.steps == ran.steps >= 1
            for position, row in enumerate(rows):
                self.went_on(row, position, completion)
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
                self.release(row)

    def failed(self, rows: list[Row], completion: Completion) -> None:
        fault = completion.outcome.error
        self.lost = self.lost or fault is Fault.DEVICE
        culprits = [row for row in rows if self.trips.bad.get(row.number) == row.made]
        assert self.device.fake.broken if self.lost else culprits, completion.message
        for row in rows:
            row.alone = True
        if len(rows) == 1 and culprits:
            assert self.lost or fault is fault_of(rows[0].number)
            rows[0].over = True
            self.refused.append(rows[0].number)

    def went_on(self, row: Row, position: int, completion: Completion) -> None:
        """A unit of this row has run well."""
        ran, ended = completion.ran, completion.outcome.ended
        steps = self.trips.steps(row.number)
        row.made = min(row.made + ran.steps, steps)  # a row of a cell may wait a few steps for others that end
        row.alone = False
        assert row.made <= self.trips.bad.get(row.number, row.made), "a step that fails has ended well"
        over = position in ended if self.trips.own_steps else row.made == steps
        assert not self.trips.cells or (position in ended) == over
        if over:
            place = ended.index(position) if self.trips.cells else position
            row.over = True
            self.answered.append(row.number)
            self.held.append((row.number, [output[place] for output in ran.outputs]))
            self.check(*self.held[-1])

    def check(self, number: int, outputs: list[Array]) -> None:
        for got, expected in zip(outputs, self.trips.expected(number), strict=True):
            own = np.asarray(got)[tuple(map(slice, np.shape(expected)))]  # what is beyond is padding
            assert np.array_equal(own, expected), (number, got, expected)

    def act(self) -> None:
        kinds: list[Callable[[], Any]] = [self.arrive, self.push, self.leave, self.recall, self.read]
        if self.random.random() < 0.4:
            self.random.choices(kinds, [3, 8, 0.3, 1, 1])[0]()
        else:
            self.device.turn()

    def settle(self) -> None:
        """Everything ends, and nothing is left of it."""
        while self.rows:
            assert len(self.units) < 5_000, "rows that never end"
            assert self.device.fake.broken or self.device.dead() is None
            self.push()
            self.device.turn()
            if self.lost:
                for row in [row for row in self.rows if not row.runs]:
                    self.release(row)
        while self.device.turn():
            pass
        while self.held:
            self.read()
        assert all(unit.over for unit in self.units)
        kept = self.executor.activations
        assert kept is None or (len(kept), kept.nbytes) == (0, 0)
        if not self.device.fake.broken:
            assert self.executor.pool.used == 0
            assert self.device.dead() is None
