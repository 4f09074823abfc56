"""What profiling knows of a placed model: its batch times, their origin, and the rows to measure it with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from app.contract import SampleRow
from app.engine.executor import Executor
from app.engine.pool import Slots
from app.engine.profiling.cache import ProfileKey
from app.engine.profiling.tables import Due
from app.models.checks.samples import most_length
from app.observe.metrics import ModelStats
from app.scheduler.estimates.curve import Curve
from app.scheduler.estimates.lengths import by_tokens
from app.scheduler.estimates.pairs import Pair
from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import to_dict
from app.scheduler.types import DeviceSpec

# Live batches move these to what batches take.
_GUESS_NS, _GUESS_ROW_NS = 1_000_000, 100_000
_GUESS_ERROR = 1.0  # of each size: the first batches of calls say what it takes


class Origin(StrEnum):
    """Where a model's batch times are from."""

    GUESS = "guess"  # the model raised on made-up rows
    WARM_UP = "warm-up"
    CACHE = "cache"
    MEASURED = "measured"


@dataclass(slots=True, eq=False)
class ProfiledModel:
    """Warm-up makes it; `program` and `stats` are set when the model serves.

    `key`: where its profile is cached, None: nowhere. `rows`: to measure with; none if it raised on made-up rows.
    `pairs`: measurements beside other models; `slowdowns`: by model, the fraction by which batches beside that one are
    slower. `spare`: slots for measuring, equally many for each worker. `unfit`: the error if it raised on all made-up
    rows. `curves`: of each stage, of the scheduler, which learns from live batches. `due`: when its tables are solved
    again.
    """

    executor: Executor
    profile: Profile
    origin: Origin
    rows: Sequence[SampleRow] = ()
    key: ProfileKey | None = None
    pairs: Sequence[Pair] = ()
    program: int = -1
    stats: ModelStats = field(default_factory=lambda: ModelStats("", ""))
    spare: Slots = ()
    unfit: Exception | None = None
    example: SampleRow | None = None  # see contract.Served
    curves: Sequence[Curve] = ()
    due: Due = field(default_factory=Due)
    slowdowns: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.executor.model.info.name

    @property
    def stage_profiles(self) -> tuple[Profile, ...]:
        """The profile of each stage; for a model that runs by its cell, of one step.

        If the hand-over was not measured it starts at 0, and is learnt from the first batch on.
        """
        return replace(self.profile, handover_ns=self.profile.handover_ns or 0).of_stages()

    def has_times(self, spec: DeviceSpec) -> bool:
        """Whether batch times and hand-over are measured, up to as many units at once as this device runs."""
        if self.origin in (Origin.GUESS, Origin.WARM_UP) or self.profile.handover_ns is None:
            return False
        at_once = min(len(workers_for(spec, self.profile.max_batch)), spec.max_running)
        return at_once <= self.profile.most_at_once

    def learned(self, *, beside: bool = True) -> Profile:
        """The profile as corrected by live batches. `beside`: see `Curve.learned`."""
        parts = [curve.learned(beside=beside) for curve in self.curves]
        if not self.profile.errors or not parts:
            return self.profile
        errors = tuple(map(max, zip(*(part.errors for part in parts), strict=True)))
        stages = tuple(parts) if len(parts) > 1 else ()
        if self.profile.stages and not stages:  # a step of a cell
            stages = tuple(replace(parts[0], cell=one.cell) for one in self.profile.stages)
            return replace(self.profile, stages=stages, errors=errors)
        levels = set.intersection(*(set(part.concurrency_ns) for part in parts))
        return replace(
            self.profile,
            batch_ns=added(part.batch_ns for part in parts),
            concurrency_ns={units: added(part.concurrency_ns[units] for part in parts) for units in levels},
            stages=stages,
            errors=errors,
        )

    def report(self) -> dict[str, Any]:
        """For the statistics, in milliseconds; `batch_ms` has a key of its own there."""
        profile, data = self.profile, to_dict(self.profile)
        return {
            "origin": self.origin,
            "made": str(profile.extra.get("made", "")),
            "lengths": profile.extra.get("lengths", {}),
            "error": data.get("error", {}),
            "handover_ms": data.get("handover_ms"),
            **_at_once_and_by_length(data),
            "stages": [
                {"batch_ms": part["batch_ms"], **_at_once_and_by_length(part)} for part in data.get("stages", ())
            ],
            "fit": profile.fit,
            "best_batch": profile.best,
            "best_rows_per_s": profile.peak,
        }


def added(times: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """By size: the sum of the times of all stages."""
    return tuple(map(sum, zip(*times, strict=True)))


def _at_once_and_by_length(data: Mapping[str, Any]) -> dict[str, Any]:
    """Two keys of the statistics, from a profile as it is stored."""
    return {"concurrency_ms": data.get("concurrency", {}), "length_ms": data.get("length_ms", {})}


def workers_for(spec: DeviceSpec, rows: int) -> list[int]:
    """The workers that can take a batch of so many rows."""
    return [worker for worker, one in enumerate(spec.workers) if one.capacity >= rows]


def guess(max_batch: int) -> Profile:
    """Batch times of which nothing is known. Low, so that no call is refused because of them."""
    times = (_GUESS_NS + size * _GUESS_ROW_NS for size in range(1, max_batch + 1))
    return Profile(tuple(times), errors=(_GUESS_ERROR,) * max_batch)


def first_profile(executor: Executor, known: Profile, lengths: Mapping[str, int] | None = None) -> Profile:
    """A profile from little evidence. Each stage gets an equal share of the time, unless its own is known.

    `lengths`: of the rows that were run; times at other lengths are guessed (`by_tokens`).
    """
    info, count = executor.model.info, len(executor.model.stages)
    own = max((lengths or {}).values(), default=0) if executor.steps is None else 0
    most = most_length(info.client_inputs, own)

    def guessed(batch_ns: tuple[int, ...]) -> Profile:
        return Profile(batch_ns, by_length=by_tokens(own, most, batch_ns), guessed_lengths=True)

    share = tuple(max(1, ns // max(1, count)) for ns in known.batch_ns)
    stages = [stage.batch_ns for stage in known.stages] or ([share] * count if count > 1 else [])
    return replace(
        guessed(known.batch_ns),
        model=info.name,
        extra={"lengths": lengths or {}, "made": now_utc()},
        stages=tuple(map(guessed, stages)),
        errors=known.errors,
    )


def now_utc() -> str:
    """ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
