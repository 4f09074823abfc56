"""A device of streams: copies, batches and results that overlap, kept in order by events (Ebird, sections V and VI).

Threads
    The event loop announces rows (`arrive`) and units (`push`) and does nothing else: both put a message into one
    queue. One launcher takes the messages in order and enqueues all work on all streams; several would fight for the
    interpreter lock. Each worker has a completer, which blocks on the out-event of its oldest unit and then reports it.
    One completer for all workers would make a result wait for another stream's; a host function on the stream would
    need the lock on a thread of the driver, and hold up the stream until it has it. Blocking on an event needs neither
    the lock nor a core, and nothing polls.
Streams
    One in-stream for all rows that arrive; per worker a stream to compute on and an out-stream for its results.
Bounds
    The queue holds at most a message for each row that was admitted, and `push_depth` units for each worker.
Failure
    A model's error is its unit's. Any error of the runtime ends the device: what is in flight and all that comes later
    is reported as lost, each unit once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from app.contract import Array, Model
from app.engine.devices.base import (
    NO_BOUND,
    Completion,
    Device,
    DeviceOptions,
    Executor,
    Freed,
    Job,
    Launched,
    Ran,
    Report,
    Transfer,
    failed,
    fault_of,
)
from app.engine.devices.pool import Pool, Slots
from app.engine.devices.streams.captures import Stock
from app.engine.devices.streams.executor import StagedExecutor
from app.engine.devices.streams.lanes import Flight, Lane
from app.engine.devices.streams.pool import Copies, StagedPool
from app.engine.devices.streams.runtime import Runtime, perform
from app.engine.devices.streams.transfers import TransferBench
from app.engine.devices.streams.warmup import try_on_each
from app.errors import ConfigError
from app.models.placement import movable, place, warn_of_indices
from app.scheduler.types import DeviceSpec, Fault, Outcome, WorkerSpec

log = logging.getLogger("starling.engine")

NO_GRAPHS = ", no graphs"  # in the name of a device that captures none: its batches take other times

_PUSH_DEPTH = 2  # a worker finds its next unit on its stream when one ends; more would only delay who comes later
_PUSH_AHEAD_NS = 300_000  # about what a launch and a turn of the event loop cost


class StreamDevice:
    """Implements devices.base.Device over a Runtime. See the module's text for who does what.

    `host` runs models that cannot be moved to this device; it has as many workers. Without one they are refused.
    """

    staged = True
    threads = 1

    def __init__(
        self,
        runtime: Runtime,
        workers: tuple[WorkerSpec, ...],
        options: DeviceOptions | None = None,
        host: Device | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        options = options or DeviceOptions()
        self.name = runtime.name if options.graphs else runtime.name + NO_GRAPHS
        alive, depth = options.max_alive or NO_BOUND, options.push_depth or _PUSH_DEPTH
        ahead = _PUSH_AHEAD_NS if options.push_ahead_ns is None else options.push_ahead_ns
        self.spec = DeviceSpec(workers, len(workers), alive, depth, ahead)
        self.runtime = runtime
        self._placement = replace(options.placement, device=runtime.device)
        self._graphs = options.graphs
        self._clock = clock
        self.copies = Copies()
        self._messages: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._watched: queue.SimpleQueue[tuple[Any, int, StagedPool, Slots] | None] = queue.SimpleQueue()
        self._in: Any = None  # the in-stream
        self.lanes: list[Lane] = []
        self._host = host
        self._host_started = False
        self._threads: list[threading.Thread] = []
        self._stock = Stock(runtime.stream)
        self.lost: str | None = None  # why, once the device has failed
        self._closed = False
        self._report: Report = _unheard
        self._launched: Launched | None = None
        self._freed: Freed = _give_back

    @property
    def uuid(self) -> str:
        """The hardware's own name for itself, as NVML knows it."""
        return self.runtime.uuid

    # what the engine asks

    def start(self, report: Report, launched: Launched | None = None, freed: Freed | None = None) -> None:
        self._report, self._launched = report, launched
        self._freed = freed or _give_back
        self._begin()

    def open(self, model: Model, slots: int) -> Executor:
        """Move the model's weights and allocate its memory. Blocks: not for the loop of a server that serves.

        A model that cannot be moved runs on the CPU, on a thread of its worker. Raises ConfigError.
        """
        self._begin()
        runtime = self.runtime
        runtime.attach()
        if not movable(model):
            log.warning("model %s: no nn.Module with tensors alone: it runs on the CPU", model.info.name)
            return self._open_on_host(model, slots)
        warn_of_indices(model)
        placed: list[Model] = []
        load = self._stock.take(0)
        try:
            perform(runtime, load, lambda: placed.append(place(model, self._placement)))
            pool = StagedPool(model.info.client_inputs, slots, self.copies, (runtime.pinned, runtime.empty), self._keep)
            # A graph is captured before the first row has come: what lies there must be input that no model chokes on,
            # and an id out of range would be an assertion on the device, which loses it. As bytes: not all types fill.
            perform(runtime, load, lambda: [rows.view(torch.uint8).zero_() for rows in pool.rows if rows is not None])
            executor = StagedExecutor(placed[0], pool, self._graphs)
            for lane in self.lanes:
                seat = executor.seat(runtime, lane.spec.capacity, self.spec.push_depth)
                perform(runtime, load, lambda seat=seat: seat.index.zero_())  # type: ignore[misc]
            with suppress(BaseException):  # warming up says what is wrong with a model
                perform(runtime, load, executor.first_use)
        except torch.OutOfMemoryError as exc:
            raise ConfigError(f"model {model.info.name!r}: does not fit into the device's memory: {exc}") from exc
        finally:
            self._stock.give_back(0, load)
        if executor.graphs:
            self._find_streams(executor)
        return executor

    def _open_on_host(self, model: Model, slots: int) -> Executor:
        if self._host is None:
            raise ConfigError(
                f"model {model.info.name!r}: cannot be moved to {self.name}, and there is no other device"
            )
        if not self._host_started:  # most servers never need its threads
            self._host_started = True
            self._host.start(self._host_report)
        return self._host.open(model, slots)

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        """On every worker that takes it, twice each: the first run has costs of its own. Captures graphs at need."""
        if not isinstance(executor, StagedExecutor):
            assert self._host is not None  # it placed this model
            return self._host.trial(executor, slots, size)
        for slot in slots:
            executor.pool.numbers[slot] = 0  # written anew, so to be copied anew
        before = executor.versions()
        rans = try_on_each(self, executor, slots, size)
        if executor.versions() != before:
            executor.copies = True
        return min(rans, key=lambda ran: ran.busy_ns)

    def transfer(self, executor: Executor, rows: int, outputs: list[Array]) -> Transfer | None:
        if not isinstance(executor, StagedExecutor):
            return None
        return TransferBench(self.runtime).measure(executor.pool, rows, outputs)

    def _find_streams(self, executor: StagedExecutor) -> None:
        """To capture the model's graphs on, one for each worker."""
        for lane, seat in zip(self.lanes, executor.seats, strict=True):
            seat.capture = self._stock.capture(lane.index, lane.spec.priority)
            if seat.capture is None:
                log.warning(
                    "model %s: no stream is left to capture on: it runs without graphs", executor.model.info.name
                )
                executor.graphs = False
                return
            seat.pool = self.runtime.graph_pool()

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written: let their copy begin. Returns at once; any thread."""
        if isinstance(executor, StagedExecutor):
            copies = self.copies
            with copies.lock:
                copies.last += 1
                executor.pool.arrive(slots, copies.last)
                if not self._closed:
                    self._messages.put((self._copy, executor.pool, slots))

    def push(self, worker: int, job: Job) -> None:
        """Hand over a unit. Returns at once. Rows that nobody announced are copied first."""
        if isinstance(job.executor, StagedExecutor):
            self.submit(self.lanes[worker], job, self._report)
        else:
            assert self._host is not None  # it placed this model
            self._host.push(worker, job)

    def free(self, executor: Executor) -> None:
        """The model has been unloaded and nothing of it is in flight: its graphs and streams go."""
        if isinstance(executor, StagedExecutor):
            self.send(self._free, executor)

    def dead(self) -> str | None:
        """Why the device can do no more work, or None."""
        if self.lost is not None:
            return self.lost
        if self._host is not None and self._host_started and (gone := self._host.dead()) is not None:
            return gone
        return next((f"{thread.name} has died" for thread in self._threads if not thread.is_alive()), None)

    def close(self, timeout_s: float) -> bool:
        """End the threads after what they have; False if one hangs."""
        with self.copies.lock:
            self._closed = True
            self._messages.put(None)
        ended = self._host.close(timeout_s) if self._host is not None and self._host_started else True
        for thread in self._threads:
            thread.join(timeout_s)
        return ended and not any(thread.is_alive() for thread in self._threads)

    # messages

    def send(self, method: Callable[..., None], *args: Any) -> bool:
        """Have the launcher call this; False if it takes no more."""
        with self.copies.lock:
            if not self._closed:
                self._messages.put((method, *args))
            return not self._closed

    def submit(self, lane: Lane, job: Job, report: Report) -> None:
        """Have the launcher launch a unit; `report` is told of its end."""
        executor = job.executor
        assert isinstance(executor, StagedExecutor)
        new = [slot for slot in job.slots if not executor.pool.numbers[slot]]
        if new:
            self.arrive(executor, new)
        if not self.send(self._launch, lane, job, report):
            report(failed(job.unit_id, Fault.DEVICE, RuntimeError("the device is closed")))

    def _keep(self, pool: StagedPool, slots: Slots) -> None:
        """Slots were given back whose copies may not be over."""
        self.send(self._watch, pool, slots)

    def outcome(self, done: Future[Any]) -> Any:
        """Wait for what the launcher or a completer will bring. Raises what it raised."""
        return done.result()

    # the launcher

    def handle(self, message: tuple[Any, ...]) -> None:
        method, *args = message
        try:
            method(*args)
        except BaseException as exc:
            self._lose(exc)

    def _copy(self, pool: StagedPool, slots: Slots) -> None:
        if self.lost is None:
            pool.copy_in(self.runtime, self._in, slots)

    def _launch(self, lane: Lane, job: Job, report: Report) -> None:
        try:
            if self.lost is not None:
                raise RuntimeError(self.lost)
            flight = Flight(job, lane, report, self._clock())
        except BaseException as exc:  # also where there is no pinned memory for another block
            self._lose(exc)
            completion = failed(job.unit_id, Fault.DEVICE, exc)
            completion.worker = lane.index
            report(completion)
            return
        try:
            flight.enqueue(self.runtime, lane)
        except BaseException as exc:
            flight.lost = exc
            self._lose(exc)
        else:
            flight.launched = self._clock()
            if self._launched is not None and report is self._report:
                self._launched(job.unit_id)
        lane.flights.put(flight)

    def _watch(self, pool: StagedPool, slots: Slots) -> None:
        if self.lost is None:
            number, event = pool.in_event(slots)
            self._watched.put((event, number, pool, slots))

    def _free(self, executor: StagedExecutor) -> None:
        for seat in executor.seats:
            if seat.capture is not None:
                self._stock.release(seat.capture, seat.graphs)
        executor.seats.clear()
        # Slots that were never given back, those of warming up, refer to flights, and these to the executor: a cycle,
        # which the collector may have been told to leave alone (`app/process.py`).
        executor.pool.flights[:] = [None] * len(executor.pool.flights)

    # the completers

    def complete(self, lane: Lane, flight: Flight) -> None:
        """Wait until the unit is over, and report it."""
        try:
            if flight.lost is not None:
                raise flight.lost
            self.runtime.synchronize(flight.block.computed)
            computed = self._clock()
            self.runtime.synchronize(flight.block.landed)
            self.copies.over(flight.number)
            completion = self._completion(lane, flight, computed)
            lane.ended = computed
        except BaseException as exc:
            # Nobody knows what the device still writes to: the block is never used again.
            flight.lost = exc
            self._lose(exc)
            completion = failed(flight.unit_id, Fault.DEVICE, exc)
        completion.worker = lane.index
        flight.outputs, flight.graph = (), None
        flight.report(completion)

    def _completion(self, lane: Lane, flight: Flight, computed: int) -> Completion:
        error = flight.error
        if error is None:
            ran = flight.settle(computed, lane.ended, self._clock)
            return Completion(Outcome(flight.unit_id, None, ran.busy_ns), ran)
        flight.seat.landing.give_back(flight.block)
        completion = failed(flight.unit_id, fault_of(error), error)
        if completion.outcome.error is Fault.DEVICE:
            self._lose(error)
        return completion

    def watched(self, event: Any, number: int, pool: StagedPool, slots: Slots) -> None:
        """Wait until copies whose rows nobody wants any more are over, and free their slots."""
        try:
            self.runtime.synchronize(event)
        except BaseException as exc:
            self._lose(exc)
        else:
            self.copies.over(number)
            self._freed(pool, slots)

    # threads and streams

    def _begin(self) -> None:
        if self.lanes:
            return
        self.runtime.attach()
        self._in = self._stock.take(0)
        self.lanes = [Lane(index, spec, self._stock.take) for index, spec in enumerate(self.spec.workers)]
        self._spawn()

    def _spawn(self) -> None:
        mains: list[tuple[str, Callable[[], None]]] = [("launcher", self._launch_main), ("arrivals", self._watch_main)]
        mains += [(f"worker {lane.index}", _completer(self, lane)) for lane in self.lanes]
        # Daemons: a device that hangs must not keep a process alive that has been told to end.
        self._threads = [threading.Thread(target=main, name=name, daemon=True) for name, main in mains]
        for thread in self._threads:
            thread.start()

    def _launch_main(self) -> None:
        self.runtime.attach()
        with torch.inference_mode():
            while (message := self._messages.get()) is not None:
                self.handle(message)
                del message  # it may hold a model that has been unloaded
        for lane in self.lanes:
            lane.flights.put(None)
        self._watched.put(None)

    def _watch_main(self) -> None:
        self.runtime.attach()
        while (item := self._watched.get()) is not None:
            self.watched(*item)

    def _host_report(self, completion: Completion) -> None:
        self._report(completion)

    def _lose(self, exc: BaseException) -> None:
        if self.lost is None:
            self.lost = f"{type(exc).__name__}: {exc}"
            log.error("%s: the device has failed: %s", self.name, self.lost)


def _completer(device: StreamDevice, lane: Lane) -> Callable[[], None]:
    def main() -> None:
        device.runtime.attach()
        with torch.inference_mode():
            while (flight := lane.flights.get()) is not None:
                device.complete(lane, flight)
                del flight  # outputs belong to the callers now

    return main


def _unheard(completion: Completion) -> None:
    log.warning("a unit of worker %d ended before the device was started", completion.worker)


def _give_back(pool: Pool, slots: Slots) -> None:
    pool.give_back(slots)
