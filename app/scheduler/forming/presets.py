"""The presets of `--classes`, by name: `reef`, and the baselines that REEF's paper compares itself with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.scheduler.forming.gate import Gate
from app.scheduler.forming.reef import UNBOUNDED, Reef
from app.scheduler.forming.workers import Workers
from app.scheduler.rows.lanes import Level, rank
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import ReadySet
from app.scheduler.types import DeviceSpec, Row, Unit


class ReefN(Reef):
    """REEF-N, for devices that take nothing back: units are counted in place of their time.

    Each worker holds as many as its queue takes, each of one stage or step. None is preempted, and none runs beside
    real-time work.
    """

    fills = False
    overtakes = False

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        super().__init__(replace(device, withdraws=False), ledger, workers)
        self._budget_ns = UNBOUNDED

    def arrive(self, program: int, at: int) -> None:
        """Nothing is expected."""

    def steps(self, steps: int, rows: Sequence[Row], size: int, stage: int, state: ProgramState, now: int) -> int:
        return 1

    def preempts(self, unit: Unit) -> bool:
        return False

    def _slows_little(self, programs: Sequence[int], realtime: list[Unit]) -> bool:
        return False


class Seq(Gate):
    """One unit at a time, real-time ones first; what has begun passes all its stages before others begin."""

    @classmethod
    def limit(cls, device: DeviceSpec) -> DeviceSpec:
        return replace(device, max_running=1, push_depth=1)

    def rank(self, ready: ReadySet, row: Row) -> tuple[int, ...]:
        return (row.stage == 0, *rank(row))

    def level(self, row: Row) -> Level:
        return (0, 0)


PRESETS: dict[str, type[Gate]] = {"reef": Reef, "reef_n": ReefN, "seq": Seq, "streams": Gate}


def preset_class(name: str) -> type[Gate]:
    """Raises ValueError that names the presets there are."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ValueError(f"classes: expected one of {', '.join(PRESETS)}, got {name!r}") from None
