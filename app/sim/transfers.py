"""Copies of rows to the device, beside the units: one after another, each from its row's arrival on (Ebird, section V).

A unit computes when the last of its rows has been copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from app.scheduler.types import Call, Unit


@dataclass(slots=True, eq=False)
class Copied(Call):
    """A call with the time at which its row has been copied to the device."""

    copied: int = 0


class CopyEngine:
    """Copies rows one after another in order of arrival, `row_ns` each."""

    __slots__ = ("_free", "_row_ns")

    def __init__(self, row_ns: int) -> None:
        self._row_ns = row_ns
        self._free = 0  # when all queued copies have ended

    def arrive(self, now: int) -> int:
        """Queue the copy of a row that arrives now; returns when it will have been copied."""
        self._free = max(self._free, now) + self._row_ns
        return self._free

    @staticmethod
    def copied(unit: Unit) -> int:
        """The time at which the last row of a unit has been copied. All its calls must be `Copied`."""
        return max(cast(Copied, row.call).copied for row in unit.rows)
