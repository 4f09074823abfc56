"""Copies of inputs to the device and of outputs back: ignored, part of each unit, or beside the units.

    none      copies are ignored, or are part of the batch times already
    serial    a unit of b rows takes T(b) + copy(b): the device does nothing else while it copies
    overlap   inputs are copied while units run. A row's copy starts when the row arrives, on a copy engine that copies
              one row after another; a unit computes when the last of its rows has been copied (Ebird, section V)

Copy times are the profile's `transfer_ms`, input and output together. With `overlap` each row takes copy(1), because it
is copied alone. The output's part is counted before the unit, so that a single row takes as long in both modes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import Call, Unit

TRANSFERS = ("none", "overlap", "serial")


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


def copy_ns(profile: ModelProfile) -> tuple[int, ...]:
    """Copy times in ns by batch size. Raises ValueError if the profile has none."""
    if not profile.transfer_ns:
        raise ValueError("transfer_ms: the profile has no copy times, which transfers that overlap or are serial need")
    return profile.transfer_ns


def with_copies(profile: ModelProfile) -> ModelProfile:
    """The profile with copies added to its batch times. Units at once slow down copies as they slow down the rest."""
    copies = copy_ns(profile)

    def longer(times: tuple[int, ...]) -> tuple[int, ...]:
        alone = zip(times, profile.batch_ns, copies, strict=True)
        return tuple(round(time * (batch + copy) / batch) for time, batch, copy in alone)

    concurrency = {units: longer(times) for units, times in profile.concurrency_ns.items()}
    return replace(profile, batch_ns=longer(profile.batch_ns), concurrency_ns=concurrency)
