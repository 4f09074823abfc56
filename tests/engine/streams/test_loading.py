"""Models come and go: what runs before they serve, what they hold, and when they let go of it."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from graphs import on_another_thread
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime, HostRuntime, InlineRuntime
from torch import nn

from app.contract import Model
from app.engine.device import Completion, DeviceOptions
from app.engine.executor import Job, Stop
from app.engine.streams.device import StreamDevice
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.worker_memory import Shape, WorkerMemory, reads_of
from app.errors import ConfigError
from app.scheduler.types import WorkerSpec

from ..conformance.models import plain, sums
from ..conformance.stepped import SteppedStreams, try_batch
from ..conformance.world import World
from ..rig import Linear, answers, make_model, raising, rows_of, tensor
from .bench import EAGER, GRAPHS, Bench

SEEDS = st.integers(0, 2**32 - 1)


# the loop and other models go on meanwhile


class Gate:
    """Once armed, a model's next batch waits at it. `runtime`: it also reads a value of the device."""

    def __init__(self, runtime: InlineRuntime | None = None) -> None:
        self.armed = False
        self.runtime = runtime
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, x: torch.Tensor) -> None:
        if self.runtime is not None:
            self.runtime.synchronize(self.runtime.event())
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.opened.wait(10)


def opened(device: StreamDevice, model: Model) -> StreamExecutor:
    """Loaded, tried, and with a row of 3 in its first slot."""
    executor = device.open(model, 4)
    for size in (1, 2):
        try_batch(device, executor, size, {})
    executor.pool.write(executor.pool.take(1), 0, rows_of(3.0))
    return executor


@pytest.mark.parametrize("where", ["first run", "capture"])
def test_loading_does_not_hold_up_units_of_other_models(where: str) -> None:
    """The gate opens when another model's unit has ended: in vain if that waits for the gate."""
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    with HostRuntime() as runtime:
        device = StreamDevice(runtime, (WorkerSpec(2),))
        device.start(reports.put)
        serving, gate = opened(device, make_model(Linear(), max_batch=2)), Gate()
        loading = device.open(make_model(Linear(gate), name="loading", max_batch=2), 4)
        capture = runtime.capture

        def captured(*args: Any) -> Any:
            gate.armed = where == "capture"
            return capture(*args)

        runtime.capture = captured  # type: ignore[method-assign]
        gate.armed = where == "first run"
        trial = threading.Thread(target=try_batch, args=(device, loading, 2, {}), daemon=True)
        trial.start()
        assert gate.reached.wait(10)
        device.push(0, Job(7, serving, [0], 1), Stop())
        assert reports.get(timeout=10).outcome.unit_id == 7
        gate.opened.set()
        trial.join(10)
        assert [sorted(memory.graphs) for memory in loading.memories] == [[Shape(0, 2)]]
        assert device.close(10)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_model_that_waits_for_the_device_does_not_hold_up_other_workers(graphs: bool, caplog) -> None:
    """The gate opens when another worker's unit has ended: in vain if that waits for the gate."""
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    runtime = InlineRuntime()
    device = StreamDevice(runtime, (WorkerSpec(2), WorkerSpec(2)), DeviceOptions(graphs=graphs))
    device.start(reports.put)
    reads = Gate(runtime)
    other = opened(device, make_model(Linear(), max_batch=2))
    blocking = opened(device, make_model(Linear(reads), name="reads", max_batch=2))
    assert (other.graphs, blocking.graphs) == (graphs, False)
    assert caplog.text.count("model reads: runs without further CUDA graphs") == graphs
    reads.armed = True
    device.push(0, Job(1, blocking, [0], 1), Stop())
    assert reads.reached.wait(10)
    device.push(1, Job(2, other, [0], 1), Stop())
    assert reports.get(timeout=10).outcome.unit_id == 2
    assert not device.close(0.01)
    reads.opened.set()
    completion = reports.get(timeout=10)
    assert np.array_equal(completion.ran.outputs[0], answers(rows_of(3.0)))
    assert device.close(10)


