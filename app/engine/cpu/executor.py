"""Runs units on a CPU, of models that run whole, in stages, or in steps of a cell or a decoder (Late Batching).

The loop waits, about 0.05 ms, for an idle worker to begin before it answers calls: answering holds the interpreter
lock, and units would begin up to 0.9 ms late (two cores, 90th percentile, batches of 14 calls).

Rows of a failed unit run again: what is kept of them changes only with steps that ran well, and models, which may write
into their arguments, get copies.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from app.contract import Array, Model
from app.engine.device import Completion, Report, failed, fault_of
from app.engine.executor import NO_BOUND, WHOLE, Executor, Job, Ran, Stop, gather_rows
from app.engine.pool import Pool, Slots, indices, padded
from app.models.base import copied, returned, with_server_inputs
from app.models.process_state import ProcessState, named
from app.models.stages.staged import passed_on
from app.scheduler.types import DeviceSpec, Fault

log = logging.getLogger("starling.engine")

_BEGIN_WAIT_S = 0.0002  # the switch interval: after it the loop would lose the lock anyway
_NO_LENGTHS: dict[str, Any] = {}


class Worker:
    """One thread. `report` is called on it and must not block.

    `jobs` holds at most the device's push depth, and one unit that is measured.
    """

    def __init__(self, index: int, threads: int, report: Report) -> None:
        self.index = index
        self.jobs: queue.SimpleQueue[tuple[Job, Stop] | None] = queue.SimpleQueue()
        self._threads = threads
        self._report = report
        self._idle = True  # written by the thread
        self._begun = threading.Lock()  # the thread releases it when it begins a unit
        # A daemon: a hung model must not keep a process alive that has been told to end.
        self.thread = threading.Thread(target=self._main, name=f"worker-{index}", daemon=True)
        self.thread.start()

    def wait_until_begun(self) -> None:
        """Return when the thread has begun the unit that it was handed while idle, or after 0.2 ms."""
        self._begun.acquire(blocking=False)  # it may be free since an earlier unit
        if self._idle and not self.jobs.empty():
            self._begun.acquire(timeout=_BEGIN_WAIT_S)

    def close(self, timeout_s: float) -> bool:
        """End the thread after the units in its queue. False if it did not end in time, because the model hangs."""
        self.jobs.put(None)
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _main(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            state = ProcessState()
            while (given := self.jobs.get()) is not None:
                self._idle = False
                if self._begun.locked():
                    self._begun.release()
                job, stop = given
                assert isinstance(job.executor, CpuExecutor)  # the device placed it
                runs, continues = job.executor.run(job, stop), True
                while continues:
                    completion = job.executor.report_next(job, runs)
                    completion.worker = self.index
                    continues = completion.outcome.continues
                    self._idle = not continues
                    if completion.cause is not None:
                        _put_back(state, job)
                    self._report(completion)
                if completion.outcome.error is Fault.DEVICE:
                    return
                # Drop the references now, not when the next unit comes: outputs belong to the callers.
                del given, job, stop, runs, completion


def _put_back(state: ProcessState, job: Job) -> None:
    """After a batch has failed: any model's batch may have changed a setting that made it fail. It runs again then."""
    if changed := state.put_back():
        log.warning(
            "a batch of model %s failed while a model's code had set %s, which all models share: put back",
            job.executor.model.info.name, named(changed),
        )  # fmt: skip


class WorkerThreads:
    """The threads of a device, `threads` compute threads each. Methods as those of engine.device.Device."""

    spec: DeviceSpec
    threads: int
    _workers: Sequence[Worker] = ()

    def start(self, report: Report) -> None:
        # It is process-wide, so before the first operation. With more threads than asked for, small operators are
        # slower.
        torch.set_num_threads(self.threads)
        self._workers = [Worker(index, self.threads, report) for index in range(len(self.spec.workers))]

    def push(self, worker: int, job: Job, stop: Stop) -> None:
        self._workers[worker].jobs.put((job, stop))

    def wait_until_begun(self) -> None:
        for worker in self._workers:
            worker.wait_until_begun()

    def dead(self) -> str | None:
        return next((f"worker {w.index} has died" for w in self._workers if not w.thread.is_alive()), None)

    def close(self, timeout_s: float) -> bool:
        ended = [worker.close(timeout_s) for worker in self._workers]  # each, also after one that hangs
        return all(ended)


