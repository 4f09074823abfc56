"""What a policy is offered, made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from app.scheduler.policies import Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.rows.ready import LengthWindow
from app.scheduler.types import DeviceSpec, PolicySpec, Program, Unit, WorkerSpec

_FOREVER = 1 << 62


@dataclass
class MadeUp:
    """What an Offer answers, on a device with room for all and rows without deadlines."""

    waiting: int
    rows: int
    full: int
    idle: Sequence[int]
    estimates: Estimates  # of its program
    max_delay: int = 0
    oldest_at: int = 0
    due_at: int = _FOREVER
    running_and_free: tuple[int, int] = (1, 1)
    stage: int = 0
    window: LengthWindow | None = None
    around: Any = None  # of a program with stages
    beside: Sequence[Unit] = ()
    cell: bool = False
    state: Any = field(init=False)

    def __post_init__(self) -> None:
        batches = None if self.around is None else self.around
        self.state = SimpleNamespace(
            program=Program(1, "m", policy=PolicySpec(max_delay_ns=self.max_delay)),
            batches=batches,
            estimates=self.estimates,
        )
        self.usable = range(len(self.idle))
        self.room = _FOREVER
        self.ready = SimpleNamespace(key=(1, 0, 0), count=self.waiting, started=0)
        self.workers = SimpleNamespace(busy=len(self.beside), most=2)  # of the device
        self.ledger = SimpleNamespace(deadlines=SimpleNamespace(heap=[]))

    def oldest(self) -> int:
        return self.oldest_at

    def due(self, now: int) -> int:
        return self.due_at

    def free(self) -> tuple[int, int]:
        return self.running_and_free

    def capacities(self) -> Sequence[int]:
        return self.idle

    def by_length(self) -> LengthWindow | None:
        return self.window

    def others(self) -> Sequence[Unit]:
        return self.beside

    def neighbours(self) -> Any:
        return self.around or SimpleNamespace(batch=None)

    def shared(self) -> bool:
        return False


def estimates_of(**known: Any) -> Estimates:
    """Estimates of a program of which only this is known."""
    made = Estimates(Program(1, "m"), DeviceSpec((WorkerSpec(1),)), 0)
    for name, value in known.items():
        setattr(made, name, value)
    return made


def offer_of(
    waiting: int, rows: int, full: int, idle: Sequence[int] = (8,), estimates: Estimates | None = None, **more: Any
) -> Offer:
    return cast("Offer", MadeUp(waiting, rows, full, idle, estimates or estimates_of(), **more))
