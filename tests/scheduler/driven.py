"""A Scheduler driven by hand: one input, one Step."""

from __future__ import annotations

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Outcome, Program, Step, Unit

from .world import make_device, make_program


def scheduler_of(*programs: Program, device: DeviceSpec | None = None) -> Scheduler:
    """One worker of eight rows and one program, unless told otherwise."""
    scheduler = Scheduler(device or make_device(8))
    for program in programs or (make_program(),):
        scheduler.add_program(program, 0)
    return scheduler


def feed(scheduler: Scheduler, *calls: Call, now: int = 0) -> Step:
    """The Step when all of these calls have come."""
    for call in calls:
        scheduler.submit(call, now)
    return scheduler.step(now)


def finish(scheduler: Scheduler, unit: Unit, now: int = 0, **outcome: object) -> Step:
    """The Step when a unit has ended."""
    scheduler.finished(Outcome(unit.id, **outcome), now)  # type: ignore[arg-type]
    return scheduler.step(now)


def calls_of(unit: Unit) -> list[int]:
    return [row.call.id for row in unit.rows]
