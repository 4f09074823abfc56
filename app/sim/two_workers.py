"""The optimum for two workers of a profile."""

from __future__ import annotations

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import two_workers
from app.scheduler.optimal.beside import TimeLeft, kept_sizes
from app.scheduler.optimal.two_workers import Solution

_PHASES = 16
_EACH = 8  # rows: up to this largest batch each size has columns of its own


def curves(profile: ModelProfile) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """By rows: nanoseconds while two run, then alone, then the sizes at which they are run.

    Where the profile does not say what two at once take, they do not slow each other.
    """
    both = profile.times(2) if profile.concurrency_ns else profile.batch_ns
    together, sizes = padded(tuple(time + (profile.handover_ns or 0) for time in both))
    return together, tuple(profile.occupied_ns[size - 1] for size in sizes), sizes


def peak(profile: ModelProfile) -> float:
    """Rows per second at best, with two workers or with one where that is faster."""
    together, apart, _ = curves(profile)
    return max(size * 1e9 / min(both / 2, one) for size, (both, one) in enumerate(zip(together, apart, strict=True), 1))


def solved(profile: ModelProfile, rate: float) -> tuple[Solution, TimeLeft]:
    """The best policy, and its columns. Seconds of work."""
    together, apart, _ = curves(profile)
    largest = len(together)
    sizes = tuple(range(1, largest + 1)) if largest <= _EACH else kept_sizes(largest, 2)
    beside = TimeLeft(sizes, tuple(together[size - 1] for size in sizes), _PHASES)
    return two_workers.solve(together, apart, rate, beside), beside
