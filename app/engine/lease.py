"""Leases: calls that own slots of a placed model from admission to answer.

A lease is the scheduler's Call by inheritance, so that there is one object per request. Its slots are freed once, and
never while a unit reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import count, repeat
from types import coroutine
from typing import Any

from app.contract import Answer, FinishedBatch, GeneratedText, Model, ModelCall, Pending, Waiter
from app.engine.device import Completion, Device
from app.engine.executor import Executor
from app.engine.outputs import RowPlaces, joined
from app.engine.pool import Slots, neighbours
from app.errors import DeadlineExceeded, ModelFailed, NotReady, StarlingError
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, Drop, Klass, Reason, Row

log = logging.getLogger("starling.engine")


@dataclass(slots=True)
class Intake:
    """How calls enter the scheduler. All models of an engine share it.

    After an input call `step_soon`: it takes a step at the end of this turn of the loop.
    """

    scheduler: Scheduler
    device: Device
    clock: Callable[[], int]
    step_soon: Callable[[], None]
    next_id: Callable[[], int] = field(default_factory=lambda: count().__next__)
    refusing: str | None = None  # why all calls are refused, or None


class Placed:
    """A placed model with its slots.

    `reserved`: by class, rows leased and not yet submitted. `drained`: there once new calls are refused, set when no
    slot is in use.
    """

    def __init__(self, model: Model, executor: Executor, program: int, intake: Intake) -> None:
        self.model, self.executor, self.program, self.intake = model, executor, program, intake
        self.pool, self.activations = executor.pool, executor.activations
        #: Whether some output has a variable length, so that it must be cut to the call's own.
        self.cuts_outputs = not all(spec.fixed for spec in model.info.outputs)
        self.reserved = [0, 0]
        self.drained: asyncio.Event | None = None

    def free_rows(self, rows: Iterable[Row]) -> None:
        """Give back the slots of those rows that have ended, which nothing reads any more."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Refuse new calls from now on; return when no slot is in use, or when the engine has given up."""
        self.drained = self.drained or asyncio.Event()
        self.pool.on_unused = self.drained.set
        if self.pool.used and self.intake.refusing is None:
            await self.drained.wait()

    def give_up(self) -> None:
        """End the wait of `drain`."""
        if self.drained is not None:
            self.drained.set()


