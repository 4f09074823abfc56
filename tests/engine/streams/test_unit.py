"""A unit ends once, whatever it meets: its own error, another unit's, or the end of the device."""

from __future__ import annotations

import pytest
import torch
from runtimes import TICK_NS
from torch import nn

from app.scheduler.types import Fault

from .bench import Bench, raising


def test_a_unit_takes_its_own_time_and_not_that_of_copies() -> None:
    """Each piece of work of a stream is a tick. Another stream works for ten before the row's copy begins."""
    bench = Bench()
    bench.push(bench.arrive(1.0))
    bench.launch()
    busy = bench.runtime.stream()
    for _ in range(10):
        bench.runtime.enqueue(busy, lambda: None)
    for stream in (busy, bench.arrivals, bench.device.workers[0].stream, bench.device.workers[0].out):
        bench.run(stream)
    bench.device.complete_next(0)
    (completion,) = bench.reports
    ran = completion.ran
    assert ran is not None
    copied, waited = 2, 2  # copy, in-event; wait for it, began
    computed, out = 2, 3  # model, computed; wait for it, copy, out-event
    ticks = (10 + copied + waited, computed, out)
    assert (ran.input_ns, ran.infer_ns, ran.output_ns) == tuple(tick * TICK_NS for tick in ticks)
    assert completion.outcome.compute_ns == computed * TICK_NS


def test_a_unit_behind_another_waits_from_when_that_one_has_computed() -> None:
    bench = Bench()
    first, second = bench.arrive(1.0), bench.arrive(2.0)
    bench.push(first, unit=0)
    bench.push(second, unit=1)
    bench.launch()
    worker = bench.device.workers[0]
    bench.run(bench.arrivals)
    for _ in range(2):
        bench.run(worker.stream, at_most=4)  # wait for the copy, began, model, computed
        bench.run(worker.out)
        bench.device.complete_next(0)
    first, second = (completion.ran.input_ns // TICK_NS for completion in bench.reports)
    assert first == 2 + 2  # the copy and its event, since its launch
    assert second == 3 + 2  # the first's results, since it had computed


def test_outputs_are_held_until_their_out_event():
    """The worker's stream may be given the memory of a tensor that nobody holds; the out-stream still reads it."""
    bench = Bench()
    bench.push(bench.arrive(1.0, 2.0))
    bench.launch()
    unit = bench.device.workers[0].completer.messages.latest
    assert unit is not None
    bench.run(bench.arrivals)
    bench.run(bench.device.workers[0].stream)
    assert [output.shape for output in unit.outputs] == [(2, 2)]
    bench.run(bench.device.workers[0].out)
    assert unit.outputs
    bench.device.complete_next(0)
    assert not unit.outputs


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
            raise GeneratorExit("enough")

    bench = Bench(model=Leaves())
    bench.push(bench.arrive(1.0), unit=0)
    while bench.device.turn():
        pass
    bench.push(bench.arrive(5.0), unit=1)
    while bench.device.turn():
        pass
    assert [report.outcome.error for report in bench.reports] == [Fault.DEVICE] * 2
    assert bench.device.dead() == "GeneratorExit: enough"


def test_a_unit_without_memory_for_its_results_runs_out_of_memory_and_the_device_lives(monkeypatch) -> None:
    bench = Bench()
    bench.executor.memories[0].blocks._free.clear()
    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime, "pinned", raising(MemoryError("no pinned memory")))
        bench.push(bench.arrive(1.0))
        bench.launch()
    bench.push(bench.arrive(2.0), unit=1)
    while bench.device.turn():
        pass
    assert [report.outcome.error for report in bench.reports] == [Fault.OOM, None]
    assert bench.device.dead() is None


def test_push_after_close_is_reported():
    bench = Bench()
    slots = bench.arrive(1.0)
    bench.device.close(0)
    bench.push(slots)
    assert [(report.outcome.error, report.worker) for report in bench.reports] == [(Fault.DEVICE, 0)]
