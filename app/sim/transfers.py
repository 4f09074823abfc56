"""Copies of inputs to the device and of outputs back: left out, part of each unit, or beside the units.

    none      batch times are taken as they are
    serial    a unit of b rows takes T(b) + copy(b): nothing else runs on the device while it copies
    overlap   units run while inputs are copied. A row's copy starts when the row arrives, on a copy engine that takes
              one row after another; a unit computes once the last of its rows has been copied (Ebird, section V)

Copy times are the profile's `transfer_ms`, input and output together. With `overlap` each row costs copy(1), since it
is copied alone; the output's part of that comes before the unit, not after it, so that a lone row takes as long either
way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import Call, Unit

TRANSFERS = ("none", "overlap", "serial")


@dataclass(slots=True, eq=False)
class Copied(Call):
    """A call that knows when its row has been copied to the device."""

    copied: int = 0


class CopyEngine:
    """Copies rows one after another, in order of arrival. `row_ns`: how long one takes."""

    __slots__ = ("_free", "_row_ns")

    def __init__(self, row_ns: int) -> None:
        self._row_ns = row_ns
        self._free = 0  # when it has copied all it was given

    def arrive(self, now: int) -> int:
        """A row arrives; returns when it will have been copied."""
        self._free = max(self._free, now) + self._row_ns
        return self._free

    @staticmethod
    def copied(unit: Unit) -> int:
        """When the last row of a unit has been copied. All its calls are `Copied`."""
        return max(cast(Copied, row.call).copied for row in unit.rows)


def copy_ns(profile: ModelProfile) -> tuple[int, ...]:
    """Copy time in ns by batch size, from 1 to the profile's largest. Raises ValueError where it has none."""
    if not profile.transfer_ns:
        raise ValueError("transfer_ms: the profile has no copy times, which transfers that overlap or are serial need")
    return profile.transfer_ns


def with_copies(profile: ModelProfile) -> ModelProfile:
    """The profile with its copies in its batch times. Units that run at once slow copies as they slow the rest."""
    copies = copy_ns(profile)

    def longer(times: tuple[int, ...]) -> tuple[int, ...]:
        alone = zip(times, profile.batch_ns, copies, strict=True)
        return tuple(round(time * (batch + copy) / batch) for time, batch, copy in alone)

    concurrency = {units: longer(times) for units, times in profile.concurrency_ns.items()}
    return replace(profile, batch_ns=longer(profile.batch_ns), concurrency_ns=concurrency)
