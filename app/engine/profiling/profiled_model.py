"""A placed model as far as it is measured: its batch times, where they are from, and what it is measured with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from app.contract import SampleRow
from app.engine.executor import Executor
from app.engine.pool import Slots
from app.engine.profiling.cache import Key
from app.engine.profiling.review import Review
from app.observe.metrics import ModelStats
from app.scheduler.estimates.curve import ONCE
from app.scheduler.estimates.front_load import FrontLoad
from app.scheduler.estimates.pairs import Pair
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import DeviceSpec


class Origin(StrEnum):
    """Where a model's batch times are from."""

    GUESS = "guess"  # it raised on the rows that warm-up made up
    WARM_UP = "warm-up"
    CACHE = "cache"
    MEASURED = "measured"
    STALE = "stale"  # from the cache, and contradicted by batches of calls


@dataclass(slots=True, eq=False)
class ProfiledModel:
    """Made by warm-up; `program` and `stats` are set when the model serves.

    `key`: where its profile is kept, None: nowhere. `rows`: to measure with; none if it raised on those made up for it.
    `pairs`: what it was measured beside; `slowdowns`: by model, the fraction of its time by which it is slowed beside
    that one. `spare`: slots for measuring, as many rows for each worker. `unfit`: why no batch but those of its calls
    ran well. `on_rows` gets the slots of rows that have run without a fault. `review`: of the profile that its tables
    were solved from. `advised`: it has been logged that its best-effort calls need stages. `spread`: how batches of
    calls vary, as of a FrontLoad; `loads`: what its requests have cost, by steps of their rate (`served_loads`).
    """

    executor: Executor
    profile: ModelProfile
    origin: Origin
    rows: Sequence[SampleRow] = ()
    key: Key | None = None
    pairs: Sequence[Pair] = ()
    program: int = -1
    stats: ModelStats = field(default_factory=lambda: ModelStats("", ""))
    spare: Slots = ()
    unfit: Exception | None = None
    advised: bool = False
    example: SampleRow | None = None  # see contract.Served
    on_rows: Callable[[Sequence[int]], None] | None = None
    review: Review | None = None
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    spread: float = 0.0
    loads: dict[int, FrontLoad] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.executor.model.info.name

    def has_times(self, spec: DeviceSpec) -> bool:
        """Batch times and the hand-over are measured, and for as many units at once as can be on this device."""
        if self.origin in (Origin.GUESS, Origin.WARM_UP, Origin.STALE) or self.profile.handover_ns is None:
            return False
        at_once = min(len(workers_for(spec, self.profile.max_batch)), spec.max_running)
        return at_once <= max(self.profile.concurrency_ns, default=1)

    def report(self) -> dict[str, Any]:
        """For the statistics: all but `batch_ms`, which has a key of its own there. Milliseconds."""
        profile, data = self.profile, self.profile.to_dict()
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


def _at_once_and_by_length(data: Mapping[str, Any]) -> dict[str, Any]:
    """Of a profile as it is stored."""
    return {"concurrency_ms": data.get("concurrency", {}), "length_ms": data.get("length_ms", {})}


def workers_for(spec: DeviceSpec, rows: int) -> list[int]:
    """Workers that take a batch of so many rows: as many units at once can be measured."""
    return [worker for worker, one in enumerate(spec.workers) if one.capacity >= rows]


def first_profile(
    executor: Executor,
    batch_ns: Sequence[int],
    lengths: Mapping[str, int] | None = None,
    stages: tuple[ModelProfile, ...] = (),
    *,
    error: float = ONCE,
) -> ModelProfile:
    """The profile of a model whose times have hardly been measured; of one in stages each takes an equal part.

    `lengths`: of the rows that it was measured with. `stages`: where their times are known. `error`: of each size.
    """
    count = len(executor.model.stages)
    part = ModelProfile(tuple(max(1, ns // max(1, count)) for ns in batch_ns))
    return ModelProfile(
        tuple(batch_ns),
        executor.model.info.name,
        extra={"lengths": lengths or {}, "made": now_utc()},
        stages=stages or ((part,) * count if count > 1 else ()),
        errors=(error,) * len(batch_ns),
    )


def now_utc() -> str:
    """ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
