"""The measured batch times of one model on one device. `profile_format` reads and writes them as a JSON object."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.scheduler.estimates.batch_monitor import regression
from app.scheduler.estimates.lengths import time_at

MS = 1_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class Profile:
    """Batch times of a model or of one of its stages. Empty: nothing is known yet.

    `batch_ns[b - 1]`: nanoseconds of b rows alone; `concurrency_ns[k][b - 1]`: while k units run at once.

    `by_length`: (length, times by size), ascending, if times depend on the longest row of a batch; then `batch_ns` is
    used if the length is not known. With `guessed_lengths` they are a guess: rows are picked by them, but no time is
    predicted and no call dropped. `handover_ns`: what a unit of any size costs beyond computing, to reach a worker and
    to report its end; None: nothing, and it is not learnt online. `errors`: by size, the standard error of `batch_ns`
    as a share of it; () if the times are exact. `stages`: the parts that a model is run in, if there are several.
    `cell`: it is a stage that a row repeats. `extra`: unknown keys of the file.
    """

    batch_ns: tuple[int, ...] = ()
    concurrency_ns: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)
    by_length: tuple[tuple[int, tuple[int, ...]], ...] = ()
    handover_ns: int | None = None
    errors: tuple[float, ...] = ()
    guessed_lengths: bool = False
    stages: tuple[Profile, ...] = ()
    cell: bool = False
    model: str = ""
    device: str = ""
    threads: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def max_batch(self) -> int:
        return len(self.batch_ns)

    @property
    def peak(self) -> float:
        """Rows per second of the best size run without a pause: a load of 1."""
        return max(size * 1e9 / time for size, time in enumerate(self.batch_ns, 1))

    @property
    def best(self) -> int:
        """The size with the most rows per second, run alone."""
        return max(range(1, self.max_batch + 1), key=lambda size: size / self.batch_ns[size - 1])

    def times(self, units: int) -> tuple[int, ...]:
        """Times by size while `units` run at once, interpolated between the measured numbers of units.

        Raises ValueError beyond the most units measured.
        """
        tables = {1: self.batch_ns, **self.concurrency_ns}
        if units in tables:
            return tables[units]
        if not 1 < units < max(tables):
            raise ValueError(f"concurrency: expected 1 to {max(tables)} units, the most measured, got {units}")
        by_size = ({count: times[index] for count, times in tables.items()} for index in range(self.max_batch))
        return tuple(round(interpolate(known, [units])[0]) for known in by_size)

    def times_of(self, units: int) -> tuple[int, ...]:
        """Times by size while so many units run; if more run than were measured, those of the most measured."""
        return self.times(min(units, self.most_at_once))

    @property
    def most_at_once(self) -> int:
        """The most units at once that were measured."""
        return max(self.concurrency_ns, default=1)

    @property
    def parts(self) -> tuple[Profile, ...]:
        """The parts that run one after another: the stages, or the whole model."""
        return self.stages or (self,)

    def of_stages(self) -> tuple[Profile, ...]:
        """The profile of each part, with the hand-over and the errors of the whole, and without what is said of it."""
        return tuple(
            Profile(
                part.batch_ns, part.concurrency_ns, part.by_length, self.handover_ns, self.errors,
                part.guessed_lengths, cell=part.cell,
            )
            for part in self.parts
        )  # fmt: skip

    def time(self, size: int, length: int = 0) -> float:
        """Nanoseconds of one run (or step) of a batch alone. `length`: of its longest row, 0 if unknown."""
        return time_at(self.by_length, size, length) if length and self.by_length else self.batch_ns[size - 1]

    @property
    def fit(self) -> dict[str, float]:
        """The regression line of batches alone, in milliseconds; `residual`: its error over the mean time."""
        line = regression(self.batch_ns)
        residual = line.residual * self.max_batch / sum(self.batch_ns)
        return {"alpha_ms": line.alpha / MS, "beta_ms": line.beta / MS, "residual": residual}

    def up_to(self, max_batch: int) -> Profile:
        """The same for a smaller largest batch. Raises ValueError beyond what was measured."""
        if not 1 <= max_batch <= self.max_batch:
            raise ValueError(f"max_batch: expected 1 to {self.max_batch}, the profile's largest batch, got {max_batch}")
        return self._each(lambda times: times[:max_batch], max_batch)

    def scaled(self, factor: float) -> Profile:
        """The same, with all batch times multiplied by `factor`."""
        return self._each(lambda times: tuple(round(time * factor) for time in times), self.max_batch)

    def _each(self, change: Callable[[tuple[int, ...]], tuple[int, ...]], max_batch: int) -> Profile:
        """The same with a change of the times of every curve, which then end at `max_batch`."""
        return replace(
            self,
            batch_ns=change(self.batch_ns),
            errors=self.errors[:max_batch],
            concurrency_ns={units: change(times) for units, times in self.concurrency_ns.items()},
            by_length=tuple((length, change(times)) for length, times in self.by_length),
            stages=tuple(stage._each(change, max_batch) for stage in self.stages),
        )


NOTHING_KNOWN = Profile()


def interpolate(known: Mapping[int, float], points: Iterable[int]) -> list[float]:
    """The value at each point: the known one, or linearly interpolated between the nearest known ones.

    Raises ValueError for a point below or above all known ones.
    """
    places = sorted(known)
    values = []
    for point in points:
        above = bisect_left(places, point)
        if above < len(places) and places[above] == point:
            values.append(known[point])
            continue
        if not 0 < above < len(places):
            raise ValueError(f"interpolate: expected points from {places[0]} to {places[-1]}, got {point}")
        low, high = places[above - 1], places[above]
        share = (point - low) / (high - low)
        values.append(known[low] + share * (known[high] - known[low]))
    return values
