"""A unit ends once, whatever it meets, and what it takes. Units of any rows in any order: conformance/."""

from __future__ import annotations

import gc
import weakref
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from runtimes import TICK_NS, FakeEvent
from torch.utils._python_dispatch import TorchDispatchMode

from app.engine.device import DeviceOptions
from app.engine.executor import WHOLE, Job, Stop
from app.engine.streams import device_pool
from app.scheduler.types import AT_ONCE, Fault

from ..conformance.models import counts, plain, staged, sums
from ..conformance.world import Trips
from ..rig import Linear, answers, raising, rows_of
from .bench import EAGER, GRAPHS, Bench

# A unit ends once, whatever it meets: its own error, another unit's, or the end of the device; and what it takes.


# times


def test_a_unit_takes_its_own_time_and_not_that_of_copies() -> None:
    """Each piece of work of a stream is a tick. Another stream works for ten before the row's copy begins."""
    bench = Bench()
    bench.push(bench.arrive(1.0))
    bench.device.launch()
    busy = bench.runtime.stream()
    for _ in range(10):
        bench.runtime.enqueue(busy, lambda: None)
    for stream in (busy, bench.arrivals, bench.device.workers[0].stream, bench.device.workers[0].out):
        bench.run(stream)
    bench.device.complete_next(0)
    (completion,) = bench.reports
    ran = completion.ran
    copied_in, waited = 2, 2  # copy, in-event; wait for it, index
    computed, out = 1, 3  # computed; wait for it, copy, out-event
    ticks = (10 + copied_in + waited, computed, out)
    assert (ran.input_ns, ran.infer_ns, ran.output_ns) == tuple(tick * TICK_NS for tick in ticks)
    assert completion.outcome.compute_ns == computed * TICK_NS


@pytest.mark.parametrize("options", [EAGER, GRAPHS], ids=["eager", "graphs"])
def test_a_batch_does_not_wait_until_the_results_before_it_have_left(options: DeviceOptions) -> None:
    bench = Bench(options=options, tried=(2,))
    assert bool(bench.shapes) == options.graphs
    for unit, values in enumerate([(3.0, 4.0), (5.0, 6.0)]):
        bench.push(bench.arrive(*values), unit=unit)
    bench.device.launch()
    worker = bench.device.workers[0]
    second = worker.completer.messages.latest
    bench.run(bench.arrivals)
    bench.run(worker.stream)
    assert second.computed.mark.fired, "the second unit waits for the results of the first"
    assert worker.out.work, "the results of the first have not left"
    bench.settle()
    assert np.array_equal(bench.outputs(0), answers(rows_of(3.0, 4.0)))
    assert np.array_equal(bench.outputs(1), answers(rows_of(5.0, 6.0)))


# copies


def unannounced(bench: Bench, *values: float) -> list[int]:
    """Slots with rows of requests that are best effort."""
    slots = list(bench.pool.take(len(values)))
    bench.pool.write(slots, 0, rows_of(*values))
    return slots


def test_best_effort_rows_are_copied_at_their_launch_and_not_on_the_in_stream() -> None:
    """Rows of a hundred uploads would be copied before those of a real-time call."""
    bench = Bench()
    first = unannounced(bench, 1.0, 2.0)
    bench.push(first, unit=0)
    bench.device.launch()
    assert not bench.arrivals.work
    bench.push([*unannounced(bench, 3.0), *bench.arrive(4.0)], unit=1)  # a unit may have rows of both kinds
    bench.settle()
    assert np.array_equal(bench.outputs(0), answers(rows_of(1.0, 2.0)))
    assert np.array_equal(bench.outputs(1), answers(rows_of(3.0, 4.0)))
    bench.pool.write(first, 0, rows_of(5.0, 6.0))
    assert np.array_equal(bench.ran(first).ran.outputs[0], answers(rows_of(1.0, 2.0))), "copied a second time"
    bench.pool.give_back(first)
    later = unannounced(bench, *[7.0] * bench.pool.free)
    assert np.array_equal(bench.ran(later[:4]).ran.outputs[0], answers(rows_of(*[7.0] * 4)))


class Copies(TorchDispatchMode):
    """`values`: how many each copy has written."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.values.append(args[0].numel())
        return func(*args, **(kwargs or {}))


def test_a_large_copy_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get between them."""
    monkeypatch.setattr(device_pool, "_PIECE", 12)
    bench = Bench()
    bench.pool.write(range(4), 0, rows_of(1.0, 2.0, 3.0, 4.0))
    with Copies() as copies:
        bench.pool.move(range(4))
    assert copies.values == [3, 3, 2]
    assert np.array_equal(bench.pool.rows[0][:4].numpy(), rows_of(1.0, 2.0, 3.0, 4.0))


# memory


