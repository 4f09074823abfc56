"""What a policy is offered, made up."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from app.scheduler.policies import Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import DeviceSpec, PolicySpec, Program, Unit, WorkerSpec

_FOREVER = 1 << 62


def estimates_of(**known: Any) -> Estimates:
    """Estimates of a program of which only this is known."""
    made = Estimates(Program(1, "m"), DeviceSpec((WorkerSpec(1),)), 0)
    for name, value in known.items():
        setattr(made, name, value)
    return made


def offer_of(
    waiting: int, rows: int, full: int, idle: Sequence[int] = (8,), estimates: Estimates | None = None, *,
    max_delay: int = 0, oldest_at: int = 0, due_at: int = _FOREVER, running_and_free: tuple[int, int] = (1, 1),
    stage: int = 0, around: Any = None, beside: Sequence[Unit] = (),
) -> Offer:  # fmt: skip
    """On a device with room for all and rows without deadlines. `around`: of a program with stages."""
    program = Program(1, "m", policy=PolicySpec(max_delay_ns=max_delay))
    made = SimpleNamespace(
        rows=rows, full=full, stage=stage, cell=False, room=_FOREVER, usable=range(len(idle)),
        state=SimpleNamespace(program=program, batches=around, estimates=estimates or estimates_of()),
        ready=SimpleNamespace(key=(1, 0, 0), count=waiting, started=0),
        workers=SimpleNamespace(busy=len(beside), most=2),
        ledger=SimpleNamespace(deadlines=SimpleNamespace(heap=[])),
        oldest=lambda: oldest_at, due=lambda now: due_at, free=lambda: running_and_free, capacities=lambda: idle,
        by_length=lambda: None, others=lambda: beside, shared=lambda: False,
        neighbours=lambda: around or SimpleNamespace(batch=None),
    )  # fmt: skip
    return cast("Offer", made)
