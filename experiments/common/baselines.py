"""What REEF's paper compares itself with, as an order and a share of the scheduler's own interfaces.

    seq      one unit at a time, real time first; what has begun passes all its stages before others begin
    streams  no classes: by priority and arrival, on all workers

`python -m experiments.common.baselines NAME serve ...` is `starling serve ...` with one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

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
        """The set whose first row ranks best."""
        return min((ready for ready in self._table.nonempty if ready not in held), key=self._rank_of, default=None)


class Begun(ByArrival):
    """What has begun, then by class, priority and arrival. Nothing takes precedence over what runs."""

    def rank(self, row: Row) -> tuple[int, ...]:
        return (row.stage == 0, row.call.klass, *row.order)

    def level(self, row: Row) -> Level:
        return (Klass.REALTIME, 0)


class Unlimited(Share):
    """All rows may have the whole device."""

    def room(self, state: ProgramState) -> int:
        return self._ledger.room(state)

    def for_realtime(self, usable: Sequence[int]) -> Sequence[int]:
        return usable

    def _limit_by_rules(self, offer: Offer, now: int) -> None:
        pass

    def steps(self, steps: int, unit: Unit, state: ProgramState) -> int:
        return steps

    def preempts(self, unit: Unit) -> bool:
        return False


def scheduler_of(name: str, device: DeviceSpec) -> Scheduler:
    """The scheduler of a device: `reef` is the product's own. Raises KeyError for another name."""
    if name == "reef":
        return Scheduler(device)
    if name == "seq":
        device = replace(device, max_running=1, push_depth=1)
    return Scheduler(device, {"seq": Begun, "streams": ByArrival}[name], Unlimited)


def command_of(name: str) -> tuple[str, ...]:
    """The command that runs `starling` with a scheduler of this name; () for the product's own."""
    return () if name == "reef" else (sys.executable, "-m", "experiments.common.baselines", name)


def main(arguments: Sequence[str]) -> None:
    """Run the `starling` command with a baseline."""
    from app import engine_setup
    from app.cli.commands import main as command

    name, *rest = arguments
    setattr(engine_setup, "Scheduler", partial(scheduler_of, name))  # noqa: B010  # it is a class there
    sys.argv = ["starling", *rest]
    command()


if __name__ == "__main__":
    main(sys.argv[1:])