class Lease(Call):
    """Implements contract.Lease over one served model's pool."""

    __slots__ = (
        "_differ", "_lengths", "_placed", "_waiter", "end_by", "entered", "failure", "on_close",
        "on_piece", "places", "slots", "submitted",
    )  # fmt: skip

    def __init__(self, placed: Placed, asked: ModelCall, slots: Slots, arrived: int, deadline: int | None) -> None:
        """`asked`: with its class and priority."""
        klass, lengths, own = asked.klass, asked.lengths, asked.own_lengths
        assert klass is not None
        longest = max(lengths.values()) if lengths else 0
        rows = list(map(Row, slots, repeat(longest)))
        super().__init__(placed.intake.next_id(), placed.program, rows, klass, asked.priority, arrived, deadline)
        # A list, because the first key of a dict costs 3 us per call.
        self.places: RowPlaces = [None] * len(self.rows)
        self._placed = placed
        self.slots = slots
        self._lengths = lengths
        self._differ = bool(own)  # rows have different lengths
        if own:
            for row, lengths_of in zip(rows, zip(*own.values(), strict=True), strict=True):
                row.length = max(lengths_of)
        self.submitted = False
        self.entered = 0  # when it was submitted, after it had been read and decoded
        self._waiter: Waiter | None = None
        self.on_close: Callable[[], None] | None = None
        self.end_by: int | None = None  # its deadline once a streamed answer has begun
        self.on_piece: Callable[[int, GeneratedText], None] | None = None
        self.failure: Completion | None = None  # of a unit of this call

    def __enter__(self) -> Lease:
        return self

    @property
    def runs(self) -> bool:
        """Whether some row of the call is in a unit at this moment."""
        return any(row.state.runs for row in self.rows)

    @coroutine
    def run(self) -> Generator[Pending, Any, Answer]:
        """Submit the rows and wait for their outputs; see contract.Lease."""
        answer: Answer = yield self
        return answer

    def submit(self, waiter: Waiter) -> None:
        """Run the rows, which have been written; see contract.Lease."""
        self._waiter = waiter
        placed = self._placed
        intake = placed.intake
        if intake.refusing is not None:  # since after the lease was taken
            self.fail(NotReady(intake.refusing, retry_after_s=1))
            return
        self.submitted = True
        placed.reserved[self.klass] -= len(self.rows)
        if intake.device.staged and self.klass is Klass.REALTIME:
            intake.device.arrive(placed.executor, self.slots)
        self.entered = now = intake.clock()
        intake.scheduler.submit(self, now)
        intake.step_soon()

    def abandon(self) -> bool:
        """See contract.Lease."""
        self._waiter = None
        return False

    def began(self) -> None:
        """The streamed answer has begun: from now on its deadline is that of the whole answer."""
        if self.deadline != self.end_by:
            intake = self._placed.intake
            intake.scheduler.extend(self.id, self.end_by, intake.clock())
            intake.step_soon()

    def fail(self, error: StarlingError) -> None:
        """Answer the call with an error, unless it has its answer."""
        if self._waiter is not None:
            try:
                self._waiter.set_exception(error)
            except Exception:  # a failing caller must not end the engine's step
                log.exception("a caller failed to take its error")

    def resolve(self) -> None:
        """All rows have ended: give the answer to the waiter."""
        waiter = self._waiter
        if waiter is None:
            return
        places: list[tuple[FinishedBatch, int]] = self.places  # type: ignore[assignment]  # all rows have ended
        placed = self._placed
        if len(places) == 1 and not (self._lengths and placed.cuts_outputs):
            batch, row = places[0]
            answer = Answer(None, 0, batch.times, batch.size, batch, row, None, batch.worker, batch.reason)
        else:
            try:
                batch, answer = self._joined(places)
            except Exception as exc:  # the outputs of two batches do not fit together
                what = "the outputs of its rows have different lengths, so they are no one answer: send a row a request"
                self.fail(ModelFailed(f"model {placed.model.info.name!r}: {what}: {exc}"))
                return
        answer.queue_ns = max(0, batch.ended - self.entered - sum(batch.times))
        try:
            waiter.set_result(answer)
        except Exception:
            log.exception("a caller failed to take its answer")

    def _joined(self, places: list[tuple[FinishedBatch, int]]) -> tuple[FinishedBatch, Answer]:
        """The slowest batch, and the answer of several rows, or of one that is cut to its own length."""
        runs = neighbours(places)
        slowest = max((batch for batch, _, _ in runs), key=lambda batch: batch.ended)
        outputs, lengths = joined(runs, self._placed.model.info, self._lengths, differ=self._differ)
        size = max(batch.size for batch, _, _ in runs)
        answer = Answer(outputs, 0, slowest.times, size, None, 0, lengths, slowest.worker, slowest.reason)
        if len(runs) > 1:  # of rows split by length, each has a FinishedBatch of its own
            answer.batches = len({(batch.ended, batch.worker) for batch, _, _ in runs})
        return slowest, answer

    def close(self, *exc: object) -> None:
        """The handler is done with the call. Slots that a unit still reads are freed when the unit ends."""
        if not self.rows:  # it is closed
            return
        if self.on_close is not None:
            self.on_close()
        placed = self._placed
        if not self.submitted:
            placed.reserved[self.klass] -= len(self.rows)
            placed.pool.give_back(self.slots)
        elif self.alive:
            placed.intake.scheduler.cancel(self.id, placed.intake.clock())
            placed.intake.step_soon()
            placed.free_rows(self.rows)  # those that have ended
        # Rows refer to their call, and the waiter to its lease: break these cycles to spare the garbage collector.
        self.rows = []
        self._waiter = None

    __exit__ = close

    def error_of(self, drop: Drop) -> StarlingError:
        """The error that the caller gets if the scheduler drops the call."""
        name = self._placed.model.info.name
        if drop.reason is Reason.DEADLINE:
            where = "while it was running" if self.runs else "in the queue"
            return DeadlineExceeded(f"model {name!r}: the deadline passed {where}")
        if drop.reason is Reason.DEADLINE_UNREACHABLE:
            return DeadlineExceeded(f"model {name!r}: the deadline would pass before the batch of this call ends")
        if drop.reason is Reason.DEVICE:
            return NotReady(self._placed.intake.refusing or "the device is lost", retry_after_s=1)
        row = f" on row {drop.row}" if drop.row > 0 or len(self.rows) > 1 else ""
        what = "ran out of memory" if drop.reason is Reason.OOM else "failed"
        assert self.failure is not None  # which is why the scheduler drops the call
        return ModelFailed(f"model {name!r} {what}{row}: {self.failure.message}", cause=self.failure.cause)
