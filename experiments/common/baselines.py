"""What REEF's paper compares itself with, as an order and a share of the scheduler's own interfaces.

`streams`: no classes; by priority and arrival, on all workers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.scheduler.forming.order import Order
from app.scheduler.forming.share import Share
from app.scheduler.policies import Offer
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level, ReadySet
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, Klass, Row, Unit


class ByArrival(Order):
    """By priority and arrival, whatever the class and the model."""

    def rank(self, row: Row) -> tuple[int, ...]:
        return row.order

    def level(self, row: Row) -> Level:
        return (Klass.REALTIME, row.call.priority)

    def next(self, held: Collection[ReadySet], now: int) -> ReadySet | None:
        return self._table.next_set(held, self.rank)


class Unlimited(Share):
    """All rows may have the whole device."""

    def room(self, state: ProgramState, klass: Klass = Klass.REALTIME) -> int:
        return super().room(state)

    def for_realtime(self, usable: Sequence[int]) -> Sequence[int]:
        return usable

    def limit_best_effort(self, offer: Offer, now: int) -> None:
        pass

    def steps(self, steps: int, size: int, stage: int, state: ProgramState, now: int) -> int:
        return steps

    def preempts(self, unit: Unit) -> bool:
        return False


def scheduler_of(name: str, device: DeviceSpec) -> Scheduler:
    """The scheduler of a device: `reef` is the product's own, `streams` the baseline."""
    return Scheduler(device, ByArrival, Unlimited) if name == "streams" else Scheduler(device)
