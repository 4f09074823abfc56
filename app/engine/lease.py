"""A lease: one call as the engine sees it. It is the scheduler's Call, and also owns the call's slots.

It owns them from admission to answer. Slots are freed once, and never while a unit still reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from app.contract import CLASSES, Answer, Array, Finished, Model, TensorSpec, Waiter
from app.engine import ragged
from app.engine.pool import Pool, Slots
from app.errors import BadRequest, ClientGone, DeadlineExceeded, ModelFailed, NotReady, StarlingError
from app.observe.metrics import ModelStats
from app.scheduler.types import Call, Drop, Klass, Reason, Row, RowState

log = logging.getLogger("starling.engine")

Parts = tuple[int, int, int]  # nanoseconds of input, model and output


class Home(Protocol):
    """What a lease needs of the model it belongs to."""

    model: Model
    pool: Pool
    program: int
    stats: ModelStats

    def future(self) -> asyncio.Future[Answer]: ...
    def submit(self, lease: Lease) -> None:
        """Its rows are to run; it fails at once if no call is taken any more."""
        ...

    def cancel(self, lease: Lease) -> None: ...
    def unused(self, lease: Lease) -> None:
        """The lease ends without having been submitted."""
        ...

    def free_rows(self, rows: Iterable[Row]) -> None: ...


class Batch(Finished):
    """A finished batch as its calls see it: outputs of all its rows; parts, and the end of it on the loop, in ns.

    `started` is when it would have begun, had it computed until its end: what it cost to hand over counts as waiting.
    """

    __slots__ = ("parts", "size", "spent", "started")

    def __init__(self, outputs: list[Array], ended: int, parts: Parts, size: int) -> None:
        super().__init__(outputs)
        self.parts = parts
        self.spent = sum(parts)
        self.started = ended - self.spent
        self.size = size

    def of_row(self, outputs: list[Array]) -> Batch:
        """One row of it, with outputs of its own."""
        return Batch(outputs, self.started + self.spent, self.parts, self.size)


class Lease(Call):
    """Implements contract.Lease over one served model's pool."""

    __slots__ = (
        "_closed",
        "_lengths",
        "_served",
        "_waiter",
        "cause",
        "entered",
        "error",
        "on_close",
        "places",
        "slots",
        "submitted",
    )

    def __init__(
        self,
        id: int,
        served: Home,
        slots: Slots,
        lengths: Mapping[str, int],
        klass: Klass,
        priority: int,
        arrived: int,
        deadline: int | None,
    ) -> None:
        longest = max(lengths.values()) if lengths else 0
        # Call's own __init__, written out: a call more costs a third of a microsecond.
        self.id = id
        self.program = served.program
        self.rows = [Row(slots[0], longest)] if len(slots) == 1 else [Row(slot, longest) for slot in slots]
        self.klass = klass
        self.priority = priority
        self.arrived = arrived
        self.deadline = deadline
        self.left = 0
        self.alive = True
        self._served = served
        self.slots = slots
        self._lengths = lengths
        self._closed = False
        self.submitted = False
        self.entered = 0  # when it was submitted; from its arrival until then it was read and decoded
        self._waiter: Waiter | None = None
        self.on_close: Callable[[], None] | None = None
        #: For each row that has ended, the batch that holds its outputs and the row's place in it. The engine writes
        #: this list; a dict would cost 3 us per call for its first key.
        self.places: list[tuple[Batch, int] | None] = [None] * len(self.rows)
        self.error = ""  # what the model said when a unit of this call failed, and what it raised
        self.cause: BaseException | None = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def set_own_lengths(self, own: Mapping[str, Sequence[int]]) -> None:
        """Its rows differ in length: each is scheduled by its own."""
        for row, lengths in zip(self.rows, zip(*own.values(), strict=True), strict=True):
            row.length = max(lengths)

    def write(self, index: int, values: Array | memoryview) -> None:
        """Write input number `index` of the client's inputs; see contract.Lease."""
        pool = self._served.pool
        if pool.specs[index].ranged:
            check_range(pool.specs[index], values)
        pool.write(self.slots, index, values, self._lengths)

    def run(self) -> asyncio.Future[Answer]:
        """Submit. The future raises a leaf of StarlingError."""
        future = self._served.future()
        self.submit(future)
        return future

    def submit(self, waiter: Waiter) -> None:
        """The rows have been written, and are to run; see contract.Lease."""
        self._waiter = waiter
        self._served.submit(self)

    @property
    def model(self) -> str:
        return self._served.model.info.name

    def cancel(self) -> None:
        """The caller has gone."""
        self.fail(ClientGone("the client went away before its answer"))

    def fail(self, error: StarlingError) -> None:
        """Answer the call with an error, unless it has its answer."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            try:
                waiter.set_exception(error)
            except Exception:  # one caller's trouble must not end the engine's step
                log.exception("a caller failed to take its error")

    def resolve(self) -> None:
        """All rows have ended: give the answer."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        try:
            answer = self._answer()
        except Exception as exc:  # the outputs of two batches do not fit together
            self.fail(ModelFailed(f"model {self.model!r}: {type(exc).__name__}: {exc}"))
            return
        try:
            waiter.set_result(answer)
        except Exception:  # as in `fail`
            log.exception("a caller failed to take its answer")

    def _answer(self) -> Answer:
        places = cast("list[tuple[Batch, int]]", self.places)  # all rows have ended
        if len(places) == 1 and not self._lengths:
            batch, position = places[0]
            queue_ns = max(0, batch.started - self.entered)
            self._served.stats.call_ran(queue_ns, batch.parts, CLASSES[self.klass])
            return Answer(None, queue_ns, batch.spent, batch.size, batch, position)
        outputs, lengths = self._joined(places)
        slowest = max((batch for batch, _ in places), key=lambda b: b.started + b.spent)
        queue_ns = max(0, slowest.started - self.entered)
        self._served.stats.call_ran(queue_ns, slowest.parts, CLASSES[self.klass], len(places))
        size = max(batch.size for batch, _ in places)
        return Answer(outputs, queue_ns, slowest.spent, size, lengths=lengths)

    def _joined(self, places: list[tuple[Batch, int]]) -> tuple[list[Array], list[int] | None]:
        """The outputs of the call's rows in order, whatever batches they ran in, and Answer.lengths.

        Adjacent rows are one slice.
        """
        pieces = [self._cut_back([array[first:end] for array in batch.arrays]) for batch, first, end in _runs(places)]
        info = self._served.model.info
        if info.own_axes:
            return ragged.together(info, pieces)
        if len(pieces) == 1:
            return pieces[0], None
        differ = len({row.length for row in self.rows}) > 1
        join = ragged.joined if differ else np.concatenate  # which refuses arrays that do not fit together
        return [join(arrays) for arrays in zip(*pieces, strict=True)], None

    def _cut_back(self, outputs: list[Array]) -> list[Array]:
        """Cut the outputs' variable axes to the lengths of the call's own inputs: the batch may be longer."""
        if not self._lengths:
            return outputs
        cut: list[Array] = []
        for spec, values in zip(self._served.model.info.outputs, outputs, strict=True):
            index: list[Any] = [slice(None)]
            index += [slice(self._lengths.get(axis)) if axis else slice(None) for axis in spec.axes]
            cut.append(values[tuple(index)])
        return cut

    @property
    def runs(self) -> bool:
        """Some row of the call is in a unit at this moment."""
        return any(row.state is RowState.RUNNING for row in self.rows)

    def close(self) -> None:
        """The handler is done with the call. Slots that a unit still reads are freed when it ends."""
        if self._closed:
            return
        self._closed = True
        if self.on_close is not None:
            self.on_close()
        if self.submitted and self.alive:
            self._served.cancel(self)
            self.free_ended()
        elif not self.submitted:
            self._served.unused(self)
        # Rows point back to their call, and the waiter to its lease: cut, so that the cycle collector has no work.
        self.rows = []
        self._waiter = None

    def free_ended(self) -> None:
        """Give back the slots of rows that will not run again, after the call has left before its time."""
        self._served.free_rows(self.rows)


