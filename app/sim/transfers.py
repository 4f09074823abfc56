"""Copies of inputs to the device and of outputs back: left out, part of each unit, or beside the units.

    none      batch times are taken as they are
    serial    a unit of b rows takes T(b) + copy(b): nothing else runs on the device while it copies
    overlap   units run while inputs are copied. A row's copy starts when the row arrives, on a copy engine that takes
              one row after another; a unit computes once the last of its rows has been copied (Ebird, section V)

Copy times are the profile's key `transfer_ms`: milliseconds by batch size, input and output together, sizes left out
interpolated. With `overlap` each row costs copy(1), since it is copied alone; the output's part of that comes before
the unit, not after it, so that a lone row takes as long either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from app.scheduler.profile import ModelProfile
from app.scheduler.types import Call, Unit

TRANSFERS = ("none", "overlap", "serial")

_MS = 1_000_000  # nanoseconds


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
    """Copy time in ns by batch size, from 1 to the profile's largest.

    Raises ValueError where the profile's `transfer_ms` is missing, is no table, or does not reach the largest batch.
    """
    given = profile.extra.get("transfer_ms")
    if given is None:
        raise ValueError("transfer_ms: the profile has no copy times, which transfers that overlap or are serial need")
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"transfer_ms: expected copy times by batch size, got {given!r}")
    known = {_size(name): _time(name, value) for name, value in given.items()}
    sizes = sorted(known)
    if sizes[0] != 1 or sizes[-1] < profile.max_batch:
        raise ValueError(
            f"transfer_ms: expected sizes from 1 to max_batch, {profile.max_batch}, got {sizes[0]} to {sizes[-1]}"
        )
    times = np.interp(np.arange(1, profile.max_batch + 1), sizes, [known[size] for size in sizes])
    return tuple(np.rint(times * _MS).astype(np.int64).tolist())


def with_copies(profile: ModelProfile) -> ModelProfile:
    """The profile with its copies in its batch times. Units that run at once slow copies as they slow the rest."""
    copies = copy_ns(profile)

    def longer(times: tuple[int, ...]) -> tuple[int, ...]:
        alone = zip(times, profile.batch_ns, copies, strict=True)
        return tuple(round(time * (batch + copy) / batch) for time, batch, copy in alone)

    concurrency = {units: longer(times) for units, times in profile.concurrency_ns.items()}
    return replace(profile, batch_ns=longer(profile.batch_ns), concurrency_ns=concurrency)


def _size(name: Any) -> int:
    if not (isinstance(name, str) and name.isascii() and name.isdigit() and 0 < int(name) < 1e6):
        raise ValueError(f"transfer_ms.{name}: expected a batch size of at least 1, got {name!r}")
    return int(name)


def _time(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"transfer_ms.{name}: expected milliseconds of at least 0, got {value!r}")
    return float(value)
