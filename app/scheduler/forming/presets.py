"""The presets of `--classes`, by name: `reef`, and the baselines that REEF's paper compares itself with."""

from __future__ import annotations

from dataclasses import replace

from app.scheduler.forming.gate import Gate
from app.scheduler.forming.reef import Reef
from app.scheduler.rows.ready import Level, ReadySet, rank
from app.scheduler.types import DeviceSpec, Row


class Seq(Gate):
    """One unit at a time, real-time rows first. Rows that have begun pass all their stages before others begin."""

    @classmethod
    def limit(cls, device: DeviceSpec) -> DeviceSpec:
        return replace(device, max_running=1, push_depth=1)

    def rank(self, ready: ReadySet, row: Row) -> tuple[int, ...]:
        return (row.stage == 0, *rank(row))

    def level(self, row: Row) -> Level:
        return (0, 0)


PRESETS: dict[str, type[Gate]] = {"reef": Reef, "seq": Seq, "streams": Gate}


def preset_class(name: str) -> type[Gate]:
    """The preset of this name. Raises ValueError that lists the names there are."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ValueError(f"classes: expected one of {', '.join(PRESETS)}, got {name!r}") from None
