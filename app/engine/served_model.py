"""A served model: admits calls and leases slots to them, records what its units return, and reports on itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Any, cast

from app.contract import CLASSES, FinishedBatch, GeneratedText, Model, ModelCall, Times
from app.engine.device import Completion
from app.engine.executor import Executor, Ran, Readers
from app.engine.lease import Intake, Lease, Placed
from app.engine.outputs import note_rows, split_by_length
from app.engine.profiling.profiled_model import ProfiledModel
from app.errors import DeadlineUnreachable, NotReady, QueueFull, StarlingError
from app.observe.metrics import ModelStats
from app.observe.snapshot import ActivationMemory, Gauges, Plan
from app.scheduler.types import LOWEST_PRIORITY, Drop, Klass, Operation, Reason, Refusal, Row, RowState, Unit
from app.values.arrays import check_range

log = logging.getLogger("starling.engine")

_ENDED = RowState.ENDED


class ServedModel(Placed):
    """Implements contract.Served. `stages`: those that run one by one; 0 for a model in one piece, 1 for a recurrent
    model that runs by its cell.
    """

    def __init__(self, model: Model, executor: Executor, program: int, profiled: ProfiledModel, intake: Intake) -> None:
        super().__init__(model, executor, program, intake)
        info, batching = model.info, model.info.batching
        self.klass = CLASSES[batching.default_class]
        self._cell = executor.steps is not None
        self.stages = 1 if self._cell else len(executor.model.stages)
        self.stats = stats = ModelStats(info.name, info.version, self.stages, self.klass)
        #: What clients send and get; the engine uses `model.info`.
        self.info = info if model.front is None else model.front.client_info(info)
        self.profiled, self.state = profiled, intake.scheduler.states[program]
        self.example = profiled.example
        self.finish = stats.call_answered
        self.first_piece, self.next_piece = stats.first_piece, stats.next_piece
        self._row_bytes = 0 if self.activations is None else self.activations.row_bytes
        self._timeout_ns = int(batching.default_timeout_ms * 1e6)
        self._priority = batching.default_priority

    @property
    def untried(self) -> Exception | None:
        """See contract.Served."""
        return None if self.stats.rows else self.profiled.unfit

    # admission

    def has_room(self, klass: Klass, rows: int = 1) -> bool:
        """See contract.Served."""
        if self.drained is not None or self.intake.refusing is not None:
            return False
        queue = self.state.queue
        return queue.waiting[klass] + self.reserved[klass] + rows <= queue.patience[klass].bound

    def admit(self, rows: int, klass: Klass, deadline_ns: int | None = None, priority: int = LOWEST_PRIORITY) -> None:
        """Raise QueueFull, DeadlineUnreachable or NotReady if a call of so many rows is not admitted now; see contract.

        Only work that is served before a call of this class and `priority` counts against its deadline.
        """
        intake = self.intake
        if self.drained is not None:
            raise NotReady(f"model {self.info.name!r} is being unloaded", retry_after_s=1)
        if intake.refusing is not None:
            raise NotReady(intake.refusing, retry_after_s=1)
        now = intake.clock()
        wanted = (rows or 1) + self.reserved[klass]
        refusal = intake.scheduler.admit(self.program, wanted, klass, deadline_ns, now, priority)
        if refusal is not None:
            intake.scheduler.refused(self.program, rows, now, klass)
            raise self._error_of_refusal(refusal, klass)

    def _error_of_refusal(self, refusal: Refusal, klass: Klass) -> StarlingError:
        wait = max(1, ceil(refusal.retry_after_ns / 1e9))
        name = self.info.name
        if refusal.reason is Reason.QUEUE_FULL:
            which = "best-effort queue" if klass is Klass.BEST_EFFORT else "queue"
            most = self.state.queue.patience[klass].bound
            return QueueFull(f"model {name!r}: the {which} of {most} rows is full", retry_after_s=wait)
        # `admit` has answered for a closed program and a lost device before it asked the scheduler
        return DeadlineUnreachable(f"model {name!r}: predicted to end after the call's deadline", retry_after_s=wait)

    def lease(self, asked: ModelCall, arrived_ns: int | None = None) -> Lease:
        """Take slots and write the inputs to them; see contract.Served."""
        intake, read, rows, lengths = self.intake, self.model.read_parameters, asked.rows, asked.lengths
        if read is not None:
            read(asked.parameters or {})
        arrived = intake.clock() if arrived_ns is None else arrived_ns
        timeout_ns = self._timeout_ns if asked.timeout_us is None else asked.timeout_us * 1000
        deadline = arrived + timeout_ns if timeout_ns else None
        end_by = None
        if asked.total_timeout_us is not None:
            end_by = arrived + asked.total_timeout_us * 1000
            deadline = end_by if deadline is None else min(deadline, end_by)
        asked.priority = asked.priority or self._priority
        klass = asked.klass = self.klass if asked.klass is None else asked.klass
        if deadline is not None or not self.has_room(klass, rows):
            self.admit(rows, klass, deadline, asked.priority)
        pool = self.pool
        try:
            slots = pool.take(rows)
        except MemoryError:  # rows of calls that have left are still being copied to the device
            raise QueueFull(f"model {self.info.name!r}: no input slots are free", retry_after_s=1) from None
        try:
            if lengths:
                pool.set_lengths(slots, asked.own_lengths or lengths)
            if read is not None:
                for slot in slots:
                    pool.parameters[slot] = asked.parameters
            for index, values in enumerate(asked.arrays):
                if pool.specs[index].ranged:
                    check_range(pool.specs[index], values)
                pool.write(slots, index, values, lengths)
        except BaseException:
            pool.give_back(slots)
            raise
        self.reserved[klass] += rows
        lease = Lease(self, asked, slots, arrived, deadline)
        lease.end_by = end_by
        return lease

    # units, called by the driver

    def readers(self, unit: Unit, on_loop: Callable[[Callable[[], None]], None]) -> Readers | None:
        """Those of the unit's calls that have an `on_piece`, which get what their rows make while it runs.

        `on_loop` is called on the worker's thread, with what the event loop is to call.
        """
        rows = {row.slot: row for row in unit.rows if cast("Lease", row.call).on_piece is not None}
        return Readers(frozenset(rows), lambda pieces: on_loop(lambda: _give(rows, pieces))) if rows else None

    def unit_ended(self, unit: Unit, completion: Completion, ended: int) -> None:
        """A unit has ended: free the slots of its rows that have ended, and store their outputs, or the error."""
        ran, rows = completion.ran, unit.rows
        self.free_rows(rows)
        if ran is None:
            self._failed(unit, completion)
            return
        times = (ran.input_ns, ran.infer_ns, ran.output_ns)
        klass = unit.klass
        if not self.stages:
            batch = FinishedBatch(ran.outputs, ended, times, len(rows), unit.worker, unit.reason)
            for position, row in enumerate(rows):
                lease: Lease = row.call  # type: ignore[assignment]  # a cast would be a function call per row
                places = lease.places
                places[0 if len(places) == 1 else row.index] = (batch, position)
            self.stats.whole[klass].ran(unit.worker, unit.reason, "", len(rows), times)
        else:
            rows = self._stages_ran(unit, ran, ended, times, klass)
        if self.model.writes and rows:
            self.stats.wrote(*(int(counts.sum()) for counts in ran.outputs[-2:]))  # see tasks.task_specs.WRITTEN
        if ran.lengths is not None:
            split_by_length(rows, self.model.info, ran.outputs, ran.lengths)

    def _failed(self, unit: Unit, completion: Completion) -> None:
        for row in unit.rows:
            cast("Lease", row.call).failure = completion
        log.debug("unit of %d rows of %s failed: %s", len(unit.rows), self.info.name, completion.message)

    def _stages_ran(self, unit: Unit, ran: Ran, ended: int, times: Times, klass: Klass) -> list[Row]:
        """Record a unit of some stages, or of steps of a cell. Returns the rows that have ended with it."""
        over: Sequence[int] = ran.ended
        if not self._cell and unit.stage + ran.steps == self.stages:
            over = range(len(unit.rows))
        batches = note_rows(unit, ran, ended, times, over)
        for stage, spent in enumerate(ran.stage_parts, unit.stage):
            operation = unit.operation if stage == unit.stage else Operation.CONTINUE  # later stages change no batch
            self.stats.stages[stage][klass].ran(unit.worker, unit.reason, operation, len(unit.rows), spent)
        if over:
            slowest = max(batches, key=lambda batch: sum(batch.times))
            self.stats.whole[klass].ran(unit.worker, unit.reason, unit.operation, len(over), slowest.times)
        return [unit.rows[position] for position in over]

    def free_rows(self, rows: Iterable[Row]) -> None:
        """See Placed."""
        slots: list[int] = []
        for row in rows:
            if row.state is _ENDED and row.slot >= 0:
                slots.append(row.slot)
                row.slot = -1
        if slots:
            if self.activations is not None:
                self.activations.release(slots)
            self.pool.give_back(slots)

    def drop(self, drop: Drop) -> None:
        """The scheduler has dropped a call: answer it with the error."""
        lease = cast("Lease", drop.call)
        error = lease.error_of(drop)
        self.free_rows(lease.rows)  # before `fail`, whose waiter may take slots at once
        lease.fail(error)

    def takes_more_memory(self) -> bool:
        """Whether the largest activation of a row has grown since the last call."""
        if self.activations is None or self.activations.row_bytes <= self._row_bytes:
            return False
        self._row_bytes = self.activations.row_bytes
        return True

    # what it tells of itself

    def gauges(self) -> Gauges:
        """The state of the model at this moment."""
        scheduler, state, profiled = self.intake.scheduler, self.state, self.profiled
        activations, cell = self.activations, self._cell
        estimates, control = state.estimates, state.estimates.control
        loads, tables = ((), ()) if control is None else (control.loads, control.tables)
        stages = 0 if cell else self.stages
        return Gauges(
            self.stats,
            waiting={name: state.queue.waiting[klass] for name, klass in CLASSES.items()},
            demand_ns={name: state.queue.demand_ns[klass] for name, klass in CLASSES.items()},
            oldest_ns=self._oldest_ns(),
            pending_calls=self._pending_calls(),
            preferred=scheduler.policies[self.program].target(estimates),
            rate=estimates.arrivals.rate,
            slots_used=self.pool.used,
            activations=None
            if activations is None
            else ActivationMemory(len(activations), activations.nbytes, activations.reserved),
            regression=(estimates.line.alpha, estimates.line.beta, estimates.line.residual),
            at_stages=self._at_stages(),
            workers=len(scheduler.device.workers),
            program=self.program,
            scale=estimates.latency[0].speed.scale,
            level=-1 if control is None else estimates.level,
            plan=Plan(stages, cell, profiled.profile.batch_ns, profiled.origin, loads, tables),
        )

    def _oldest_ns(self) -> int:
        """How long the oldest best-effort row has waited; 0 if none waits."""
        arrived = self.intake.scheduler.oldest(self.program, Klass.BEST_EFFORT)
        return 0 if arrived is None else max(0, self.intake.clock() - arrived)

    def _pending_calls(self) -> int:
        """Calls admitted and not yet running."""
        leases = (cast("Lease", call) for call in self.intake.scheduler.calls if call.program == self.program)
        return sum(1 for lease in leases if not any(lease.places) and not lease.runs)

    def _at_stages(self) -> list[tuple[int, int]]:
        """For a model in stages: (waiting rows, running rows) by stage."""
        if not self.stages:
            return []
        program = self.program
        running = [0] * self.stages
        for unit in self.intake.scheduler.units.values():
            if unit.program == program:
                running[unit.stage] += len(unit.rows)
        return list(zip(self.intake.scheduler.waiting_by_stage(program), running, strict=True))

    def statistics(self) -> dict[str, Any]:
        """Triton's statistics, and ours under `starling`: durations in milliseconds, rates per second."""
        gauges, stats, profiled, estimates = self.gauges(), self.stats, self.profiled, self.state.estimates
        latency, policy = estimates.latency[0], self.intake.scheduler.policies[self.program]
        regression = zip(("alpha_ms", "beta_ms", "residual_ms"), gauges.regression, strict=True)
        return {
            **stats.triton(),
            "starling": {
                "queue_length": sum(gauges.waiting.values()),
                "arrival_rate": gauges.rate,
                "preferred_batch_size": gauges.preferred,
                "batch_ms": {str(b): ns / 1e6 for b, ns in enumerate(profiled.profile.batch_ns, 1)},
                "regression": {name: ns / 1e6 for name, ns in regression},
                "classes": gauges.classes(),
                "policy": self.info.batching.policy,
                "reorders": policy.reorders(estimates),
                "batch_scale": latency.speed.scale,
                "slowdown_scale": latency.speed.slower,
                "handover_ms": latency.handover.ns / 1e6,
                "profile": {**profiled.report(), "idle_batches": stats.profiled.as_dict()},
                "beside": dict(profiled.slowdowns),
                "batches": {f"{worker}:{why}": n for (worker, why), n in sorted(stats.batches.items())},
                **self._stage_statistics(gauges.at_stages),
            },
        }

    def _stage_statistics(self, at_stages: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """For a model in stages: rows at each stage, and its batches by size and operation."""
        stages = [
            {
                "rows_waiting": waiting,
                "rows_running": running,
                "batches": {str(rows): parts.count for rows, parts in stats.by_size().items()},
                "operations": stats.operations(),
            }
            for (waiting, running), stats in zip(at_stages, self.stats.stages, strict=True)
        ]
        return {"stages": stages} if stages else {}


def _give(rows: Mapping[int, Row], pieces: Mapping[int, GeneratedText]) -> None:
    """Give each call what its rows have written. Both are by slot."""
    for slot, piece in pieces.items():
        row = rows[slot]
        lease = cast("Lease", row.call)
        if lease.alive and lease.on_piece is not None:
            lease.began()
            lease.on_piece(row.index, piece)
