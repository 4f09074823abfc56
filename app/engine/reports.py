"""Reports on one served model: gauges for a scrape and the live page, and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from app.contract import CLASSES, ModelInfo
from app.engine.lease import Lease, Placed
from app.engine.profiling.profiled_model import ProfiledModel
from app.observe.metrics import ModelStats
from app.observe.snapshot import ActivationMemory, Gauges, Plan
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import Klass


class Reported(Placed):
    """What a served model tells of itself.

    `info`: as clients see it. `stages`: those that run one by one; 0 for a model in one piece, 1 for a recurrent model
    that runs by its cell.
    """

    info: ModelInfo
    stats: ModelStats
    profiled: ProfiledModel
    state: ProgramState
    stages: int

    def gauges(self) -> Gauges:
        """The state of the model at this moment."""
        scheduler, state, profiled = self.intake.scheduler, self.state, self.profiled
        activations, cell = self.executor.activations, self.executor.steps is not None
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
            slots_used=self.executor.pool.used,
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
