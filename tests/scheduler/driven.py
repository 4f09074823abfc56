"""A Scheduler driven by hand: one input, one Step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.scheduler.estimates.profile import Profile
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Outcome, Program, Stage, Step, Unit

from .world import Arrival, Trace, World, make_device, make_program

MS = 1_000_000


def scheduler_of(*programs: Program, device: DeviceSpec | None = None) -> Scheduler:
    """One worker of eight rows and one program, unless told otherwise."""
    scheduler = Scheduler(device or make_device(8))
    for program in programs or (make_program(),):
        scheduler.add_program(program, 0)
    return scheduler


def serving(*programs: Program) -> Scheduler:
    """One worker of four rows, which goes on by itself from step to step and from stage to stage."""
    return scheduler_of(*programs, device=make_device(4, multi_step=True))


def writer(ident: int) -> Program:
    """A model that writes texts, one after another, at 2 ms a step."""
    cell = Stage(Profile((2 * MS,)), repeats=True)
    return make_program(ident, stages=(cell,), policy="late", max_batch=1)


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


# The papers' worked examples: calls of one row each, whose batches take their predicted times.


@dataclass(frozen=True)
class Request:
    """A call of one row. `steps`: at each cell; `length`: what batch times depend on."""

    at: int
    steps: int = 1
    length: int = 0


@dataclass
class Ran:
    """When each request ended, and all units in the order in which they began."""

    ended: list[int]
    latency: list[int]
    units: list[Unit]

    @property
    def mean(self) -> float:
        return sum(self.latency) / len(self.latency)


def drive(device: DeviceSpec, program: Program, requests: Sequence[Request], *, together: bool = False) -> Ran:
    """`together`: all that happens at one time is told before one step, ends of units too."""
    arrivals = tuple(Arrival(one.at, lengths=(one.length,), steps=one.steps) for one in requests)
    world = World(Trace(device, (program,), arrivals, together=together)).run()
    ended = [world.left[number] for number in range(len(requests))]
    return Ran(ended, [end - one.at for end, one in zip(ended, requests, strict=True)], world.units)
