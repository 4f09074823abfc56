"""What follows of a profile for rows of one length, and for a worker that runs batches one after another; and profiles
of made-up devices.
"""

from __future__ import annotations

from dataclasses import replace

from app.scheduler.estimates.profile import MS, Profile
from app.scheduler.estimates.profile_format import LARGEST_MS


def linear(fixed_ms: float, row_ms: float, max_batch: int) -> Profile:
    """A made-up device: b rows take `fixed_ms` + b x `row_ms`. Raises ValueError for times below 1 ns."""
    least, most = fixed_ms + row_ms, fixed_ms + row_ms * max_batch
    if not (fixed_ms >= 0 and row_ms >= 0 and least * MS > 0.5 and most <= LARGEST_MS):  # nor NaN
        raise ValueError(f"linear: expected a time above 0 and no negative part, got {fixed_ms:g}+{row_ms:g}b")
    times = tuple(round((fixed_ms + row_ms * size) * MS) for size in range(1, max_batch + 1))
    return Profile(times, model="linear", device=f"{fixed_ms:g}+{row_ms:g}b ms")


def occupied_ns(profile: Profile) -> tuple[int, ...]:
    """By size: how long a batch alone occupies its worker, with hand-over."""
    return tuple(time + (profile.handover_ns or 0) * len(profile.parts) for time in profile.batch_ns)


def peak_at(profile: Profile, length: float, steps: float = 0) -> float:
    """Rows per second of the best size, for rows of one length. In a cell they make `steps` steps, or `length`."""
    return max(size * 1e9 / time for size, time in enumerate(_whole(profile, length, steps or length), 1))


def at_length(profile: Profile, length: int) -> Profile:
    """The profile of rows of one length, run whole: in a cell each makes `length` steps.

    `handover_ns` is the cost of all units of a batch.
    """
    units = sum(length if part.cell else 1 for part in profile.parts)
    return replace(
        profile,
        batch_ns=tuple(map(round, _whole(profile, length, length))),
        by_length=(),
        stages=(),
        handover_ns=profile.handover_ns and profile.handover_ns * units,
    )


def _whole(profile: Profile, length: float, steps: float) -> list[float]:
    """Nanoseconds by size of rows that run whole, with so many steps in a cell.

    Steps made count as length there; on average half of them have been made.
    """
    parts = [(part, length + steps / 2, steps) if part.cell else (part, length, 1) for part in profile.parts]
    sizes = range(1, profile.max_batch + 1)
    return [sum(part.time(size, round(longest)) * count for part, longest, count in parts) for size in sizes]