def _named_frame(name: str) -> Callable[..., Ran]:
    """A function that calls its first argument with the others, from a source file of this name.

    If native code crashes, only the stack traces of `faulthandler` are left. There the file name tells whose batch ran.
    """
    found: dict[str, Callable[..., Ran]] = {}
    exec(compile("def run(call, *given):\n    return call(*given)\n", f"<{name}>", "exec"), found)
    return found.pop("run")  # not kept in its own globals: it goes with its executor


class CpuExecutor(Executor):
    """For a model that runs whole or in stages. Two threads may run it at once only if the model allows it.

    Rows of different units may be at different stages at the same time. Subclasses have rows make other steps
    `together`, new rows joining before.
    """

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        self._stages = range(len(model.stages))
        self._in_named_frame = _named_frame(f"model {model.info.name!r} version {model.info.version}")
        self._plain_input = len(pool.specs) == len(model.info.inputs) and not model.takes_parameters
        specs = model.info.returned
        self._plain_output = len(specs) == 1 and specs[0].fixed and specs[0].datatype not in ("BF16", "BYTES")

    def run(self, job: Job, stop: Stop) -> Iterator[Ran]:
        """Run a unit: yields when rows end, and returns when the unit does. Raises whatever the model raises.

        A step that fails after others ran well ends the unit. So what is raised, was raised by the first step since the
        last Ran.
        """
        if job.stage == WHOLE or self.activations is None:
            return map(self.whole, (job.slots,), (job.size,))  # runs it when it is asked for
        return self._in_steps(job, stop)

    def _in_steps(self, job: Job, stop: Stop) -> Iterator[Ran]:
        """Yields each time that rows end, then continues with the others, if `stop` allows it."""
        slots, most, continues = job.slots, job.steps, True
        while continues:
            ran = self.together(slots, most, job, stop)
            ran.continues = continues = not (stop.at_next_row or stop.now) and 0 < len(ran.ended) < len(slots)
            if continues:
                slots = [slot for position, slot in enumerate(slots) if position not in ran.ended]
                most, stop.made = NO_BOUND, 0
            yield ran

    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Ran:
        """Rows of a job make up to `most` steps, until a row ends or `stop` says so, which gets each step that was
        made. Raises what the first step raises; if a later one fails, those before count. Here they pass through
        stages.
        """
        return self._pass_through(slots, job.size, self._stages[job.stage : job.stage + most], stop)

    def report_next(self, job: Job, runs: Iterator[Ran]) -> Completion:
        """Run a unit until rows of it have ended, and report them. `runs`: see `run`.

        Whatever the model raises becomes an Outcome, and the unit has ended.
        """
        state = ProcessState.unless_one_builds(self.unruly) if self.unruly else None
        try:
            ran = self._in_named_frame(next, runs)
        except BaseException as exc:
            cause = exc.__cause__ if isinstance(exc.__cause__, StopIteration) else exc  # else a generator has hidden it
            return failed(job.unit_id, fault_of(cause), cause)
        finally:
            if state is not None:
                state.put_back()
        return Completion(ran.outcome(job.unit_id), ran)

    def whole(self, slots: Slots, size: int) -> Ran:
        """Run the rows in `slots` as a batch of `size` >= rows through the whole model, and keep nothing of them."""
        if self._stages:
            return self._pass_through(slots, size, self._stages)
        begin = time.perf_counter_ns()
        rows = slots if size == len(slots) else padded(slots, size)
        inputs, keywords, _, longest = self.batch(rows)
        gathered = time.perf_counter_ns()
        result = self.model.call(*inputs, **keywords)
        inferred = time.perf_counter_ns()
        outputs = self.scatter(result, len(slots), size, longest)
        return Ran(outputs, gathered - begin, inferred - gathered, time.perf_counter_ns() - inferred)

    def _pass_through(self, slots: Slots, size: int, stages: range, stop: Stop | None = None) -> Ran:
        """Rows, which may come from several batches of the stage before, pass unchanged through these stages. Only the
        result of the last is kept. Without a `stop` none may fail.

        What is kept is a copy, too, because a stage may return the same memory each time.
        """
        begin, whole, stop = time.perf_counter_ns(), stop is None, stop or Stop()
        rows, parts, last = padded(slots, size), self.model.stages, stages.start
        _, longest = self.lengths_of(rows)
        passed: Sequence[torch.Tensor] = ()
        if stages.start:
            passed = self.passed.gather(self.passed.places_of(rows, stages.start - 1), stages.start, longest)
        inputs: list[Any] = []
        keywords: dict[str, Any] = {}
        given: list[Any] = []  # what stages take again
        if not stages.start or any(parts.again[stage] for stage in stages):
            inputs, keywords, *_ = self.batch(rows)
            given = parts.given(inputs)
        gathered, times = time.perf_counter_ns(), list[int]()
        result: Any = None
        for stage in stages:
            if times and stop.now:
                break
            called = time.perf_counter_ns()
            try:
                arguments = parts.arguments(stage, passed if stage else inputs, given)
                copies = [argument.clone() for argument in arguments]
                result = self.calls[stage](*copies, **({} if stage else keywords))
            except Exception:  # after the first: the next unit of these rows begins here, and will raise it again
                if not times or whole:
                    raise
                break
            times.append(time.perf_counter_ns() - called)
            last = stage
            stop.made = len(times)
            if stage < self.last:
                passed = passed_on(result, stage, len(rows))
                self.passed.learn(stage, passed, longest)
        inferred = time.perf_counter_ns()
        outputs: list[Array] = []
        if last == self.last:
            outputs = self.scatter(result, len(slots), len(rows), longest)
        else:
            self.passed.commit(slots, last, tuple(tensor.clone() for tensor in passed))
        return Ran(outputs, *since(begin, gathered, inferred), stages_ns=tuple(times), steps=len(times))

    def trial(self, slots: Slots, size: int) -> Ran:
        """Run rows that are made up, or read from a file, as a batch. Subclasses also learn from it."""
        return self.whole(slots, size)

    def batch(self, rows: Slots) -> tuple[list[Any], dict[str, Any], Mapping[str, Array], Mapping[str, int]]:
        """The model's arguments and keywords for the slots of a batch, with padding, and what `lengths_of` returns."""
        lengths, longest = self.lengths_of(rows) if self.pool.lengths else (_NO_LENGTHS, _NO_LENGTHS)
        count, first = len(rows), rows[0]
        beside = range(first, first + count)  # as nearly all rows are
        adjacent = rows[-1] == beside[-1] and list(rows) == list(beside)
        index: torch.Tensor | None = None
        of_rows = shorter = _NO_LENGTHS
        if lengths:
            of_rows = {axis: torch.from_numpy(values) for axis, values in lengths.items()}
            shorter = {axis: own for axis, own in of_rows.items() if lengths[axis].min() != longest[axis]}
        inputs: list[Any] = []
        for position, spec in enumerate(self.pool.specs):
            slab = self.pool.slabs[position]
            if slab is None:
                inputs.append(self.stacked(position, rows))
                continue
            if adjacent and (spec.fixed or count == 1):
                own = () if spec.fixed else tuple(slice(longest[axis] if axis else None) for axis in spec.axes)
                # in one piece, by numpy: see `copied`
                batch = torch.from_numpy(np.array(self.pool.views[position][(slice(first, first + count), *own)]))
                inputs.append(batch if batch.dtype is slab.dtype else batch.view(slab.dtype))  # as BF16: numpy lacks it
                continue
            if index is None:
                index = indices(rows)
            inputs.append(gather_rows(slab, spec, index, shorter, longest))
        if self._plain_input:
            return inputs, {}, lengths, longest
        inputs = with_server_inputs(self.model.info.inputs, inputs, of_rows, longest)
        return inputs, self.keywords(rows), lengths, longest

    def scatter(self, result: Any, rows: int, size: int, longest: Mapping[str, int]) -> list[Array]:
        """Copy the model's outputs into memory of their own, without the padding rows.

        It always copies: an identity model returns the slots themselves, and a model that reuses its output buffer
        would overwrite it with the next batch while the answers of this one are still being encoded.
        """
        specs = self.model.info.returned
        if self._plain_output and isinstance(result, torch.Tensor) and result.shape == (size, *specs[0].shape):
            try:
                array = result.numpy()
            except (RuntimeError, TypeError):  # as of a sparse one: `copied` reads it, or says why not
                array = None
            if array is not None and array.dtype == specs[0].dtype:
                return [np.array(array[:rows], order="C")]
        values = returned(result, specs, size, longest)
        return [copied(value, spec, rows) for spec, value in zip(specs, values, strict=True)]


def since(begin: int, gathered: int, inferred: int) -> tuple[int, int, int]:
    """The three times of a Ran whose parts began, or ended, at these times; the last one ends now."""
    return gathered - begin, inferred - gathered, time.perf_counter_ns() - inferred
