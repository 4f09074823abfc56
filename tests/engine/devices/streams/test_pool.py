"""Ebird's Table I and the rules of slots, one by one; test_streams.py holds them all at once, in any order."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from runtimes import FakeRuntime, FakeStream
from torch import nn

from app.engine.devices.base import Completion, DeviceOptions, Job
from app.engine.devices.streams.device import StreamDevice
from app.engine.devices.streams.executor import Graph, StagedExecutor
from app.engine.devices.streams.pool import Copies, StagedPool, runs
from app.engine.profiling.warmup import try_batch
from app.scheduler.types import Fault, WorkerSpec

from ...rig import X, answers, make_model, rows_of, tensor
from .stepped import Stepped

EAGER = DeviceOptions(graphs=False)


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


class Bench:
    """A stepped device with one model, and what it reported. Streams move only when told."""

    def __init__(self, *capacities: int, options: DeviceOptions = EAGER, model: nn.Module | None = None) -> None:
        self.runtime = FakeRuntime()
        self.device = Stepped(self.runtime, capacities or (4,), options)
        self.executor = self.device.watched_executor(make_model(model or Double(), max_batch=4), 8)
        self.pool = self.executor.pool
        self.reports: list[Completion] = []
        self.device.start(self.reports.append)

    def arrive(self, *values: float) -> list[int]:
        slots = self.pool.take(len(values))
        self.pool.write(slots, 0, rows_of(*values))
        self.device.arrive(self.executor, slots)
        return list(slots)

    def push(self, slots: list[int], worker: int = 0, unit: int = 0) -> None:
        self.device.push(worker, Job(unit, self.executor, slots, len(slots)))

    def launch(self) -> None:
        """The launcher does what it has."""
        while not self.device._messages.empty():
            self.device._take_message()

    def run(self, stream: FakeStream, *, until_stuck: bool = True) -> int:
        """One stream does what it can; how much that was."""
        others = [other.work for other in self.runtime.streams if other is not stream]
        held = [(work, list(work)) for work in others]
        done = 0
        for work in others:
            work.clear()
        while stream.ready and (until_stuck or not done):
            self.runtime.step()
            done += 1
        for work, items in held:
            work.extend(items)
        return done

    @property
    def arrivals(self) -> FakeStream:
        stream = self.device._in
        assert isinstance(stream, FakeStream)
        return stream


def test_a_slot_has_the_five_fields_of_table_one():
    bench = Bench()
    slots = bench.arrive(1.0, 2.0)
    bench.launch()
    one, two = (bench.pool.slot(slot) for slot in slots)
    assert (one.index, two.index) == tuple(slots)
    assert two.in_dev_ptr[0] - one.in_dev_ptr[0] == 8  # neighbours in one contiguous buffer: two FP32 each
    assert one.in_event is two.in_event is not None  # the rows of a call are one copy
    assert (one.out_cpu_ptr, one.out_event) == ((), None)
    bench.push(slots[::-1])
    bench.launch()
    while not bench.reports:
        bench.device.turn()
    one, two = (bench.pool.slot(slot) for slot in slots)
    assert one.out_event is two.out_event is not None
    assert one.out_cpu_ptr[0] - two.out_cpu_ptr[0] == 8  # they ran in the other order
    bench.pool.give_back(slots)
    assert bench.pool.slot(slots[0]).out_cpu_ptr == ()


def test_adjacent_rows_of_a_call_are_one_copy_and_one_event():
    bench = Bench()
    bench.arrive(1.0, 2.0, 3.0)
    bench.launch()
    assert [kind for kind, _ in bench.arrivals.work] == ["run", "fire"]


def test_a_copy_begins_on_arrival_without_a_unit():
    bench = Bench()
    (slot,) = bench.arrive(7.0)
    bench.launch()
    bench.run(bench.arrivals)
    assert np.array_equal(bench.pool.rows[0][slot].numpy(), rows_of(7.0)[0])


def test_a_worker_waits_for_its_last_slot_and_for_no_later_one():
    bench = Bench()
    first = bench.arrive(1.0)
    second = bench.arrive(2.0)
    bench.launch()
    bench.push(second + first)
    bench.launch()
    bench.arrive(3.0)
    bench.launch()
    worker = bench.device.lanes[0].stream
    assert bench.run(worker) == 0
    bench.run(bench.arrivals, until_stuck=False)  # the first copy
    bench.run(bench.arrivals, until_stuck=False)  # its event
    assert bench.run(worker) == 0, "the last slot's copy is not over"
    bench.run(bench.arrivals, until_stuck=False)
    bench.run(bench.arrivals, until_stuck=False)
    assert bench.run(worker) > 0
    assert len(bench.arrivals.work) == 2, "the third row's copy has not begun"


def test_the_last_slot_is_the_one_copied_last_not_the_highest():
    bench = Bench()
    high = bench.arrive(*range(8))
    bench.launch()
    bench.runtime.random.seed(1)
    while bench.device.turn():
        pass
    bench.device.copies.over(1)
    bench.pool.give_back(high[:2])
    low = bench.arrive(50.0)  # a lower slot, copied later
    bench.launch()
    bench.push([high[7], low[0]])
    bench.launch()
    assert low[0] < high[7]
    assert bench.run(bench.device.lanes[0].stream) == 0
    bench.run(bench.arrivals)
    assert bench.run(bench.device.lanes[0].stream) > 0


def test_a_result_does_not_wait_for_another_workers():
    bench = Bench(2, 2)
    slots = bench.arrive(1.0, 2.0)
    bench.push(slots[:1], worker=0, unit=0)
    bench.push(slots[1:], worker=1, unit=1)
    bench.launch()
    bench.run(bench.arrivals)
    for stream in (bench.device.lanes[1].stream, bench.device.lanes[1].out):
        bench.run(stream)
    bench.device._take_flight(bench.device.lanes[1])
    assert [report.outcome.unit_id for report in bench.reports] == [1]
    assert bench.device.lanes[0].stream.work, "the first has not begun"


def test_rows_arrive_while_a_batch_runs():
    bench = Bench()
    slots = bench.arrive(1.0)
    bench.push(slots)
    bench.launch()
    (late,) = bench.arrive(9.0)
    bench.launch()
    bench.run(bench.arrivals)
    assert bench.pool.rows[0][late, 0] == 9.0
    assert bench.device.lanes[0].stream.work


def test_a_slot_given_back_during_its_copy_comes_back_after_it():
    bench = Bench()
    slots = bench.arrive(1.0)
    bench.pool.give_back(slots)
    assert bench.pool.used == 1
    bench.launch()
    assert bench.pool.used == 1
    while bench.device.turn():
        pass
    assert bench.pool.used == 0


def test_rows_that_nobody_announced_are_copied_first():
    bench = Bench()
    slots = list(bench.pool.take(2))
    bench.pool.write(slots, 0, rows_of(3.0, 4.0))
    bench.push(slots)
    while bench.device.turn():
        pass
    assert np.array_equal(bench.reports[0].ran.outputs[0], answers(rows_of(3.0, 4.0)))


def test_outputs_are_held_until_they_have_landed():
    """The worker's stream may be given the memory of a tensor that nobody holds; the out-stream still reads it."""
    bench = Bench()
    bench.push(bench.arrive(1.0, 2.0))
    bench.launch()
    flight = bench.pool.flights[0]
    assert flight is not None
    bench.run(bench.arrivals)
    bench.run(bench.device.lanes[0].stream)
    assert [output.shape for output in flight.outputs] == [(2, 2)]
    bench.run(bench.device.lanes[0].out)
    assert flight.outputs
    bench.device._take_flight(bench.device.lanes[0])
    assert not flight.outputs


