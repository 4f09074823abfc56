"""Invariant: whenever a unit of several captured stages is recalled, in whatever order streams run, each row goes
through each stage once, goes on from the stage that it has left, and gets the outputs of its own values.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime, FakeStream

from app.contract import Model
from app.engine.devices.base import Completion, DeviceOptions, Job
from app.engine.devices.streams.between.passing import Produced
from app.engine.devices.streams.executor import StreamExecutor
from app.engine.profiling.warmup import try_batch
from app.errors import ConfigError
from app.scheduler.types import Fault

from ....rig import make_model, rows_of
from ..stepped import Stepped
from .test_stages import variable

GUARD = DeviceOptions(guard=True)
STAGES = 4
SEEDS = st.integers(0, 2**32 - 1)


@dataclass(eq=False)
class Log:
    """y = x + 4 in four stages, each of which notes whose rows it computes. `bad`: a number and where it fails."""

    seen: list[tuple[int, int]] = field(default_factory=list)
    bad: tuple[int, int] | None = None

    def model(self) -> Model:
        def note(x: torch.Tensor, stage: int) -> None:
            numbers = {int(value) - stage for value in x[:, 0].tolist()}
            self.seen += [(number, stage) for number in sorted(numbers)]
            if self.bad is not None and self.bad[1] == stage and self.bad[0] in numbers:
                raise ValueError("poisoned")

        def first(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            note(x, 0)
            return x + 1, x * 10

        def second(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            note(x, 1)
            return y, x.add_(1)  # what it was given comes back, the other way round

        def third(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            note(x, 2)
            return x + 1, y

        def fourth(x: torch.Tensor, y: torch.Tensor, again: torch.Tensor) -> torch.Tensor:
            note(x, 3)
            return x + 1 + (y - again * 10)

        return make_model(stages=[first, second, third, fourth], again=[(), (), (), (0,)], max_batch=4)


class Device:
    """A stepped device whose stages are guarded and captured; slot n holds the row of 10 + n."""

    def __init__(self, runtime: FakeRuntime, *capacities: int, slots: int = 8) -> None:
        self.log = Log()
        self.stepped = Stepped(runtime, capacities, GUARD)
        executor = self.stepped.open(self.log.model(), slots)
        assert isinstance(executor, StreamExecutor)
        self.executor = executor
        for size in range(1, 5):
            try_batch(self.stepped, executor, size, {})
        assert executor.goes_on
        while self.stepped.turn():
            pass
        executor.pool.write(executor.pool.take(slots), 0, rows_of(*[10.0 + slot for slot in range(slots)]))
        self.stepped.arrive(executor, range(slots))
        self.reports: list[Completion] = []
        self.stepped.start(self.reports.append)
        self.log.seen.clear()

    def push(self, slots: list[int], stage: int = 0, steps: int = STAGES, worker: int = 0, size: int = 0) -> Job:
        unit = len(self.reports)
        job = Job(unit, self.executor, slots, size or len(slots), stage, steps)
        self.stepped.push(worker, job)
        return job

    def settle(self) -> Completion:
        while self.stepped.turn():
            pass
        return self.reports[-1]

    def run(self, stream: FakeStream) -> None:
        """One stream does its next piece of work."""
        assert stream.ready
        others = [(other, list(other.work)) for other in self.stepped.fake.streams if other is not stream]
        for other, _ in others:
            other.work.clear()
        self.stepped.fake.step()
        for other, work in others:
            other.work.extend(work)

    def arrived(self) -> None:
        while self.stepped.launches.in_stream.ready:
            self.run(self.stepped.launches.in_stream)

    def stages_seen(self) -> set[int]:
        return {stage for _, stage in self.log.seen}


def outputs(completion: Completion) -> list[float]:
    assert completion.ran is not None, completion.message
    return [float(row[0]) for row in completion.ran.outputs[0]] if completion.ran.outputs else []


@pytest.mark.parametrize("after", range(STAGES + 1))
def test_a_recall_ends_the_unit_with_the_stage_that_runs(after: int) -> None:
    """The device is told when so many stages have run. What was skipped is made up for, and nothing is made twice."""
    device = Device(FakeRuntime(), 4)
    job = device.push([0, 1, 2], size=4)
    device.stepped.launch()
    device.arrived()
    stream = device.stepped.workers[0].stream
    while len(device.stages_seen()) < after:
        device.run(stream)
    device.stepped.recall(0, job)
    device.stepped.launch()
    device.run(device.stepped.launches._recalls)
    completion = device.settle()
    made = max(1, after)
    assert completion.ran is not None
    assert completion.outcome.steps == completion.ran.steps == made
    assert len(completion.ran.stages_ns) == made
    assert len(completion.outcome.times) == (made if made > 1 else 0)
    assert outputs(completion) == ([14, 15, 16] if made == STAGES else [])
    if made < STAGES:
        (produced, _), *_ = [place for place in device.executor.passing.standing([0]) if place is not None]
        assert isinstance(produced, Produced)
        assert (produced.stage, produced.event) == (made - 1, None)
        assert outputs((device.push([2, 0, 1], made), device.settle())[1]) == [16, 14, 15]
    assert Counter(device.log.seen) == Counter({(10 + slot, stage): 1 for slot in range(3) for stage in range(STAGES)})


def test_a_unit_that_was_recalled_before_its_launch_makes_one_stage() -> None:
    device = Device(FakeRuntime(), 4)
    device.stepped.recall(0, device.push([0]))
    assert device.settle().outcome.steps == 1
    assert device.stages_seen() == {0}


def test_a_recall_that_comes_late_stops_nobody_else() -> None:
    device = Device(FakeRuntime(), 4, 4)
    job = device.push([0])
    assert device.settle().outcome.steps == STAGES
    device.push([1])
    device.push([2], worker=1)
    device.stepped.launch()
    device.stepped.recall(0, job)
    device.settle()
    assert [completion.outcome.steps for completion in device.reports] == [STAGES] * 3


def test_a_unit_may_end_before_the_last_stage() -> None:
    device = Device(FakeRuntime(), 4)
    device.push([0, 1], steps=2)
    assert (outputs(device.settle()), device.reports[-1].outcome.steps) == ([], 2)
    device.push([1], 2, steps=1)
    assert (outputs(device.settle()), device.reports[-1].outcome.times) == ([], ())
    device.push([1], 3, steps=1)
    assert outputs(device.settle()) == [15]
    device.push([0], 2, steps=9)
    assert outputs(device.settle()) == [14]


def test_a_unit_that_fails_leaves_its_rows_where_they_were() -> None:
    device = Device(FakeRuntime(), 4)
    device.push([0, 1], steps=1)
    device.settle()
    device.log.bad = (11, 2)
    device.push([0, 1], 1, steps=3)
    outcome = device.settle().outcome
    assert (outcome.error, outcome.steps) == (Fault.MODEL, 1)
    device.push([0], 1, steps=3)
    assert outputs(device.settle()) == [14]
    device.log.bad = None
    device.push([1], 1, steps=3)
    assert outputs(device.settle()) == [15]


def test_a_batch_without_a_graph_makes_one_stage() -> None:
    device = Device(FakeRuntime(), 4)
    for memory in device.executor.memories:
        assert memory.graphs is not None
        memory.graphs._sizes.clear()
    for stage in range(STAGES):
        device.push([0], stage)
        assert device.settle().outcome.steps == 1
    assert outputs(device.reports[-1]) == [14]


def test_memory_goes_with_the_rows() -> None:
    device = Device(FakeRuntime(), 4)
    device.push([0, 1], steps=2)
    device.settle()
    assert (device.executor.passing.rows, device.executor.passing.nbytes) == (2, 2 * 2 * 2 * 4)
    device.executor.passing.let_go([0, 1])
    assert (device.executor.passing.rows, device.executor.passing.nbytes) == (0, 0)


def test_what_a_guard_needs_is_asked_for_at_the_start() -> None:
    for options in (DeviceOptions(guard=True, graphs=False), DeviceOptions(guard=True, push_depth=2)):
        with pytest.raises(ConfigError, match="cuda_guard: expected cuda_graphs, and a push_depth of 1"):
            Stepped(FakeRuntime(), (4,), options)
    spec = Stepped(FakeRuntime(), (4,), GUARD).spec
    assert (spec.goes_on, spec.push_depth, spec.withdraws) == (True, 1, False)


@dataclass(eq=False)
class World:
    """Rows that go through the stages in units cut anywhere; some units are recalled, at any time."""

    device: Device
    chance: random.Random
    at: dict[int, int] = field(default_factory=dict)  # by slot: the next stage
    flying: dict[int, Job] = field(default_factory=dict)  # by worker
    answers: dict[int, float] = field(default_factory=dict)
    units: int = 0

    def push(self) -> None:
        worker = self.chance.randrange(len(self.device.stepped.workers))
        busy = {slot for job in self.flying.values() for slot in job.slots}
        waiting = [slot for slot, at in self.at.items() if at < STAGES and slot not in busy]
        if worker in self.flying or not waiting:
            return
        capacity = self.device.stepped.spec.workers[worker].capacity
        stage = self.at[self.chance.choice(waiting)]
        alike = [slot for slot in waiting if self.at[slot] == stage]
        slots = self.chance.sample(alike, min(len(alike), self.chance.randint(1, capacity)))
        size, steps = self.chance.randint(len(slots), capacity), self.chance.randint(1, STAGES - stage)
        self.units += 1
        self.flying[worker] = job = Job(self.units, self.device.executor, slots, size, stage, steps)
        self.device.stepped.push(worker, job)

    def recall(self) -> None:
        if self.flying:
            worker, job = self.chance.choice(list(self.flying.items()))
            self.device.stepped.recall(worker, job)

    def hear(self) -> None:
        for completion in self.device.reports:
            job = self.flying.pop(completion.worker)
            assert completion.outcome.unit_id == job.unit_id
            made = completion.outcome.steps
            assert made == job.steps or (job.recalled and 1 <= made < job.steps)
            for slot in job.slots:
                self.at[slot] += made
            if job.stage + made == STAGES:
                self.answers.update(zip(job.slots, outputs(completion), strict=True))
                self.device.executor.passing.let_go(job.slots)
            else:
                assert not outputs(completion)
        self.device.reports.clear()

    def play(self) -> None:
        while len(self.answers) < len(self.at):
            draw = self.chance.random()
            if draw < 0.15:
                self.push()
            elif draw < 0.2:
                self.recall()
            else:
                self.device.stepped.turn()
            self.hear()
        while self.device.stepped.turn():  # recalls that nobody is left for
            pass


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_each_row_goes_through_each_stage_once_in_every_order(seed: int) -> None:
    device = Device(FakeRuntime(seed), 4, 2, slots=10)
    world = World(device, random.Random(seed), dict.fromkeys(range(10), 0))
    world.play()
    assert world.answers == {slot: 14 + slot for slot in range(10)}
    assert Counter(device.log.seen) == Counter({(10 + slot, stage): 1 for slot in range(10) for stage in range(STAGES)})
    assert (device.executor.passing.rows, device.executor.passing.nbytes) == (0, 0)


@given(seed=SEEDS, breaks_at=st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_when_the_device_fails_each_unit_is_reported_once(seed: int, breaks_at: int) -> None:
    device = Device(FakeRuntime(seed), 4, 2)
    device.stepped.fake.breaks_at = device.stepped.fake.done + breaks_at
    jobs = [device.push([0, 1]), device.push([2], worker=1)]
    jobs[1].unit_id = 1
    device.stepped.recall(0, jobs[0])
    device.settle()
    assert sorted(completion.outcome.unit_id for completion in device.reports) == [0, 1]
    assert {completion.outcome.error for completion in device.reports} <= {None, Fault.DEVICE}


def test_rows_at_different_lengths_go_on_as_one_batch() -> None:
    """Padded to the length of the graph, and cut again where they join others."""
    stepped, trips = Stepped(FakeRuntime(), (4,), GUARD), variable()
    executor = stepped.open(trips.model, 8)
    assert isinstance(executor, StreamExecutor)
    for size in range(1, 5):
        try_batch(stepped, executor, size, {"n": 1 + size % 4})
    numbers = [101, 103]  # of two and four numbers
    slots = list(executor.pool.take(2))
    for slot, number in zip(slots, numbers, strict=True):
        values = trips.rows(number)
        executor.pool.set_lengths([slot], {"n": values.size})
        executor.pool.write([slot], 0, values[None], {"n": values.size})
    stepped.arrive(executor, slots)
    reports: list[Completion] = []
    stepped.start(reports.append)
    for unit, (stage, steps, rows) in enumerate([(0, 2, slots), (2, 1, slots[:1]), (2, 1, slots[1:])]):
        stepped.push(0, Job(unit, executor, rows, 2, stage, steps))
        while stepped.turn():
            pass
    got = [completion.ran.outputs[0][0] for completion in reports[1:] if completion.ran is not None]
    assert all(np.array_equal(one, trips.expected(number)[0]) for one, number in zip(got, numbers, strict=True))
