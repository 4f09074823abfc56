"""A device as the engine sees it: what is placed on it, what it runs, and what it reports.

A model is placed once (`Device.open` gives an `Executor`); after that the engine pushes jobs, and each is reported
exactly once. A device knows slots and tensors, and nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from app.contract import Array, Model, TensorSpec
from app.engine.executor import Executor
from app.engine.pool import Slots
from app.errors import ConfigError
from app.models.base import one_line
from app.models.placement import AS_LOADED, Placement
from app.scheduler.types import DeviceSpec, Fault, Outcome

NO_BOUND = 1 << 30  # rows
WHOLE = -1  # in place of a stage: all of them, one after another
TRIED_TOKENS = 8  # that each text of a batch has which is run WHOLE, if it has so many: later steps show nothing else
_LONGEST_MESSAGE = 500
_CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation: allocations that do not go through torch's allocator


_PUSH_DEPTH = 2  # units of a worker that may have one behind another; more would only delay who comes later


def push_depth(push_ahead_ns: int) -> int:
    """Units handed to one worker and unfinished."""
    return _PUSH_DEPTH if push_ahead_ns else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The settings that every device has.

    `push_ahead_ns`: how long before the end of a unit the next one may be handed over, None: the device's own.
    `max_alive`: rows on the device at once, None: no bound. `graphs`: capture CUDA graphs, where there are such.
    `keeps_one`, of a GPU alone: the worker that is kept for real-time work has streams of high priority.
    """

    placement: Placement = AS_LOADED
    push_ahead_ns: int | None = None
    max_alive: int | None = None
    graphs: bool = True
    keeps_one: bool = False


@dataclass(slots=True)
class Ran:
    """A finished batch: one array [rows, ...] per output, in memory of their own; nanoseconds of each part.

    `overlapped`: inputs and outputs were copied beside the worker, which could compute other batches meanwhile.
    A batch that goes on to another stage has no outputs. `stages_ns`: the time of each stage that ran, of a model in
    stages; of the steps that ran together, of a recurrent one. `step_ns`: what a step took, of a recurrent model that
    a device runs by its cell, 0 where rows have only read; None for others. `steps`: those that ran of a recurrent
    model, or stages; `ended`: then the positions of the rows that have ended with them, of which alone there are
    outputs. `continues`: the worker has continued without them.
    `lengths` [rows with outputs]: how long each is along the axes of the outputs' own, None where they have none.
    """

    outputs: list[Array]
    input_ns: int
    infer_ns: int
    output_ns: int
    overlapped: bool = False
    stages_ns: tuple[int, ...] = ()
    step_ns: int | None = None
    steps: int = 1
    ended: tuple[int, ...] = ()
    continues: bool = False
    lengths: Array | None = None

    @property
    def busy_ns(self) -> int:
        """How long the batch occupied its worker."""
        return self.infer_ns if self.overlapped else self.input_ns + self.infer_ns + self.output_ns

    @property
    def stage_parts(self) -> list[tuple[int, int, int]]:
        """Input, model and output of each stage that ran: what came in is the first one's, what went out the last's."""
        last = len(self.stages_ns) - 1
        return [
            (0 if number else self.input_ns, ns, self.output_ns if number == last else 0)
            for number, ns in enumerate(self.stages_ns)
        ]

    @property
    def by_stage_ns(self) -> tuple[int, ...]:
        """Of a model that ran whole, what a batch of each stage would have taken; of a recurrent one, a step."""
        if self.step_ns:
            return (self.step_ns,)
        return tuple(map(sum, self.stage_parts)) if len(self.stages_ns) > 1 else self.stages_ns


class Piece(NamedTuple):
    """What a row has made since the last piece of it, see contract.Lease.on_piece; `steps` or tokens so far."""

    slot: int
    made: Any
    steps: int


@dataclass(slots=True)
class Job:
    """A unit as a device sees it: which rows (their slots) of which placed model run as a batch of what size.

    `steps` stages run from `stage` on, or steps of a recurrent model. WHOLE: all of it, nothing is kept in between.
    The worker makes them one after another by itself. The loop may set `recalled`: the unit is to end with the stage or
    step that runs, and those that are on a stream behind it. `done`: steps that have been made, which the loop reads.
    A unit whose later step fails ends well with the one before it.
    `on_pieces`: of a model whose answers may be read while they are made, called on the worker's thread with what the
    rows in the slots `read` have made.
    `best_effort`: no real-time row is in it. `continue_without`: of a recurrent model, when rows end the worker reports
    them and continues with the others; the loop may take that back while it runs.
    """

    unit_id: int
    executor: Executor
    slots: Slots
    size: int
    stage: int = WHOLE
    steps: int = 1
    recalled: bool = False
    done: int = 0
    best_effort: bool = False
    continue_without: bool = False
    read: frozenset[int] = frozenset()
    on_pieces: Callable[[Sequence[Piece]], None] | None = None