@given(seed=SEEDS)
@settings(max_examples=10)
def test_units_are_launched_and_end_while_a_capture_is_open(seed: int) -> None:
    """In any order; the runtime notices work on a stream that graphs are captured on."""
    world = World(SteppedStreams(FakeRuntime(seed), (4, 2)), plain()).tried()

    def beside(x: torch.Tensor) -> None:
        with on_another_thread():
            for _ in range(30 * world.device.fake.captures):
                world.act()

    loading = world.device.open(make_model(Linear(beside), name="loading", max_batch=4), 8)
    for size in (1, 4):
        try_batch(world.device, loading, size, {})
    assert any(unit.over for unit in world.units)
    world.settle()


def test_nothing_is_captured_while_a_model_is_loaded_that_draws_random_numbers(caplog) -> None:
    """Where the runtime counts them: there its batches would fail while a capture is open."""
    runtime = FakeRuntime()
    device = SteppedStreams(runtime, (4,))

    def load(name: str, model: nn.Module) -> StreamExecutor:
        executor = device.watched(make_model(model, name=name, max_batch=4), 8)
        try_batch(device, executor, 2, {})
        return executor

    before, draws, beside = load("before", Linear()), load("draws", Linear(runtime.draw)), load("beside", Linear())
    assert [bool(one.memories[0].graphs) for one in (before, draws, beside)] == [True, False, False]
    assert "model beside: runs without further CUDA graphs" in caplog.text
    assert caplog.text.count("is loaded that draws random numbers: draws") == 2
    device.free(draws)
    while device.turn():
        pass
    del draws
    assert load("behind", Linear()).memories[0].graphs


# trials


@pytest.mark.parametrize("options", [EAGER, GRAPHS], ids=["eager", "graphs"])
def test_a_batch_runs_first_on_the_thread_that_loads(options: DeviceOptions) -> None:
    """Compiling takes up to minutes, and other models' units wait in the launcher's queue."""
    calls: list[tuple[str, int]] = []  # each batch: the thread that ran it, and its rows
    sees = Linear(lambda x: calls.append((threading.current_thread().name, len(x))))
    device = StreamDevice(InlineRuntime(), (WorkerSpec(4),), options)
    device.start(lambda completion: None)
    executor = device.open(make_model(sees, max_batch=4), 8)
    for size in (4, 3):
        try_batch(device, executor, size, {})
    threads = [[name for name, rows in calls if rows == size] for size in (4, 3)]
    launcher = device.workers[0].launcher.thread.name
    for names in threads:
        assert names[0] == threading.current_thread().name
        assert names.count(launcher) == (0 if options.graphs else 2)  # a graph runs without the model's code
    assert device.close(10)


def test_a_model_is_placed_when_the_work_that_made_it_is_over() -> None:
    """Its own code may have made weights on the device, on the default stream, for which no other waits."""
    runtime, model = FakeRuntime(), Linear()
    torch.nn.init.zeros_(model.scale)
    runtime.home.append(lambda: torch.nn.init.constant_(model.scale, 2))
    device = SteppedStreams(runtime, (4,))
    placed = device.open(make_model(model, max_batch=4), 8).model.call
    assert isinstance(placed, Linear)
    assert placed.scale == 2


def test_a_trial_runs_on_its_rows_alone() -> None:
    """What was in their memory before may be no index that a model takes, which would stop the GPU."""
    seen: set[float] = set()

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.update(x[:, 0].tolist())
        return x

    for model in (Linear(look), make_model(stages=[lambda x: x.clone(), look], max_batch=4)):
        Bench(options=GRAPHS, model=model, tried=(3,))
    assert seen == {1.0}


def test_a_model_for_which_no_stream_is_left_runs_without_graphs(caplog) -> None:
    device = SteppedStreams(FakeRuntime(), (4,))
    while device._streams.take_unused(0) is not None:
        pass
    executor = device.watched(make_model(Linear(), max_batch=4), 8)
    try_batch(device, executor, 2, {})
    assert not executor.memories[0].graphs
    assert "no stream is left to capture on" in caplog.text


