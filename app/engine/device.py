"""The interface of a device, and the types that it shares with the engine: Job, BatchResult, Completion.

A model is placed once (`Device.open` returns an `Executor`). After that the engine pushes jobs, and each is reported
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
WHOLE = -1  # as a stage: run all stages, one after another
TRIED_TOKENS = 8  # the most tokens that a text gets in a batch run WHOLE: later steps would show nothing new
_LONGEST_MESSAGE = 500
_CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation: allocations that do not go through torch's allocator


_PUSH_DEPTH = 2  # units of a worker at once; more would only delay later rows


def push_depth(push_ahead_ns: int) -> int:
    """Units handed to one worker and unfinished."""
    return _PUSH_DEPTH if push_ahead_ns else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The settings that every device has.

    `push_ahead_ns`: how long before the predicted end of a unit the next one may be handed over; None: the device's
    default. `max_alive`: rows on the device at once; None: no bound. `graphs`: capture CUDA graphs. `keeps_one`: on a
    GPU, the worker that is kept for real-time work has streams of high priority.
    """

    placement: Placement = AS_LOADED
    push_ahead_ns: int | None = None
    max_alive: int | None = None
    graphs: bool = True
    keeps_one: bool = False


@dataclass(slots=True)
class BatchResult:
    """A finished batch. `outputs`: one array [rows, ...] per output, in memory of its own. Then nanoseconds of each
    part.

    `overlapped`: inputs and outputs were copied while the worker could compute other batches. `steps`: the stages, or
    steps of a cell, that ran. There are no outputs if another stage follows. `stages_ns`: the time of each stage that
    ran; of a recurrent model, of all steps together. `step_ns`: the time of one step of a model run by its cell, 0 if
    rows only read their prompts; None for other models. `ended`: of such a model, the positions of rows that have
    ended; only these have outputs. `continues`: the worker has continued with the other rows. `lengths` [rows with
    outputs]: their lengths along axes that only outputs have; None if there are none.
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
        """(input, model, output) nanoseconds of each stage: inputs count for the first, outputs for the last."""
        last = len(self.stages_ns) - 1
        return [
            (0 if number else self.input_ns, ns, self.output_ns if number == last else 0)
            for number, ns in enumerate(self.stages_ns)
        ]

    @property
    def by_stage_ns(self) -> tuple[int, ...]:
        """For a model that ran WHOLE: the time of a batch at each stage; for a recurrent one, of a step."""
        if self.step_ns:
            return (self.step_ns,)
        return tuple(map(sum, self.stage_parts)) if len(self.stages_ns) > 1 else self.stages_ns


class Piece(NamedTuple):
    """The new part of a row's answer, see contract.Lease.on_piece. `tokens`: so far."""

    slot: int
    made: Any
    tokens: int


@dataclass(slots=True)
class Job:
    """A unit as a device sees it: the rows in `slots` of a placed model run as a batch of `size`.

    The worker runs `steps` stages from `stage` on, or steps of a recurrent model, one after another by itself. WHOLE:
    all of the model, and nothing is kept of the rows. If a later step fails, the unit ends well with the one before.
    `best_effort`: it has no real-time rows.

    The loop may write two fields while it runs. `recalled`: end with the running stage or step, and those launched
    behind it. `continue_without`: when rows of a recurrent model end, report them and continue with the others; reset
    to end then. The loop reads `done`, the steps made so far.

    `on_pieces`: called on the worker's thread with the new parts of the answers of rows in the slots `read`.
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
    """A worker's report on a job: the outcome for the scheduler, and outputs or an error for the callers."""

    outcome: Outcome
    ran: BatchResult | None = None
    message: str = ""
    worker: int = -1
    cause: BaseException | None = None


#: Called on a device's threads, see `Device.start`.
Report = Callable[[Completion], None]


