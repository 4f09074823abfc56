"""`starling profile A --beside B`: how much slower batches of A are while B runs on another worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.profile_measure import MeasureOptions, make_device, progress
from app.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model
    from app.engine.profiling.cache import Key
    from app.scheduler.estimates.pairs import Pair

ALL = "all"  # in place of a name: every model, including the one that is measured


@dataclass(frozen=True, slots=True)
class Pairs:
    """The measurements of one model beside others. `kept`: the file that stores them."""

    key: Key
    pairs: Sequence[Pair]
    kept: Path | None

    def as_dict(self) -> dict[str, Any]:
        from app.engine.profiling.cache import pairs_to_dict

        return pairs_to_dict(self.key, self.pairs)

    def show(self) -> None:
        """A table of all that was measured, and a line for each pair."""
        from app.sim.report import aligned

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


def check_room(cores: int, threads: int, workers: Sequence[int]) -> None:
    """Raise ConfigError where the device has one worker. `workers`: units at once, as asked for."""
    why = "beside: nothing can run beside a model on a device of one worker"
    if workers and max(workers) < 2:
        raise ConfigError(f"{why}, and --workers asks for one")
    if cores < 2 * threads:
        hint = f"; --threads {cores // 2} makes room for two" if cores > 1 else ""
        raise ConfigError(f"{why}: {threads} of {cores} core(s) each, no second one fits{hint}")


def measure_pairs(model: Model, others: Sequence[Model], plan: MeasureOptions, folder: Path) -> Pairs:
    """Measure the model beside each of the others, for the same time; keep each pair where `starling serve` finds it.

    The model may be one of the others. Raises ConfigError when a model fails.
    """
    import torch

    from app.engine.profiling import pairs
    from app.engine.profiling.cache import ProfileCache, architecture_of, key_of
    from app.engine.profiling.offline import OfflineBench
    from app.engine.profiling.profiled_model import now_utc
    from app.scheduler.estimates.pairs import Pair

    cache, found = ProfileCache(folder), []
    most = plan.max_batch
    mosts = [other.info.batching.max_batch for other in others]
    visits = [pairs.combinations(most, rows, plan.repeats) for rows in mosts]
    sizes = sum(len(one.visits) for one in visits)
    with progress(plan.budget_s, sizes, lambda: sum(one.done for one in visits)) as settled:
        for other, rows, its_visits in zip(others, mosts, visits, strict=True):
            device = make_device(replace(plan, max_batch=max(most, rows)), 2)
            with OfflineBench(device, model, other, length=plan.length, least_s=pairs.LEAST_S) as bench:
                pairs.measure_pair(bench, its_visits, plan.budget_s / len(others), settled)
                placed, beside = (one.executor.model for one in bench.models)
            extra = {
                "made": now_utc(),
                "torch": torch.__version__,
                "precision": plan.precision,
                "lengths": [dict(one.lengths) for one in bench.models],
            }
            key = key_of(placed, device)
            found.append(Pair(other.info.name, architecture_of(beside), pairs.times(its_visits), extra))
            kept = cache.store_pair(key, found[-1])
    return Pairs(key, found, kept)
