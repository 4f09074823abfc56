"""`starling profile A --beside B`: how much slower batches of A are while B runs on another worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import ConfigError
from app.settings import Settings
from planner.commands.event_loop import in_loop
from planner.commands.output import aligned, progress
from planner.commands.profile_measure import idle_engine, loaded

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model
    from app.engine.profiling.cache import ProfileKey
    from app.scheduler.estimates.pairs import Pair

ALL = "all"  # in place of a name: every model, including the one that is measured


@dataclass(frozen=True, slots=True)
class Pairs:
    """The measurements of one model beside others. `kept`: the file that stores them."""

    key: ProfileKey
    pairs: Sequence[Pair]
    kept: Path | None

    def as_dict(self) -> dict[str, Any]:
        from app.engine.profiling.cache import pairs_to_dict

        return pairs_to_dict(self.key, self.pairs)

    def show(self) -> None:
        """A table of all that was measured, and a line for each pair."""
        key, pairs = self.key, self.pairs
        rows = [
            [
                f"{time.beside_rows} of {pair.model}", str(time.rows), f"{time.alone_ms:.3f}", f"{time.beside_ms:.3f}",
                f"{time.slower:.1%}",
            ]
            for pair in pairs
            for time in sorted(pair.sizes, key=lambda one: (one.beside_rows, one.rows))
        ]  # fmt: skip
        table = aligned([["beside", "rows", "ms alone", "ms beside", "slower"], *rows])
        lines = [f"{key.model} on {key.device}, {key.threads} thread(s) per worker, two workers", *table]
        lines += [f"{key.model} is slowed by {pair.slower:.1%} at most beside {pair.model}" for pair in pairs]
        if self.kept is not None:
            lines.append(f"kept       {self.kept}")
        print("\n".join(lines))


def check_room(cores: int, threads: int, workers: int) -> None:
    """Raise ConfigError where the device has one worker. `workers`: as asked for, or 0."""
    why = "beside: nothing can run beside a model on a device of one worker"
    if workers == 1:
        raise ConfigError(f"{why}, and --workers asks for one")
    if cores < 2 * threads:
        hint = f"; --threads {cores // 2} makes room for two" if cores > 1 else ""
        raise ConfigError(f"{why}: {threads} of {cores} core(s) each, no second one fits{hint}")


def measure_pairs(model: Model, others: Sequence[Model], settings: Settings, length: int) -> Pairs:
    """Measure the model beside each of the others, for the same time; keep each pair where `starling serve` finds it.

    `settings`: of a server with two workers. The model may be one of the others. Raises ConfigError when a model fails.
    """
    return in_loop(_measured(model, others, settings, length))


async def _measured(model: Model, others: Sequence[Model], settings: Settings, length: int) -> Pairs:
    import torch

    from app.engine.profiling.cache import ProfileCache, default_folder
    from app.engine.profiling.profiled_model import now_utc
    from app.models.checks.samples import longest
    from app.scheduler.estimates.pairs import Pair
    from planner.commands.measured_pairs import measure_pair

    cache = ProfileCache(settings.profile_dir or default_folder())
    found, kept, budget_s = [], None, settings.profile_budget_s
    async with idle_engine(settings, 2) as engine, loaded(engine, model, length) as first:
        assert first.key is not None
        with progress(f"measuring, at most {budget_s:.0f} s"):
            for one in others:
                async with nullcontext(first) if one is model else loaded(engine, one, length) as other:
                    assert other.key is not None
                    measuring = engine.profiling.measuring
                    try:
                        times = await measure_pair(measuring, first, other, budget_s / len(others))
                    except RuntimeError as exc:
                        raise ConfigError(str(exc)) from exc
                extra = {
                    "made": now_utc(),
                    "torch": torch.__version__,
                    "precision": settings.precision,
                    "lengths": [longest(each.rows) for each in (first, other)],
                }
                found.append(Pair(other.name, other.key.architecture, times, extra))
                kept = cache.store_pair(first.key, found[-1])
    return Pairs(first.key, found, kept)