def test_streams_have_the_priority_of_their_worker() -> None:
    """The kernels of a graph keep that of the stream that they were captured on."""
    device = StreamDevice(FakeRuntime(), (WorkerSpec(4), WorkerSpec(4, priority=-1)))
    executor = device.open(make_model(Linear(), max_batch=4), 8)
    for worker, memory in zip(device.workers, executor.memories, strict=True):
        streams = (worker.stream, worker.out, worker.ends, memory.stream)
        assert {stream.priority for stream in streams} == {worker.spec.priority}


def test_a_batch_that_no_worker_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match="no worker takes a batch of 3 rows"):
        Bench(2, tried=(3,))


def test_a_device_that_fails_while_a_model_is_loaded_is_lost_at_once() -> None:
    bench = Bench(options=GRAPHS)
    bench.runtime.breaks_at = bench.runtime.done + 3
    with pytest.raises(torch.AcceleratorError):
        bench.try_batch(1)
    assert "illegal memory access" in (bench.device.dead() or "")


def test_trials_return_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the checks of a model at load would not see what is wrong with its graphs."""
    bench = Bench(options=GRAPHS)
    nothing = [torch.zeros(4, 2)]
    monkeypatch.setattr(bench.runtime, "capture", lambda *_: (lambda: None, nothing))
    bench.pool.write(range(4), 0, rows_of(1.0, 2.0, 3.0, 4.0))
    assert not bench.device.trial(bench.executor, range(4), 4).outputs[0].any()


@pytest.mark.parametrize("when", ["placed", "tried"])
def test_a_model_that_does_not_fit_is_refused(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SteppedStreams(FakeRuntime(), (4,))
    executor = device.open(sums().model, 8)
    monkeypatch.setattr(device.runtime, "empty", raising(torch.OutOfMemoryError("full")))
    with pytest.raises(ConfigError, match=r"(8 rows under way do|does) not fit into the device's memory: full"):
        device.open(sums().model, 8) if when == "placed" else try_batch(device, executor, 1, {"n": 1})


IDS, SUM, WIDTH = tensor("ids", "INT64", ("n", 40), pad_value=7), tensor("sum", "INT64"), tensor("width", "INT64")


class Sums(nn.Module):
    """The sum of each row's values that are not padding, and how many values there are. Fails on rows of `fails`."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__()
        self.fails = fails

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if ids.shape[1] == self.fails:
            raise ValueError("too long")
        return torch.where(ids == 7, 0, ids).sum(1), torch.full((len(ids),), ids.shape[1])


def of_length(model: nn.Module, options: DeviceOptions = GRAPHS, **batching: Any) -> Bench:
    """Batches of 3 rows have been tried at length 12."""
    outputs = [SUM, WIDTH] if isinstance(model, Sums) else [SUM]
    bench = Bench(options=options, model=make_model(model, [IDS], outputs, max_batch=4, row_check="refuse", **batching))
    bench.try_batch(3, n=12)
    return bench


@pytest.mark.parametrize(
    ("lengths", "fails", "options", "padded"),
    [
        ((1, 2, 3), 0, GRAPHS, 10),
        ((10, 4, 1), 0, GRAPHS, 10),
        ((1, 11, 1), 0, GRAPHS, 20),
        ((40, 1, 1), 0, GRAPHS, 40),
        ((1, 11, 3), 0, EAGER, 11),
        ((12, 1, 1), 40, GRAPHS, 20),
        ((30, 1, 1), 40, GRAPHS, 30),
    ],
)
def test_a_batch_is_padded_to_the_next_length_that_was_captured(lengths, fails, options, padded) -> None:
    """A shape in which the model fails has no graph, and the others do."""
    bench = of_length(Sums(fails), options)
    slots = bench.arrive_rows([np.ones(length, np.int64) for length in lengths])
    assert [values.tolist() for values in bench.ran(slots).ran.outputs] == [list(lengths), [padded] * 3]


def test_a_batch_is_not_padded_beyond_its_bucket() -> None:
    """Where that has no graph; the next one has."""
    bench = of_length(Sums(fails=10), length_buckets=(10, 20))
    ran = bench.ran(bench.arrive_rows([np.ones(3, np.int64)] * 3)).ran
    assert [values.tolist() for values in ran.outputs] == [[3] * 3, [3] * 3]