@pytest.mark.parametrize("code", [1, 2])
def test_an_error_of_the_accelerator_that_does_not_last_is_the_units(code: int):
    class Launches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x[0, 0] == 66.0:
                error = torch.AcceleratorError("invalid argument")
                error.error_code = code
                raise error
            return x * 2 + 1

    bench = Bench(model=Launches())
    bench.push(bench.arrive(66.0), unit=0)
    bench.push(bench.arrive(5.0), unit=1)
    while bench.device.turn():
        pass
    assert [report.outcome.error for report in bench.reports] == [Fault.OOM if code == 2 else Fault.MODEL, None]
    assert bench.device.dead() is None


def test_what_is_pushed_behind_a_model_that_ends_the_thread_is_reported_as_lost():
    class Leaves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise SystemExit("enough")

    bench = Bench(model=Leaves())
    bench.push(bench.arrive(1.0), unit=0)
    while bench.device.turn():
        pass
    bench.push(bench.arrive(5.0), unit=1)
    while bench.device.turn():
        pass
    assert [report.outcome.error for report in bench.reports] == [Fault.DEVICE] * 2
    assert bench.device.dead() == "SystemExit: enough"


def test_an_unloaded_model_goes_at_once():
    """The collector may have been told to leave alone what was there when the first models had loaded."""
    bench = Bench(4, 2, options=DeviceOptions())
    try_batch(bench.device, bench.executor, 4, {})
    bench.push(bench.arrive(3.0))
    while bench.device.turn():
        pass
    executor, graphs = weakref.ref(bench.executor), [weakref.ref(graph) for graph in graphs_of(bench.executor)]
    assert graphs
    assert bench.reports
    collects = gc.isenabled()
    gc.disable()
    try:
        bench.device.free(bench.executor)
        bench.launch()
        assert {graph() for graph in graphs} == {None}
        del bench.executor, bench.pool
        bench.reports.clear()
        assert executor() is None
    finally:
        if collects:
            gc.enable()


def graphs_of(executor: StagedExecutor) -> list[Graph]:
    return [graph for seat in executor.seats for graph in seat.graphs.values()]


