"""A unit that has ended, for those of its calls that are traced."""

from __future__ import annotations

from app.contract import CLASSES
from app.engine.device import Completion
from app.engine.served_model import ServedModel
from app.observe.tracing.spans import BatchSpan
from app.observe.tracing.tracer import Tracer
from app.scheduler.types import Unit


def tell_of_unit(tracer: Tracer, served: ServedModel, unit: Unit, completion: Completion, ended: int) -> None:
    """Record the unit, if any of its calls is.

    It began, had it computed until its end: what it cost to hand over counts as waiting, as in `lease.Batch`. Of one
    that failed it is only known when its worker was given it.
    """
    calls = tracer.of(row.call.id for row in unit.rows)
    if not calls:
        return
    ran = completion.ran
    parts = (ran.input_ns, ran.infer_ns, ran.output_ns) if ran is not None else ()
    staged = served.stats.stages and served.executor.steps is None
    tracer.batch_ended(
        BatchSpan(
            served.info,
            number=unit.id,
            worker=unit.worker,
            reason=unit.reason.value,
            operation=unit.operation.value,
            klass=CLASSES[unit.klass],
            rows=len(unit.rows),
            size=unit.size,
            stage=unit.stage if staged else None,
            steps=unit.steps if ran is None else ran.steps,
            started=max(unit.started, ended - sum(parts)) if parts else unit.started,
            ended=ended,
            parts=parts,
            stage_ns=[sum(spent) for spent in ran.stage_parts] if ran is not None and staged else (),
            error="" if ran is not None else completion.message or str(completion.outcome.error),
        ),
        calls,
    )