def test_every_graph_runs_before_the_model_serves() -> None:
    bench = of_length(Sums())
    assert bench.shapes == [Shape(10, 3), Shape(20, 3), Shape(40, 3), Shape(40, 4)]
    assert len(bench.runtime.replayed) == len(bench.shapes)


class Tabled(nn.Module):
    """Makes a table for the length of its rows, and keeps it until rows of another length come."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.int64), requires_grad=False)
        self.table = torch.zeros(0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.table.numel() != ids.shape[1]:
            self.table = torch.arange(ids.shape[1]) * self.one
        return (torch.where(ids == 7, 0, ids) * self.table).sum(1)


def test_what_a_graph_reads_stays_where_it_is() -> None:
    """As long as the graph. The model itself has replaced it when the next graph was captured."""
    bench = of_length(Tabled())
    for length in (30, 12, 8):
        slots = bench.arrive_rows([np.ones(length, np.int64)] * 3)
        assert bench.ran(slots).ran.outputs[0].tolist() == [sum(range(length))] * 3
        bench.pool.give_back(slots)


@pytest.mark.parametrize("whole", [False, True])
def test_what_compiled_code_reads_is_found_and_it_stays_compiled(whole: bool) -> None:
    """It was captured as written, or with `fullgraph` raised for ever."""
    ran: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        return lambda *given: (ran.append(graph), graph(*given))[1]

    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    compiled = torch.compile(model, backend=backend, fullgraph=whole)
    with torch.inference_mode():
        compiled(x)
        found = {one.data_ptr() for one in reads_of(lambda: compiled(x))}
        compiled(x)
    assert found == {one.data_ptr() for one in (x, model.weight, model.bias)}
    assert len(ran) == 2


def test_trials_return_outputs_of_rows_that_are_padded_no_further_than_the_longest() -> None:
    """Or the row check would compare rows that graphs have padded to one length."""

    class Width(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.full((len(ids),), ids.shape[1])

    bench = of_length(Width())
    for length in (12, 20):
        bench.pool.write(range(3), 0, np.ones((3, length), np.int64))
        bench.pool.set_lengths(range(3), {"n": length})
        assert bench.device.trial(bench.executor, range(3), 3).outputs[0].tolist() == [length] * 3


# what an unloaded model held


def test_an_unloaded_model_goes_when_the_copies_of_its_rows_are_over(no_collections: None):
    bench = Bench(4, 2, options=GRAPHS, tried=(4,))
    bench.ran(bench.arrive(3.0))
    bench.pool.give_back(bench.arrive(4.0))  # the caller has left
    executor = weakref.ref(bench.executor)
    captured = bench.executor.memories[0].graphs.values()
    graphs = [weakref.ref(one.replay) for stages in captured for one in stages]
    freed: list[bool] = []  # for each graph, whether a capture had to wait meanwhile
    for graph in graphs:
        weakref.finalize(graph(), lambda: freed.append(WorkerMemory.lock.locked()))
    del captured
    assert graphs
    bench.device.free(bench.executor)
    bench.device.launch()
    del bench.executor, bench.pool
    bench.reports.clear()
    assert executor() is not None
    for stream in bench.runtime.streams:
        if stream is not bench.arrivals:
            bench.run(stream)
    bench.device.leaving.next()
    assert not bench.arrivals.work, "freed while rows are copied into its memory"
    bench.settle()
    assert {graph() for graph in graphs} == {None}
    assert freed == [True] * len(graphs)
    assert executor() is None


def test_streams_of_an_unloaded_model_are_used_again_when_its_graphs_have_gone() -> None:
    bench = Bench(4, 2, options=GRAPHS, tried=(2,))
    streams = [memory.stream for memory in bench.executor.memories]
    assert all(stream.graphs for stream in streams)
    give_back = bench.device._streams.give_back
    given: list[int] = []

    def noted(priority: int, stream: Any) -> None:
        given.append(len(stream.graphs))
        give_back(priority, stream)

    bench.device._streams.give_back = noted  # type: ignore[method-assign]
    bench.device.free(bench.executor)
    bench.settle()
    assert given == [0, 0]
    assert {*streams} <= {*iter(lambda: bench.device._streams.take_unused(0), None)}
