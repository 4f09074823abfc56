"""A node of a simulation: one replica, with its scheduler, its device, and a front if that is simulated."""

from __future__ import annotations

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Program, Unit

from .simulated_device import SimulatedDevice
from .simulated_front import SimulatedFront

PROGRAM = 1  # the id of the one program of a node


class Node:
    """One replica. `unanswered`: requests sent to it and not yet answered. `front`: the simulated HTTP front; None if
    reading and answering take no time.

    `launch_ns`: what a unit costs beyond computing: to hand it over, launch it and report its end. It is simulated as a
    delay before the unit computes, which makes no difference to the scheduler. A unit handed to an idle worker starts
    that much later. The launch of a unit pushed behind a running one overlaps with that: it starts when its launch is
    over and the unit before it has ended.
    """

    __slots__ = (
        "armed", "cells", "decodes", "device", "due", "front", "front_due", "index", "last", "launch_ns",
        "launching", "scheduler", "submitted", "timer", "touched", "unanswered",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        program: Program,
        device: SimulatedDevice,
        launch_ns: int = 0,
        front: SimulatedFront | None = None,
    ) -> None:
        scheduler.add_program(program, 0)
        self.scheduler = scheduler
        self.device = device
        self.last = len(program.stages) - 1
        self.cells = frozenset(number for number, stage in enumerate(program.stages) if stage.repeats)
        self.decodes = program.one_unit
        self.launch_ns = launch_ns
        self.front = front
        self.front_due: int | None = None  # `front.due` when its event was last scheduled
        self.submitted = False  # the front has submitted a request since the last step
        self.launching: list[tuple[int, int, Unit]] = []  # units handed over: a heap of (when launched, unit id, unit)
        self.index = 0
        self.due: int | None = None  # `device.due` when its event was last scheduled
        self.timer: int | None = None  # when the scheduler wants a step
        self.armed: int | None = None  # when the wake event is scheduled: never after `timer`
        self.touched = False  # it has had an input since its last step
        self.unanswered = 0

    def launched_at(self, unit: Unit, now: int) -> int:
        """When a unit that is handed over now is on the device. A subclass may add the time of copies."""
        return now + self.launch_ns

    def has_more(self, unit: Unit) -> bool:
        """Whether rows of a unit that ends may have a stage or step left, which its worker then runs by itself."""
        return unit.stage in self.cells or unit.stage < self.last


def continues(ended: Unit, unit: Unit) -> bool:
    """Whether a worker would have run `unit` by itself after the one that ended: without hand-over, for the same rows
    or for those of them that are left.
    """
    if unit.worker != ended.worker or len(unit.rows) > len(ended.rows):
        return False
    before = set(map(id, ended.rows))
    return all(id(row) in before for row in unit.rows)
