"""REEF-N, a baseline of REEF's paper for devices that take nothing back, as one more preset of the scheduler's."""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.forming.reef import UNBOUNDED, Reef
from app.scheduler.forming.workers import Workers
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import DeviceSpec, Row, Unit


class ReefN(Reef):
    """Units are counted in place of their time: each worker holds as many as its queue takes, of one stage or step.

    None is preempted, and none runs beside real-time work.
    """

    fills = False
    overtakes = False

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        super().__init__(device, ledger, workers)
        self._budget_ns = UNBOUNDED

    def arrive(self, program: int, at: int) -> None:
        """Nothing is expected."""

    def steps(self, steps: int, rows: Sequence[Row], size: int, stage: int, state: ProgramState, now: int) -> int:
        return 1

    def preempts(self, unit: Unit) -> bool:
        return False

    def _slows_little(self, programs: Sequence[int], realtime: list[Unit]) -> bool:
        return False