@pytest.mark.parametrize(
    ("trips", "stage", "steps"),
    [(plain(), WHOLE, 1), (staged(), 0, 4), (sums(), 0, 5)],
    ids=["whole", "stages", "cell"],
)
def test_no_pinned_memory_is_allocated_while_serving(trips: Trips, stage: int, steps: int) -> None:
    """The launcher would wait for the driver. As many steps are under way as may be."""
    bench = Bench(options=DeviceOptions(push_ahead_ns=AT_ONCE), model=trips.model)
    bench.try_batch(4, **dict.fromkeys(bench.pool.lengths, 6))
    allocated = bench.runtime.pinnings
    for unit in range(2):
        rows = [trips.rows(number) for number in range(100 + 4 * unit, 104 + 4 * unit)]
        bench.push(bench.arrive_rows(rows if bench.pool.lengths else np.array(rows)), 0, unit, stage, steps)
    bench.device.launch()
    bench.settle()
    assert {report.outcome.error for report in bench.reports} == {None}
    assert bench.runtime.pinnings == allocated


def test_a_copy_counts_as_over_when_a_unit_that_waited_for_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not while its completer waits: the row's slot might be written again."""
    bench = Bench()
    done: list[int] = []
    synchronize = bench.runtime.synchronize

    def noted(event: FakeEvent) -> None:
        synchronize(event)
        done.append(bench.device.in_stream.done)

    monkeypatch.setattr(bench.runtime, "synchronize", noted)
    bench.ran(bench.arrive(1.0))
    assert (done, bench.device.in_stream.done) == ([0], 1)


def test_rows_that_end_by_a_flag_leave_the_index_of_their_worker_alone() -> None:
    """They are finished on a stream of their own, while the next unit reads it."""
    bench = Bench(model=counts().model, tried=(1,))
    bench.push(bench.arrive_rows(np.array([0])), stage=0)
    bench.device.launch()
    for stream in (bench.arrivals, bench.device.workers[0].stream, bench.device.workers[0].out):
        bench.run(stream)
    index = bench.executor.memories[0].index
    before = index.clone()
    bench.device.complete_next(0)
    assert bench.reports[0].outcome.ended == (0,)
    assert torch.equal(index, before)


def test_a_unit_uses_the_index_and_the_graphs_of_its_worker() -> None:
    """Another worker may write that index, or replay that graph, at the same time."""
    bench = Bench(2, 2, options=GRAPHS, tried=(1,))
    bench.push(bench.arrive(1.0), worker=1)
    bench.device.launch()
    assert bench.device.workers[1].completer.messages.latest.memory is bench.executor.memories[1]


def test_outputs_are_held_until_their_out_event():
    """The worker's stream may be given the memory of a tensor that nobody holds; the out-stream still reads it."""
    bench = Bench()
    bench.push(bench.arrive(1.0, 2.0))
    bench.device.launch()
    step = bench.device.workers[0].completer.messages.latest
    bench.run(bench.arrivals)
    bench.run(bench.device.workers[0].stream)
    assert [output.shape for output in step.outputs] == [(2, 2)]
    bench.run(bench.device.workers[0].out)
    assert step.outputs
    bench.device.complete_next(0)
    assert not step.outputs


def test_what_a_unit_reads_is_kept_until_it_has_ended() -> None:
    bench = Bench(model=staged().model)
    slots = bench.arrive(1.0)
    bench.ran(slots, stage=0)
    read = weakref.ref(bench.executor.passed.places_of(slots, 0)[0][0][0])
    bench.push(slots, stage=1)
    bench.device.launch()
    while bench.runtime.step():  # it has run, and nobody has heard of it
        pass
    bench.executor.passed.release(slots)
    gc.collect()
    assert read() is not None
    bench.settle()
    gc.collect()
    assert read() is None


def test_a_batch_that_fails_keeps_nothing_in_memory(no_collections: None) -> None:
    """It would be tried again beside what the first attempt has left, until the collector comes."""
    seen: list[weakref.ref[torch.Tensor]] = []

    def heavy(x: torch.Tensor) -> None:
        held = x * 2
        seen.append(weakref.ref(held))
        raise torch.OutOfMemoryError("too heavy")

    bench = Bench(model=Linear(heavy))
    assert bench.ran(bench.arrive(1.0)).outcome.error is Fault.OOM
    with pytest.raises(torch.OutOfMemoryError):
        bench.try_batch(1)
    assert [one() for one in seen] == [None, None]


# errors


@pytest.mark.parametrize("code", [1, 2])
def test_an_error_of_the_accelerator_that_does_not_last_is_the_units(code: int):
    def launched(x: torch.Tensor) -> None:
        if x[0, 0] == 66.0:
            error = torch.AcceleratorError("invalid argument")
            error.error_code = code
            raise error

    bench = Bench(model=Linear(launched))
    bench.push(bench.arrive(66.0), unit=0)
    bench.push(bench.arrive(5.0), unit=1)
    bench.settle()
    assert [report.outcome.error for report in bench.reports] == [Fault.OOM if code == 2 else Fault.MODEL, None]
    assert bench.device.dead() is None