def test_every_unit_is_reported_when_nothing_can_be_allocated_any_more():
    bench = Bench()
    slots = [bench.arrive(float(number)) for number in range(8)]
    bench.launch()
    bench.runtime.broken = True
    for number, own in enumerate(slots):
        bench.push(own, unit=number)
    while bench.device.turn():
        pass
    assert sorted(report.outcome.unit_id for report in bench.reports) == list(range(8))
    assert {report.outcome.error for report in bench.reports} == {Fault.DEVICE}
    assert bench.device.dead() is not None


def test_an_answer_that_cannot_be_stored_is_a_lost_unit_and_the_completer_goes_on(monkeypatch):
    bench = Bench()
    monkeypatch.setattr("app.engine.devices.streams.results.Landing.collect", raising(MemoryError("no memory")))
    for number in range(2):
        bench.push(bench.arrive(float(number)), unit=number)
    while bench.device.turn():
        pass
    assert [report.outcome.error for report in bench.reports] == [Fault.DEVICE] * 2
    assert bench.device.dead() == "MemoryError: no memory"


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise error

    return call


def test_a_model_that_leaves_its_inputs_alone_reads_them_where_they_are():
    for options in (EAGER, DeviceOptions()):
        bench = Bench(options=options)
        try_batch(bench.device, bench.executor, 4, {})
        assert not bench.executor.copies
    seen: list[int] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.untyped_storage().data_ptr())
            return x * 2 + 1

    bench = Bench(model=Sees())
    try_batch(bench.device, bench.executor, 4, {})
    seen.clear()
    bench.push(bench.arrive(3.0, 4.0))
    while bench.device.turn():
        pass
    assert seen == [bench.pool.rows[0].untyped_storage().data_ptr()]


def test_a_model_that_writes_into_its_inputs_gets_copies():
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2).add_(1)

    bench = Bench(model=Writes())
    try_batch(bench.device, bench.executor, 2, {})
    assert bench.executor.copies
    slots = bench.arrive(3.0, 4.0)
    for unit in range(2):  # run again, as after a failure: from the same rows
        bench.push(slots, unit=unit)
        while bench.device.turn():
            pass
        assert np.array_equal(bench.reports[-1].ran.outputs[0], answers(rows_of(3.0, 4.0)))


def test_push_after_close_is_reported():
    bench = Bench()
    slots = bench.arrive(1.0)
    bench.device.close(0)
    bench.push(slots)
    assert [report.outcome.error for report in bench.reports] == [Fault.DEVICE]


# graphs


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, [1]),
        (5, [1, 2, 3, 4, 5]),
        (16, [*range(1, 17)]),
        (40, [*range(1, 17), 32, 40]),
        (64, [*range(1, 17), 32, 64]),
    ],
)
def test_sizes_that_are_captured(largest: int, sizes: list[int]):
    assert Bench().executor.sizes(largest) == sizes


def test_a_size_without_a_graph_is_padded_to_the_next():
    shapes: list[int] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shapes.append(len(x))
            return x * 2 + 1

    bench = Bench(options=DeviceOptions(), model=Sees())
    try_batch(bench.device, bench.executor, 4, {})
    shapes.clear()
    bench.push(bench.arrive(3.0, 4.0, 5.0))
    while bench.device.turn():
        pass
    assert shapes == [4]
    assert np.array_equal(bench.reports[-1].ran.outputs[0], answers(rows_of(3.0, 4.0, 5.0)))


def test_streams_of_an_unloaded_model_are_used_again():
    bench = Bench(4, 2, options=DeviceOptions())
    before = len(bench.runtime.streams)
    for _ in range(3):
        bench.device.free(bench.executor)
        bench.launch()
        bench.executor = bench.device.watched_executor(make_model(Double(), max_batch=4), 8)
    assert len(bench.runtime.streams) == before


def test_streams_have_the_priority_of_their_worker():
    runtime = FakeRuntime()
    device = StreamDevice(runtime, (WorkerSpec(4, -1), WorkerSpec(4)))
    device.open(make_model(Double(), max_batch=4), 8)
    # in-stream; stream and out-stream of each worker; weights, on which the second's graphs are captured later; the
    # stream that those of the first are captured on
    assert [stream.priority for stream in runtime.streams] == [0, -1, -1, 0, 0, 0, -1]
    assert device.close(10)


# memory


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (range(3, 6), [(3, 6)]),
        ([3, 4, 5], [(3, 6)]),
        ([5, 4], [(5, 6), (4, 5)]),
        ([1, 2, 7, 8, 3], [(1, 3), (7, 9), (3, 4)]),
    ],
)
def test_runs_of_neighbours(slots, expected):
    assert runs(slots) == expected


def test_a_pool_is_staged_once_for_each_input():
    runtime = FakeRuntime()
    specs = [X, tensor("ids", "INT64", ("n", 5))]
    pool = StagedPool(specs, 6, Copies(), (runtime.pinned, runtime.empty), lambda pool, slots: None)
    assert [rows.shape for rows in pool.rows] == [(6, 2), (6, 5)]
    assert all(rows.is_contiguous() for rows in pool.rows)
