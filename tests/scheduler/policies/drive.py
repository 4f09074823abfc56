"""Drives a Scheduler by hand-made arrivals; batches take their predicted times. For the papers' worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, Outcome, Program, Unit

from ..world import make_call


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


def drive(device: DeviceSpec, program: Program, requests: Sequence[Request]) -> Ran:
    """All that happens at one time is told before one step, ends of units first. Workers run one unit at a time."""
    scheduler = Scheduler(device)
    scheduler.add_program(program, 0)
    left = {number: request.steps for number, request in enumerate(requests)}  # steps, of each at its cell
    ended = [-1] * len(requests)
    ran = Ran(ended, [], [])
    ends: list[tuple[int, int, Unit]] = []
    wakes: set[int] = set()
    coming = sorted(range(len(requests)), key=lambda number: requests[number].at)
    while ends or coming or wakes:
        times = [end for end, _, _ in ends[:1]] + [requests[number].at for number in coming[:1]] + sorted(wakes)[:1]
        now = min(times)
        wakes.discard(now)
        while ends and ends[0][0] == now:
            unit = heappop(ends)[2]
            scheduler.finished(Outcome(unit.id, None, unit.predicted, _over(unit, program, left, requests)), now)
        while coming and requests[coming[0]].at == now:
            number = coming.pop(0)
            request = requests[number]
            scheduler.submit(make_call(number, program=program.id, arrived=now, lengths=(request.length,)), now)
        step = scheduler.step(now)
        for call in step.done:
            ended[call.id] = now
        for unit in step.start:
            ran.units.append(unit)
            heappush(ends, (now + unit.predicted, unit.id, unit))
        if step.wake_at is not None:
            wakes.add(step.wake_at)
    ran.latency = [end - request.at for end, request in zip(ended, requests, strict=True)]
    return ran


def _over(unit: Unit, program: Program, left: dict[int, int], requests: Sequence[Request]) -> tuple[int, ...]:
    """Positions of the rows that have run their last step of a cell."""
    if not program.stages[unit.stage].repeats:
        return ()
    over = []
    for position, row in enumerate(unit.rows):
        left[row.call.id] -= 1
        if not left[row.call.id]:
            left[row.call.id] = requests[row.call.id].steps  # the next cell
            over.append(position)
    return tuple(over)
