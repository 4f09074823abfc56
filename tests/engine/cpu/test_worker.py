"""Workers: each unit is reported once, and best-effort units give way."""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from collections.abc import Iterator
from mmap import mmap
from types import SimpleNamespace

import pytest
import torch

from app.engine.cpu.device import CpuDevice
from app.engine.cpu.executor import CpuExecutor, Worker
from app.engine.device import Completion
from app.engine.executor import Job, Stop
from app.engine.pool import Pool
from app.scheduler.types import Fault

from ..rig import make_model, raising, rows_of

# Invariant: a worker reports each unit once, and survives all that a model raises but what ends a thread.


WAIT_S = 10.0  # for what happens at once; only a broken test waits so long


class Desk:
    """A worker, and what it reports."""

    def __init__(self) -> None:
        self.reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self.worker = Worker(3, 1, self.reports.put)
        self._units = 0

    def unit(self, call) -> tuple[Job, Stop]:
        """A unit of one row of a model that does `call`."""
        model = make_model(call)
        pool = Pool(model.info.inputs, 1)
        pool.write(range(1), 0, rows_of(10.0))
        self._units += 1
        return Job(self._units, CpuExecutor(model, pool), [0], 1), Stop()

    def run(self, call) -> Completion:
        self.worker.jobs.put(self.unit(call))
        return self.reports.get(timeout=WAIT_S)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    assert desk.worker.close(WAIT_S)


class Unusual(RuntimeError):
    """Not torch's own RuntimeError."""


@pytest.mark.parametrize(
    ("exc", "fault"),
    [
        (ValueError("no"), Fault.MODEL),
        (RuntimeError("CUDA is not meant here"), Fault.MODEL),
        (Unusual("DefaultCPUAllocator: not by torch"), Fault.MODEL),
        (AssertionError("no"), Fault.MODEL),
        (StopIteration("no"), Fault.MODEL),
        (SystemExit(1), Fault.MODEL),
        (KeyboardInterrupt("no"), Fault.MODEL),
        (asyncio.CancelledError("no"), Fault.MODEL),
        (type("PanicException", (BaseException,), {})("in Rust"), Fault.MODEL),
        (MemoryError("python's"), Fault.OOM),
        (torch.OutOfMemoryError("the device's"), Fault.OOM),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), Fault.OOM),
        (ValueError("x" * 10_000), Fault.MODEL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_what_a_model_raises(desk: Desk, exc: BaseException, fault: Fault):
    completion = desk.run(raising(exc))
    assert (completion.outcome.unit_id, completion.outcome.error, completion.worker) == (1, fault, 3)
    assert completion.ran is None
    assert completion.message[:600] in f"{type(exc).__name__}: {exc}"
    assert len(completion.message) < 1100  # a long one is cut
    assert desk.run(lambda x: x).outcome.error is None  # it goes on
    assert desk.reports.empty()


def test_torch_that_cannot_allocate_is_out_of_memory(desk: Desk):
    assert desk.run(lambda x: torch.empty(1 << 58)).outcome.error is Fault.OOM  # by what the installed torch says then
    assert desk.run(lambda x: mmap(-1, 1 << 58)).outcome.error is Fault.OOM  # a decoder's slabs


def test_a_crash_names_its_model():
    """The stack that Python leaves then has no other word of it where a model brings no code of its own."""
    seen: list[str] = []
    Desk().run(lambda x: seen.extend(frame.filename for frame in traceback.extract_stack()) or x)
    assert "<model 'm' version 1>" in seen


def test_wait_until_begun_hears_that_a_unit_has_been_turned_to_and_waits_for_nobody_else():
    """What would be a moment is long here, so that only what is never said is not heard."""
    desk, hold, heard = Desk(), threading.Event(), []
    worker = desk.worker
    lock, jobs = worker._begun, worker.jobs

    def acquire(blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking:
            return lock.acquire(blocking=False)
        jobs.put(desk.unit(lambda x: hold.wait(WAIT_S) and x))  # only now, so that it cannot have begun before
        heard.append(lock.acquire(timeout=WAIT_S))
        return heard[-1]

    worker._begun = SimpleNamespace(acquire=acquire, release=lock.release, locked=lock.locked)
    worker.wait_until_begun()  # it has nothing
    assert heard == []
    worker.jobs = SimpleNamespace(empty=lambda: False, get=jobs.get)
    worker.wait_until_begun()
    worker.wait_until_begun()  # while the model is still running
    assert heard == [True]
    worker._begun, worker.jobs = lock, jobs
    hold.set()
    assert desk.reports.get(timeout=WAIT_S).outcome.unit_id == 1
    desk.run(raising(GeneratorExit(1)))
    assert worker.close(WAIT_S)
    worker.wait_until_begun()  # the thread has ended


# the device of them


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("capacities", [(32,), (4, 4), (1, 1, 2, 4, 8, 16)])
def test_threads_times_running_never_exceed_the_cores(capacities, threads: int, cores: int):
    spec = CpuDevice(capacities, threads, cores).spec
    assert 1 <= spec.max_running <= len(capacities)
    assert spec.max_running * threads <= cores or spec.max_running == 1
    if spec.max_running < len(capacities):
        assert (spec.max_running + 1) * threads > cores, "a worker more would have fitted"
    assert tuple(worker.capacity for worker in spec.workers) == capacities
    assert spec.push_depth == 1


def test_workers_have_their_threads():
    device = CpuDevice((4, 4), threads=2, cores=4)
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    seen: list[int] = []
    model = make_model(lambda x: seen.append(torch.get_num_threads()) or x)
    device.start(reports.put)
    for worker in range(2):
        executor = device.open(model, 1)
        executor.pool.write(executor.pool.take(1), 0, rows_of(10.0))
        device.push(worker, Job(worker, executor, [0], 1), Stop())
    assert {reports.get(timeout=WAIT_S).worker for _ in range(2)} == {0, 1}
    assert seen == [2, 2]
    assert torch.get_num_threads() == 2  # here too, where warm-up is started
    assert device.close(WAIT_S)