@dataclass(slots=True)
class Completion:
    """A worker's report: the outcome for the scheduler, the outputs or the error for the callers."""

    outcome: Outcome
    ran: Ran | None = None
    message: str = ""
    worker: int = -1
    cause: BaseException | None = None


#: Called on a device's threads, see `Device.start`.
Report = Callable[[Completion], None]


class Device(Protocol):
    """Memory and workers. The engine pushes jobs; each is reported exactly once, unless the device is lost."""

    name: str
    spec: DeviceSpec
    #: Compute threads of each worker; 1 where the device is not a CPU.
    threads: int
    #: Rows are copied to the device when `arrive` announces them, or when a unit of theirs is pushed.
    staged: bool

    def start(self, report: Report) -> None:
        """Start the workers, on whose threads `report` is called with each job that has ended."""
        ...

    def open(self, model: Model, slots: int) -> Executor:
        """Place the model: move its weights, allocate memory for the inputs of so many rows. Blocks.

        Raises ConfigError naming the model.
        """
        ...

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        """Run the rows in `slots` as a batch of `size` outside of serving: warm-up and checks. Blocks.

        The batch runs on every worker that takes it, and what the fastest gave is returned. Raises what the model
        raises. Not for the event loop, nor for a device's own threads.
        """
        ...

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written. Returns at once."""
        ...

    def push(self, worker: int, job: Job) -> None:
        """Hand a job to a worker. Returns at once."""
        ...

    def let_begin(self) -> None:
        """Let idle workers turn to what they were handed, before the caller goes on to keep the interpreter lock.

        Returns when they have, or after a moment.
        """
        ...

    def free(self, executor: Executor) -> None:
        """The model has been unloaded: what the device holds for it may go."""
        ...

    def dead(self) -> str | None:
        """Why the device can do no more work, or None."""
        ...

    def close(self, timeout_s: float) -> bool:
        """End the workers; False if one hangs."""
        ...


def fault_of(exc: BaseException) -> Fault:
    """Classify an exception that a unit raised.

    An AcceleratorError may be the end of the device or a fault of this unit alone; its type does not tell. Here it
    counts as the model's: whoever runs on an accelerator must try the device afterwards.
    """
    if isinstance(exc, (MemoryError, torch.OutOfMemoryError)):
        return Fault.OOM
    if isinstance(exc, torch.AcceleratorError) and getattr(exc, "error_code", None) == _CUDA_OUT_OF_MEMORY:
        return Fault.OOM
    if not isinstance(exc, Exception | SystemExit):  # the thread is not to be trusted any more
        return Fault.DEVICE
    # torch's CPU allocator raises a plain RuntimeError, which nothing but its text tells from a model's own.
    return Fault.OOM if type(exc) is RuntimeError and "DefaultCPUAllocator" in str(exc) else Fault.MODEL


def copied(value: Any, spec: TensorSpec, rows: int) -> Array:
    """The first `rows` rows of an output on the host, in memory of their own. ConfigError where its type is not what
    was declared.

    numpy does the cutting and copying: each torch operator releases the interpreter lock and must take it again, and
    with a busy event loop that wait is the most expensive part of a small batch.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach() if value.requires_grad else value
        value = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if value.dtype != spec.dtype:
        raise ConfigError(f"output {spec.name!r}: expected {spec.datatype}, got {value.dtype}")
    return np.array(value[:rows])


def completed(unit_id: int, ran: Ran) -> Completion:
    """The report of a unit that ran well."""
    times: tuple[int, ...] = ()
    if ran.step_ns is not None:  # what is more than computing counts as part of the hand-over
        times = (ran.step_ns,)
        return Completion(Outcome(unit_id, None, ran.infer_ns, ran.ended, ran.steps, times, ran.continues), ran)
    if ran.steps > 1 and ran.stages_ns:
        times = ran.stages_ns if ran.overlapped else tuple(map(sum, ran.stage_parts))
    return Completion(Outcome(unit_id, None, ran.busy_ns, ran.ended, ran.steps, times), ran)


def failed(unit_id: int, fault: Fault, exc: BaseException) -> Completion:
    """The report of a unit whose first step raised `exc`."""
    return Completion(Outcome(unit_id, fault), None, one_line(exc)[:_LONGEST_MESSAGE], cause=exc)