def test_what_is_pushed_behind_a_model_that_ends_the_thread_is_reported_as_lost():
    bench = Bench(model=Linear(raising(GeneratorExit("enough"))))
    for _ in range(2):
        assert bench.ran(bench.arrive(1.0)).outcome.error is Fault.DEVICE
    assert bench.device.dead() == "GeneratorExit: enough"


def test_a_unit_without_pinned_memory_runs_out_of_memory_and_the_device_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime, "pinned", raising(MemoryError("no pinned memory")))
        assert bench.ran(bench.arrive(1.0)).outcome.error is Fault.OOM
    assert bench.ran(bench.arrive(2.0)).outcome.error is None
    assert bench.device.dead() is None


def test_nothing_runs_behind_a_step_that_was_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write its state where the step that is made again reads."""
    bench = Bench(model=sums().model, options=DeviceOptions(push_ahead_ns=AT_ONCE), tried=(1,))
    slots, memory = bench.arrive_rows([np.ones(6, np.float32)]), bench.executor.memories[0]
    takes = chain([memory.take, raising(MemoryError("no pinned memory"))], repeat(memory.take))
    monkeypatch.setattr(memory, "take", lambda: next(takes)())
    assert bench.ran(slots, stage=0, steps=6).outcome.steps == 1
    assert bench.ran(slots, stage=0, steps=5).ran.outputs[1] == [6]


def test_a_unit_that_is_pushed_when_the_device_has_been_closed_is_reported() -> None:
    bench = Bench()
    slots = bench.arrive(1.0)
    bench.device.close(0)
    bench.push(slots)
    assert [(report.outcome.error, report.worker) for report in bench.reports] == [(Fault.DEVICE, 0)]


@pytest.mark.parametrize(
    ("itself", "stage", "steps", "fault"),
    [(False, 0, [1, 1], None), (True, 0, [1], None), (False, WHOLE, [0], Fault.MODEL)],
    ids=["one step more is on the stream", "none is", "whole"],
)
def test_a_unit_of_several_steps_ends_when_the_device_is_closed(itself, stage, steps, fault) -> None:
    """A row ends with its first step; the others of the unit are not reported again, nor for ever under way."""
    bench = Bench(model=(counts() if itself else sums()).model, tried=(1,))
    rows = np.array([0, 6]) if itself else [np.ones(length, np.float32) for length in (1, 6)]
    job = Job(0, bench.executor, bench.arrive_rows(rows), 2, stage, 5)
    bench.device.push(0, job, Stop(at_next_row=False))
    bench.device.launch()
    bench.device.close(0)
    bench.settle()
    outcomes = [report.outcome for report in bench.reports]
    assert [outcome.error for outcome in outcomes] == [fault] * len(steps)
    assert [report.ran.steps if report.ran else 0 for report in bench.reports] == steps
    assert not outcomes[-1].continues
    assert bench.device.dead() is None


# cells


@pytest.mark.parametrize(
    ("itself", "push_ahead_ns", "under_way"),
    [(False, 1, [2, 2]), (False, 0, [1, 1]), (False, AT_ONCE, [2, 4]), (True, None, [1, 1])],
    ids=["the next one", "none ahead", "as far as may be", "nobody knows which rows end"],
)
def test_steps_are_launched_ahead_of_the_one_that_runs(itself, push_ahead_ns, under_way) -> None:
    """At the launch, when nothing is known of how long a step takes, and when the first one has ended."""
    options = DeviceOptions(push_ahead_ns=push_ahead_ns)
    bench = Bench(model=(counts() if itself else sums()).model, options=options, tried=(1,))
    bench.push(bench.arrive_rows(np.array([6]) if itself else [np.ones(6, np.float32)]), stage=0, steps=5)
    launched = []
    for _ in range(2):
        bench.device.launch()
        launched.append(bench.device.workers[0].completer.messages.qsize())
        bench.device.complete_next(0)
    assert launched == under_way
    bench.settle()
    assert [report.outcome.steps for report in bench.reports] == [5]


def test_a_unit_that_is_to_end_at_the_next_row_ends_with_one_that_is_on_the_stream() -> None:
    """Whoever waits to join need not wait for the next row, which may be hundreds of steps later."""
    bench = Bench(model=sums().model, options=DeviceOptions(push_ahead_ns=0), tried=(1,))
    rows, stop = [np.ones(length, np.float32) for length in (1, 6)], Stop(at_next_row=False)
    bench.device.push(0, Job(0, bench.executor, bench.arrive_rows(rows), 2, 0, 6), stop)
    bench.device.launch()
    stop.at_next_row = True
    bench.settle()
    assert [(report.outcome.steps, report.outcome.continues) for report in bench.reports] == [(1, False)]