class Device(Protocol):
    """Memory and workers. Each job that is pushed is reported exactly once, unless the device is lost."""

    name: str
    spec: DeviceSpec
    #: Compute threads of each worker; 1 if the device is not a CPU.
    threads: int
    #: Rows are copied to the device: when `arrive` is called, or when their unit is launched.
    staged: bool

    def start(self, report: Report) -> None:
        """Start the workers. They call `report` on their threads with each job that has ended."""
        ...

    def open(self, model: Model, slots: int) -> Executor:
        """Place the model: move its weights, and allocate memory for the inputs of `slots` rows. Blocks.

        Raises ConfigError naming the model.
        """
        ...

    def trial(self, executor: Executor, slots: Slots, size: int) -> BatchResult:
        """Run the rows in `slots` as a batch of `size` outside of serving: warm-up and checks. Blocks.

        A device may run it on every worker that takes it, and return the fastest result. Raises what the model raises.
        Not for the event loop, nor for a device's own threads.
        """
        ...

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written. Returns at once."""
        ...

    def push(self, worker: int, job: Job) -> None:
        """Hand a job to a worker. Returns at once."""
        ...

    def wait_until_begun(self) -> None:
        """Wait until idle workers have begun the units that they were handed, or for a moment.

        For a caller that will hold the interpreter lock next.
        """
        ...

    def free(self, executor: Executor) -> None:
        """Free what the device holds for a model that has been unloaded."""
        ...

    def dead(self) -> str | None:
        """Why the device does not work any more, or None."""
        ...

    def close(self, timeout_s: float) -> bool:
        """End the workers; False if one hangs."""
        ...


def fault_of(exc: BaseException) -> Fault:
    """Classify an exception that a unit raised.

    An AcceleratorError may mean that the device is lost, or that only this unit failed; its type does not tell. Here it
    counts as the model's fault, so code for an accelerator must test the device afterwards.
    """
    if isinstance(exc, (MemoryError, torch.OutOfMemoryError)):
        return Fault.OOM
    if isinstance(exc, torch.AcceleratorError) and getattr(exc, "error_code", None) == _CUDA_OUT_OF_MEMORY:
        return Fault.OOM
    if not isinstance(exc, Exception | SystemExit):  # the thread cannot be trusted any more
        return Fault.DEVICE
    # torch's CPU allocator raises a plain RuntimeError, which nothing but its text tells from a model's own.
    return Fault.OOM if type(exc) is RuntimeError and "DefaultCPUAllocator" in str(exc) else Fault.MODEL


def copied(value: Any, spec: TensorSpec, rows: int) -> Array:
    """The first `rows` rows of an output on the host, in memory of their own. ConfigError where its type is not what
    was declared.

    numpy cuts and copies, because each torch operator releases the interpreter lock and must take it again. With a busy
    event loop that wait is the most expensive part of a small batch.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach() if value.requires_grad else value
        value = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if value.dtype != spec.dtype:
        raise ConfigError(f"output {spec.name!r}: expected {spec.datatype}, got {value.dtype}")
    return np.array(value[:rows])


def completed(unit_id: int, ran: BatchResult) -> Completion:
    """The report of a unit that ran well."""
    times: tuple[int, ...] = ()
    if ran.step_ns is not None:  # the rest of the time counts as hand-over
        times = (ran.step_ns,)
        return Completion(Outcome(unit_id, None, ran.infer_ns, ran.ended, ran.steps, times, ran.continues), ran)
    if ran.steps > 1 and ran.stages_ns:
        times = ran.stages_ns if ran.overlapped else tuple(map(sum, ran.stage_parts))
    return Completion(Outcome(unit_id, None, ran.busy_ns, ran.ended, ran.steps, times), ran)


def failed(unit_id: int, fault: Fault, exc: BaseException) -> Completion:
    """The report of a unit whose first step raised `exc`."""
    return Completion(Outcome(unit_id, fault), None, one_line(exc)[:_LONGEST_MESSAGE], cause=exc)
