"""One program that serves: a model, its slots, its place in the scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Protocol, cast

from app.contract import CLASSES, Answer, Model, Plan, SampleRow
from app.engine import ragged
from app.engine.device import Completion, Device, Executor, Ran
from app.engine.lease import Batch, Lease, Parts, error_of
from app.engine.places import note_stages, note_steps
from app.engine.pool import Slots
from app.engine.profiling.cache import Key, Known
from app.errors import DeadlineUnreachable, NotReady, QueueFull, StarlingError
from app.observe.metrics import Between, Gauges, ModelStats
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import LOWEST_PRIORITY, Call, Drop, Klass, Operation, Reason, Refusal, Row, RowState, Unit

log = logging.getLogger("starling.engine")

_ENDED = RowState.ENDED
_NO_LENGTHS: Mapping[str, int] = {}
_KLASSES = dict(zip(CLASSES, Klass, strict=True))


class Host(Protocol):
    """What a served model needs of the engine."""

    loop: asyncio.AbstractEventLoop
    device: Device
    scheduler: Scheduler
    clock: Callable[[], int]
    next_call: Callable[[], int]
    refusing: str | None

    def submit(self, call: Call) -> int: ...
    def cancel(self, call: Call) -> None: ...


class ServedModel:
    """Implements contract.Served."""

    def __init__(self, engine: Host, model: Model, executor: Executor, program: int, known: Known) -> None:
        self.engine = engine
        self.model = model
        #: What clients send and get; the engine goes by `model.info`.
        self.info = model.info if model.front is None else model.front.face(model.info)
        self.executor = executor
        self.pool = executor.pool
        self.program = program
        self.known = known
        #: For the profiler: where the profile is kept, slots and rows to measure with, see profiling/service.py.
        self.key: Key | None = None
        self.spare: Slots = ()
        self.rows: Sequence[SampleRow] = ()
        self.example: SampleRow | None = None
        self.untried = False
        self.beside: Mapping[str, float] = {}
        self.on_rows: Callable[[Sequence[int]], None] | None = None
        self._activations = executor.activations
        self._row_bytes = 0 if executor.activations is None else executor.activations.row_bytes
        self._stages = len(executor.model.stages) if executor.steps is None else 1
        self._cell = executor.steps is not None
        batching = model.info.batching
        self.stats = ModelStats(model.info.name, model.info.version, self._stages, batching.default_class)
        self.finish = self.stats.call_answered
        self.reserved = [0, 0]  # by class, rows leased and not yet submitted
        self._closing: asyncio.Future[None] | None = None
        self._timeout_ns = int(batching.default_timeout_ms * 1e6)
        self._priority = batching.default_priority
        self._klasses = {**_KLASSES, "": _KLASSES[batching.default_class]}

    def has_room(self, klass: str, rows: int = 1) -> bool:
        """Whether a call without a deadline can be taken now; see contract.Served."""
        engine, service = self.engine, self._klasses[klass]
        return (
            self._closing is None
            and engine.refusing is None
            and engine.scheduler.has_room(self.program, rows + self.reserved[service], service)
        )

    def admit(
        self, rows: int, klass: str = "", deadline_ns: int | None = None, priority: int = LOWEST_PRIORITY
    ) -> None:
        """Raise QueueFull, DeadlineUnreachable or NotReady if a call of so many rows cannot be taken now; see contract.

        Only the work that goes before a call of this class and `priority` counts against its deadline.
        """
        engine, service = self.engine, self._klasses[klass]
        if self._closing is not None:
            raise NotReady(f"model {self.info.name!r} is being unloaded", retry_after_s=1)
        if engine.refusing is not None:
            raise NotReady(engine.refusing, retry_after_s=1)
        now = engine.clock()
        asked = (rows or 1) + self.reserved[service]
        refusal = engine.scheduler.admit(self.program, asked, service, deadline_ns, now, priority)
        if refusal is not None:
            if refusal.reason in (Reason.QUEUE_FULL, Reason.DEADLINE_UNREACHABLE):
                engine.scheduler.refused(self.program, rows, now, service)
            self._refuse(refusal, service)

    def _refuse(self, refusal: Refusal, klass: Klass) -> None:
        wait = max(1, ceil(refusal.retry_after_ns / 1e9))
        name = self.info.name
        if refusal.reason is Reason.QUEUE_FULL:
            which = "best-effort queue" if klass else "queue"
            most = self.engine.scheduler.queue_bound(self.program, klass)
            raise QueueFull(f"model {name!r}: the {which} of {most} rows is full", retry_after_s=wait)
        if refusal.reason is Reason.DEADLINE_UNREACHABLE:
            raise DeadlineUnreachable(f"model {name!r}: predicted to end after the call's deadline", retry_after_s=wait)
        raise NotReady(f"model {name!r} takes no calls: {refusal.reason.value}", retry_after_s=wait)

    def lease(
        self,
        rows: int,
        *,
        lengths: Mapping[str, int] = _NO_LENGTHS,
        own_lengths: Mapping[str, Sequence[int]] | None = None,
        klass: str = "",
        priority: int = 0,
        timeout_us: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        arrived_ns: int | None = None,
    ) -> Lease:
        """Take slots; see contract.Served."""
        arrived = self.engine.clock() if arrived_ns is None else arrived_ns
        timeout_ns = self._timeout_ns if timeout_us is None else timeout_us * 1000
        deadline = arrived + timeout_ns if timeout_ns else None
        priority = priority or self._priority
        service = self._klasses[klass]
        if (
            deadline is not None
            or self._closing is not None
            or self.engine.refusing is not None
            or not self.engine.scheduler.has_room(self.program, rows + self.reserved[service], service)
        ):  # `has_room`, written out
            self.admit(rows, klass, deadline, priority)
        try:
            slots = self.pool.take(rows)
        except MemoryError:  # calls that left are still being copied to the device
            raise QueueFull(f"model {self.info.name!r}: no input slots are free", retry_after_s=1) from None
        self.reserved[service] += rows
        if lengths:
            self.pool.set_lengths(slots, own_lengths or lengths)
        if self.model.takes_parameters:
            for slot in slots:
                self.pool.parameters[slot] = parameters
        lease = Lease(self.engine.next_call(), self, slots, lengths, service, priority, arrived, deadline)
        if own_lengths:
            lease.set_own_lengths(own_lengths)
        return lease

    # its leases

    def future(self) -> asyncio.Future[Answer]:
        return self.engine.loop.create_future()

    def submit(self, lease: Lease) -> None:
        """The rows of a lease have been written, and are to run."""
        engine = self.engine
        if engine.refusing is not None:  # since the lease was taken
            lease.fail(NotReady(engine.refusing, retry_after_s=1))
            return
        lease.submitted = True
        self.reserved[lease.klass] -= len(lease.rows)
        if engine.device.staged and lease.klass is Klass.REALTIME:
            engine.device.arrive(self.executor, lease.slots)
        lease.entered = engine.submit(lease)

    def cancel(self, lease: Lease) -> None:
        self.engine.cancel(lease)

    def unused(self, lease: Lease) -> None:
        """The lease ends without having been submitted."""
        self.reserved[lease.klass] -= len(lease.rows)
        self.give_back(lease.slots)

    # told by the engine: the calls of its scheduler are leases

    def ran(self, unit: Unit, ran: Ran, ended: int) -> None:
        """A unit has ended well: note where each row's outputs lie."""
        parts = (ran.input_ns, ran.infer_ns, ran.output_ns)
        if self._stages:
            self._stage_ran(unit, ran, ended, parts)
            return
        batch = Batch(ran.outputs, ended, parts, len(unit.rows))
        for position, row in enumerate(unit.rows):
            lease: Lease = row.call  # type: ignore[assignment]  # a cast would be a call per row
            lease.places[row.index] = (batch, position)
        if ran.lengths is not None:
            self._part(unit.rows, ran)
        self.stats.batch_ran(unit.worker, unit.reason, len(unit.rows), parts, CLASSES[unit.klass])
        if self.on_rows is not None:
            self.on_rows([row.slot for row in unit.rows if row.slot >= 0])

    def _stage_ran(self, unit: Unit, ran: Ran, ended: int, parts: Parts) -> None:
        """As `ran`, of some stages or steps."""
        if self._cell:
            over: Sequence[int] = ran.ended
            batches = note_steps(unit, ran, ended, parts)
        else:
            over = range(len(unit.rows)) if unit.stage + ran.steps == self._stages else ()
            batches = note_stages(unit, ran, ended, parts, over)
        if ran.lengths is not None:
            self._part([unit.rows[position] for position in over], ran)
        klass = CLASSES[unit.klass]
        for stage, spent in enumerate(ran.stage_parts, unit.stage):
            operation = unit.operation if stage == unit.stage else Operation.ON  # where the worker went on by itself
            self.stats.stage_ran(stage, unit.worker, unit.reason, operation, len(unit.rows), spent, klass)
        if not over:
            return
        slowest = max(batches, key=lambda batch: batch.spent)
        self.stats.rows_ended(len(over), slowest.parts)
        if self.on_rows is not None:
            self.on_rows([row.slot for row in map(unit.rows.__getitem__, over) if row.slot >= 0])

    def _part(self, rows: Sequence[Row], ran: Ran) -> None:
        """Give each of these rows, which have ended, outputs as long as it ran."""
        assert ran.lengths is not None
        for row, outputs in zip(rows, ragged.apart(self.model.info, ran.outputs, ran.lengths), strict=True):
            lease = cast("Lease", row.call)
            place = lease.places[row.index]
            assert place is not None  # it was noted that it has ended
            lease.places[row.index] = (place[0].of_row(outputs), 0)

    def failed(self, unit: Unit, completion: Completion) -> None:
        """A unit has failed: note what its callers hear if none of them can be helped."""
        for row in unit.rows:
            lease = cast("Lease", row.call)
            lease.error, lease.cause = completion.message, completion.cause
        log.debug("unit of %d rows of %s failed: %s", len(unit.rows), self.info.name, completion.message)

    def fail(self, call: Call, error: StarlingError) -> None:
        cast("Lease", call).fail(error)

    def drop(self, drop: Drop, lost: str | None) -> None:
        """A call leaves without an answer. `lost`: why the device is, if it is."""
        lease = cast("Lease", drop.call)
        error = error_of(drop, lease, lost)
        lease.free_ended()  # first: whoever hears of the error may take slots at once
        lease.fail(error)

    def holds_more(self) -> bool:
        """Whether a row has taken more memory between stages, or steps, than any had when this was last called."""
        if self._activations is None or self._activations.row_bytes <= self._row_bytes:
            return False
        self._row_bytes = self._activations.row_bytes
        return True

    # slots

    def free_rows(self, rows: Iterable[Row]) -> None:
        """Give back the slots of those rows that have ended: nothing reads them any more."""
        slots: list[int] = []
        for row in rows:
            if row.state is _ENDED and row.slot >= 0:
                slots.append(row.slot)
                row.slot = -1
        if slots:
            self.give_back(slots)

    def give_back(self, slots: Slots) -> None:
        if self._activations is not None:
            self._activations.let_go(slots)
        self.pool.give_back(slots)
        if self._closing is not None and not self.pool.used:
            self.give_up()

    async def drained(self) -> None:
        """Refuse new calls from now on; return when no slot is in use, or when the engine has given up."""
        if self._closing is None:
            self._closing = self.engine.loop.create_future()
        if self.pool.used and self.engine.refusing is None:
            await asyncio.shield(self._closing)

    def give_up(self) -> None:
        """Whoever waits for this model to drain waits no longer."""
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    def gauges(self) -> Gauges:
        scheduler = self.engine.scheduler
        waiting = scheduler.waiting(self.program)
        return Gauges(
            self.stats,
            pending_rows=waiting,
            waiting={name: scheduler.waiting(self.program, klass) for name, klass in _KLASSES.items()},
            demand_ns={name: scheduler.demand_ns(self.program, klass) for name, klass in _KLASSES.items()},
            oldest_ns=self._oldest_ns(),
            pending_calls=self._pending_calls(),
            preferred=scheduler.preferred(self.program),
            rate=scheduler.rate(self.program),
            slots_used=self.pool.used,
            between=None if self._activations is None else Between(self._activations.rows, self._activations.nbytes),
            regression=scheduler.regression(self.program),
            at_stages=self._at_stages(),
        )

    def _at_stages(self) -> list[tuple[int, int]]:
        """Of a model in stages: rows that wait, and rows that run, at each."""
        if not self._stages:
            return []
        scheduler = self.engine.scheduler
        running = [0] * self._stages
        for unit in scheduler.running:
            if unit.program == self.program:
                running[unit.stage] += len(unit.rows)
        return list(zip(scheduler.waiting_by_stage(self.program), running, strict=True))

    def plan(self) -> Plan:
        """What its batches are planned with; see contract.Plan."""
        scheduler, known = self.engine.scheduler, self.known
        plan = Plan(
            self.program, known.profile.batch_ns, known.origin, scheduler.scale(self.program),
            scheduler.handover_ns(self.program), stages=0 if self._cell else self._stages, cell=self._cell,
        )  # fmt: skip
        control, level = scheduler.control_of(self.program)
        return plan if control is None else replace(plan, loads=control.loads, tables=control.tables, level=level)

    def _oldest_ns(self) -> int:
        """How long the oldest best-effort row that waits has been there; 0 where none waits."""
        arrived = self.engine.scheduler.oldest(self.program, Klass.BEST_EFFORT)
        return 0 if arrived is None else max(0, self.engine.clock() - arrived)

    def _pending_calls(self) -> int:
        """Calls admitted and not yet running."""
        leases = (cast("Lease", call) for call in self.engine.scheduler.calls if call.program == self.program)
        return sum(1 for lease in leases if not any(lease.places) and not lease.runs)

    def statistics(self) -> dict[str, Any]:
        """Triton's numbers, and ours under `starling`: durations in milliseconds, rates per second."""
        gauges = self.gauges()
        return {
            **self.stats.triton(),
            "starling": {
                "queue_length": gauges.pending_rows,
                "arrival_rate": gauges.rate,
                "preferred_batch_size": gauges.preferred,
                "batch_ms": {str(b): ns / 1e6 for b, ns in enumerate(self.known.profile.batch_ns, 1)},
                "regression": {
                    name: ns / 1e6
                    for name, ns in zip(("alpha_ms", "beta_ms", "residual_ms"), gauges.regression, strict=True)
                },
                "classes": gauges.classes(),
                "policy": self.info.batching.policy,
                "reorders": self.engine.scheduler.reorders(self.program),
                "batch_scale": self.engine.scheduler.scale(self.program),
                "handover_ms": self.engine.scheduler.handover_ns(self.program) / 1e6,
                "profile": {**self.known.told(), "idle_batches": self.stats.profiled.as_dict()},
                "beside": dict(self.beside),
                "batches": {f"{worker}:{why}": n for (worker, why), n in sorted(self.stats.batches.items())},
                **self._stage_statistics(gauges.at_stages),
            },
        }

    def _stage_statistics(self, at_stages: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Of a model in stages: rows at each stage, and its batches by size and by operation."""
        stages = [
            {
                "rows_waiting": here,
                "rows_running": there,
                "batches": stats.sizes(),
                "operations": stats.operations(),
            }
            for (here, there), stats in zip(at_stages, self.stats.stages, strict=True)
        ]
        return {"stages": stages} if stages else {}
