"""The profile format: the measured batch times of one model on one device, as a JSON object (docs/theory/estimates.md).

Only `batch_ms` is required, or what its default is made of. Missing sizes are interpolated linearly. Unknown keys are
kept unchanged. Milliseconds in files, integer nanoseconds in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.scheduler.estimates import fields
from app.scheduler.estimates.batch_monitor import regression
from app.scheduler.estimates.fields import MS, fault, interpolate, to_ms
from app.scheduler.estimates.lengths import time_at

_KNOWN = {
    "model", "device", "threads", "max_batch", "batch_ms", "concurrency", "length_ms", "stages",
    "cell", "handover_ms", "error",
}  # fmt: skip


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

    def to_dict(self) -> dict[str, Any]:
        """The object of the format, every size written out. `parse` is the inverse."""
        data: dict[str, Any] = {**self.extra, "model": self.model, "device": self.device}
        if self.threads is not None:
            data["threads"] = self.threads
        data["max_batch"] = self.max_batch
        data["batch_ms"] = to_ms(self.batch_ns)
        if self.errors:
            data["error"] = {str(size): round(error, 4) for size, error in enumerate(self.errors, 1)}
        if self.concurrency_ns:
            data["concurrency"] = {str(units): to_ms(times) for units, times in self.concurrency_ns.items()}
        if self.handover_ns is not None:
            data["handover_ms"] = self.handover_ns / MS
        if self.by_length:
            data["length_ms"] = {str(length): to_ms(times) for length, times in self.by_length}
        if self.cell:
            data["cell"] = True
        if self.stages:
            data["stages"] = [stage.to_dict() for stage in self.stages]
        return data


NOTHING_KNOWN = Profile()


def parse(data: Any) -> Profile:
    """A profile from the object of the format. Raises ValueError with the key, what was expected and what is there."""
    if not isinstance(data, Mapping):
        raise fault("profile", "an object", data)
    for name in ("model", "device"):
        if not isinstance(data.get(name, ""), str):
            raise fault(name, "a text", data[name])
    threads = data.get("threads")
    if threads is not None:
        threads = fields.whole(threads, "threads")
    max_batch = fields.whole(data["max_batch"], "max_batch") if "max_batch" in data else None
    cell = data.get("cell", False)
    if not isinstance(cell, bool):
        raise fault("cell", "true or false", cell)
    lengths = tuple(fields.tables(data.get("length_ms", {}), "length_ms", "length", max_batch).items())
    stages = _stages(data.get("stages", ()), max_batch)
    if "batch_ms" in data:
        batch_ns = fields.times(data["batch_ms"], "batch_ms", max_batch)
    elif stages:
        batch_ns = tuple(map(sum, zip(*(stage.batch_ns for stage in stages), strict=True)))
    elif lengths:
        batch_ns = lengths[-1][1]
    else:
        raise ValueError("batch_ms: expected the times of batches by size, got nothing")
    if lengths:
        _check_largest("length_ms", len(lengths[0][1]), len(batch_ns))
    for number, stage in enumerate(stages):
        _check_largest(f"stages.{number}", stage.max_batch, len(batch_ns))
    at_once = fields.tables(data.get("concurrency", {}), "concurrency", "number of units", len(batch_ns))
    if 1 in at_once:
        raise ValueError("concurrency.1: expected at least 2 units; 1 is batch_ms")
    return Profile(
        batch_ns=batch_ns,
        model=data.get("model", ""),
        device=data.get("device", ""),
        threads=threads,
        concurrency_ns=at_once,
        extra={key: value for key, value in data.items() if key not in _KNOWN},
        by_length=lengths,
        stages=stages,
        cell=cell,
        handover_ns=fields.handover(data["handover_ms"]) if "handover_ms" in data else None,
        errors=fields.errors(data.get("error", {}), len(batch_ns)),
    )


def _stages(given: Any, max_batch: int | None) -> tuple[Profile, ...]:
    """The profiles of stages. One without `max_batch` gets that of the whole model."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise fault("stages", "a list of profiles", given)
    stages = []
    for number, data in enumerate(given):
        try:
            known = isinstance(data, Mapping) and max_batch is not None
            stage = parse({"max_batch": max_batch, **data} if known else data)
        except ValueError as exc:
            raise ValueError(f"stages.{number}.{exc}") from None
        if stage.stages:
            raise ValueError(f"stages.{number}.stages: expected none, a stage has no stages of its own")
        stages.append(stage)
    return tuple(stages)


def _check_largest(key: str, largest: int, expected: int) -> None:
    if largest != expected:
        raise ValueError(f"{key}: expected times up to the largest batch, {expected} rows, got up to {largest}")
