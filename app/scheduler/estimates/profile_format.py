"""Reads and writes the profile format: the measured batch times of a model on a device, as a JSON object.

Its keys: docs/theory/estimates.md. Milliseconds in files, integer nanoseconds in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.scheduler.estimates.profile import MS, Profile, interpolate
from app.scheduler.estimates.smooth import known_errors

LARGEST_MS = 1e12  # 30 years; far larger ones are no nanoseconds any more, but infinite
_LARGEST = 65_536  # rows; bounds the table that a typing error would make

_Whole = Annotated[int, Field(ge=1, le=_LARGEST)]
_Key = Annotated[int, Field(ge=1, le=_LARGEST, strict=False)]  # JSON's keys are texts
_Times = dict[_Key, Annotated[float, Field(ge=1 / MS, le=LARGEST_MS)]]


class _Stage(BaseModel):
    """Unknown keys are kept."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = ""
    device: str = ""
    threads: _Whole | None = None
    max_batch: _Whole | None = None
    batch_ms: _Times = {}
    error: dict[_Key, Annotated[float, Field(ge=0, le=LARGEST_MS)]] = {}
    concurrency: dict[Annotated[_Key, Field(ge=2)], _Times] = {}  # 1 is `batch_ms`
    handover_ms: Annotated[float, Field(ge=0, le=LARGEST_MS)] | None = None
    length_ms: dict[_Key, _Times] = {}
    stages: list[Any] = Field([], max_length=0)
    cell: bool = False

    def largest(self) -> int:
        """The largest size of any table; 0: there is none."""
        tables = [self.batch_ms, *self.length_ms.values(), *self.concurrency.values()]
        return max(self.max_batch or 0, *(max(table, default=0) for table in tables))

    def profile(self, max_batch: int, where: str = "") -> Profile:
        """Raises ValueError for a table that does not reach from 1 to `max_batch`. `where`: the keys of this object."""
        lengths = _filled(f"{where}length_ms", self.length_ms, max_batch)
        stages = tuple(stage.profile(max_batch, f"stages.{place}.") for place, stage in enumerate(self.stages))
        if self.batch_ms:
            batch_ns = _times(f"{where}batch_ms", self.batch_ms, max_batch)
        elif stages:
            batch_ns = tuple(map(sum, zip(*(stage.batch_ns for stage in stages), strict=True)))
        elif lengths:
            batch_ns = list(lengths.values())[-1]
        else:
            raise ValueError(f"{where}batch_ms: expected the times of batches by size, got nothing")
        return Profile(
            batch_ns,
            _filled(f"{where}concurrency", self.concurrency, max_batch),
            tuple(lengths.items()),
            None if self.handover_ms is None else round(self.handover_ms * MS),
            known_errors(self.error, max_batch) if self.error else (),
            stages=stages,
            cell=self.cell,
            model=self.model,
            device=self.device,
            threads=self.threads,
            extra=self.model_extra or {},
        )


class _Format(_Stage):
    stages: list[_Stage] = []

    def largest(self) -> int:
        return self.max_batch or max(super().largest(), *(stage.largest() for stage in self.stages), 0)


def parse(data: Any) -> Profile:
    """A profile from the object of the format. Raises ValueError with the key, what was expected and what is there."""
    try:
        given = _Format.model_validate(data)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])) or "profile"
        wanted = first["msg"].partition(" or instance of")[0].replace("Input should be", "expected")
        raise ValueError(f"{where}: {wanted}, got {first['input']!r}") from None
    return given.profile(given.largest())


def to_dict(profile: Profile) -> dict[str, Any]:
    """The object of the format, every size written out. `parse` is the inverse."""
    known = {
        "model": profile.model,
        "device": profile.device,
        "threads": profile.threads,
        "max_batch": profile.max_batch,
        "batch_ms": _ms(profile.batch_ns),
        "error": {str(size): round(error, 4) for size, error in enumerate(profile.errors, 1)} or None,
        "concurrency": {str(units): _ms(times) for units, times in profile.concurrency_ns.items()} or None,
        "handover_ms": None if profile.handover_ns is None else profile.handover_ns / MS,
        "length_ms": {str(length): _ms(times) for length, times in profile.by_length} or None,
        "cell": profile.cell or None,
        "stages": [*map(to_dict, profile.stages)] or None,
    }
    return {**profile.extra, **{key: value for key, value in known.items() if value is not None}}


def _ms(times: tuple[int, ...]) -> dict[str, float]:
    return {str(size): time / MS for size, time in enumerate(times, 1)}


def _filled(key: str, tables: Mapping[int, _Times], max_batch: int) -> dict[int, tuple[int, ...]]:
    """Nanoseconds by size for each length or number of units, ascending."""
    return {at: _times(f"{key}.{at}", tables[at], max_batch) for at in sorted(tables)}


def _times(key: str, known: _Times, max_batch: int) -> tuple[int, ...]:
    """Nanoseconds for each size from 1 to the largest; missing sizes are interpolated."""
    for size in (1, max_batch):
        if size not in known:
            raise ValueError(f"{key}.{size}: expected a time for {size} row{'s' * (size > 1)}, got nothing")
    if max(known) > max_batch:
        raise ValueError(f"{key}.{max(known)}: expected sizes up to max_batch, {max_batch}")
    return tuple(round(time * MS) for time in interpolate(known, range(1, max_batch + 1)))