def _runs(places: list[tuple[Batch, int]]) -> list[tuple[Batch, int, int]]:
    """The rows' places as (batch, first, end): one entry for rows that are adjacent in the call and in the batch."""
    runs: list[tuple[Batch, int, int]] = []
    for batch, position in places:
        if runs and runs[-1][0] is batch and runs[-1][2] == position:
            runs[-1] = (batch, runs[-1][1], position + 1)
        else:
            runs.append((batch, position, position + 1))
    return runs


def error_of(drop: Drop, lease: Lease, lost: str | None) -> StarlingError:
    """What the caller of a dropped call hears. `lost`: why the device is, if it is."""
    name = lease.model
    if drop.reason is Reason.DEADLINE:
        where = "while it was running" if lease.runs else "in the queue"
        return DeadlineExceeded(f"model {name!r}: the deadline passed {where}")
    if drop.reason is Reason.DEADLINE_UNREACHABLE:
        return DeadlineExceeded(f"model {name!r}: the deadline would pass before the batch of this call ends")
    if drop.reason is Reason.DEVICE:
        return NotReady(f"the device is lost: {lost}", retry_after_s=1)
    if drop.reason is Reason.CLOSED:
        return NotReady(f"model {name!r} was unloaded", retry_after_s=1)
    row = f" on row {drop.row}" if drop.row > 0 or len(lease.rows) > 1 else ""
    what = "ran out of memory" if drop.reason is Reason.OOM else "failed"
    return ModelFailed(f"model {name!r} {what}{row}: {lease.error}", cause=lease.cause)


def check_range(spec: TensorSpec, values: Array | memoryview) -> None:
    """Raise BadRequest that names the input where a value is not within its bounds.

    A GPU checks no index: one that is out of range ends the device, and every call with it.
    """
    array = np.frombuffer(values, spec.dtype) if isinstance(values, memoryview) else values
    if array.size == 0:
        return
    least, most = int(array.min()), int(array.max())
    low, high = spec.minimum, spec.maximum
    below, above = low is not None and least < low, high is not None and most > high
    if below or above:
        if low is None:
            expected = f"of at most {high}"
        elif high is None:
            expected = f"of at least {low}"
        else:
            expected = f"from {low} to {high}"
        raise BadRequest(f"input {spec.name!r}: expected values {expected}, got {least if below else most}")
