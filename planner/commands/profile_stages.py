"""`starling profile --stages`: the times of a model's stages by batch size, and the cost of cutting it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from app.errors import ConfigError
from app.settings import Settings
from planner.commands.event_loop import in_loop
from planner.commands.output import aligned
from planner.commands.profile_measure import idle_engine, loaded, repeated

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model

_MOST = 15  # visits of each size
_TRIED = (2, 3, 4, 6, 8)  # numbers of stages to try, for --stages auto
_FILLED = 0.9  # of a stage's most rows per second: the smallest size that reaches it is preferred


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Milliseconds by batch size: of the whole model, of all its stages together, and of each stage."""

    whole: dict[int, float]
    cut: dict[int, float]
    stages: list[dict[int, float]]

    def cost(self, size: int) -> float:
        """The time that the cuts add to a batch of this size, as a share of the whole model's."""
        return self.cut[size] / self.whole[size] - 1

    @property
    def longest(self) -> float:
        """The time of the longest stage for one row: another row may have to wait for it."""
        return max(stage[1] for stage in self.stages)

    def preferred(self, stage: int) -> int:
        """The smallest size with nearly the stage's most rows per second."""
        rates = {size: size / time for size, time in self.stages[stage].items()}
        return next(size for size, rate in rates.items() if rate >= _FILLED * max(rates.values()))

    def as_dict(self) -> dict[str, Any]:
        return {
            "whole_ms": {str(size): time for size, time in self.whole.items()},
            "cuts_cost": {str(size): self.cost(size) for size in self.whole},
            "stages": [
                {"batch_ms": {str(size): time for size, time in stage.items()}, "preferred": self.preferred(number)}
                for number, stage in enumerate(self.stages)
            ],
        }


@dataclass(frozen=True, slots=True)
class Slices:
    """Times by number of stages, and the line of model.toml that cuts it so; "" if the model has these stages."""

    model: str
    times: dict[int, StageTimes]
    paste: str

    @property
    def suggested(self) -> int:
        """The number of stages whose longest stage is the shortest."""
        return min(self.times, key=lambda number: (self.times[number].longest, number))

    def as_dict(self) -> dict[str, Any]:
        slices = {str(number): times.as_dict() for number, times in self.times.items()}
        return {"model": self.model, "suggested": self.suggested, "paste": self.paste, "slices": slices}

    def show(self) -> None:
        """A table of the suggested slices; before it one that compares several numbers, if they were tried."""
        lines, chosen = [], self.times[self.suggested]
        if len(self.times) > 1:
            compared = [["stages", "cuts cost 1 row", "cuts cost the largest", "longest stage, 1 row, ms"]]
            for number, times in self.times.items():
                costs = (f"{times.cost(size):+.1%}" for size in (1, max(times.whole)))
                compared.append([str(number), *costs, f"{times.longest:.3f}"])
            lines = [*aligned(compared), f"{self.suggested} stages: the longest of them is the shortest", ""]
        # a column for each size: there may be more stages than fit on a line of a terminal
        rows = [[f"{self.model}, ms; rows:", *map(str, chosen.whole), "preferred"]]
        rows.append(["whole", *(f"{time:.4g}" for time in chosen.whole.values()), ""])
        for number, stage in enumerate(chosen.stages):
            rows.append([f"stage {number}", *(f"{time:.4g}" for time in stage.values()), str(chosen.preferred(number))])
        rows.append(["cuts cost", *(f"{chosen.cost(size):+.1%}" for size in chosen.whole), ""])
        lines += aligned(rows)
        if self.paste:
            lines.append(f"in model.toml, above its tables:\n\n{self.paste}")
        print("\n".join(lines))


def parse_stages(text: str, cuts: list[str]) -> int:
    """The number of stages in --stages; 0: the model's own stages, or several numbers."""
    if text in ("", "auto", "0"):
        return 0
    if not text.isdigit() or not 2 <= int(text) <= 64:
        raise ConfigError(f"stages: expected auto, or at least 2 and at most 64, got {text}")
    if cuts:
        raise ConfigError(f"stages: expected either --stages or --cuts, got both: {text} and {cuts}")
    return int(text)


def measure_stages(model: Model, stages: int, cuts: list[str], settings: Settings, length: int) -> Slices:
    """Cut the model as asked, and time it on the CPU. Raises ConfigError for a model that cannot be cut so."""
    cut = _sliced(model, stages, cuts)
    budget_s = settings.profile_budget_s / len(cut)
    times = {len(one.stages): in_loop(_times(one, settings, length, budget_s)) for one in cut}
    found = Slices(model.info.name, times, "")
    if model.stages and not cuts and not stages:
        return found
    return replace(found, paste=f"cuts = {json.dumps(cuts)}" if cuts else f"stages = {found.suggested}")


def _sliced(model: Model, stages: int, cuts: list[str]) -> list[Model]:
    """The model cut as asked. If nothing is asked: its own stages, if it has any, else several numbers of stages."""
    from app.models.recurrent.cells import CellModel
    from app.models.stages.slicing import sliced
    from app.models.stages.staged import Staged

    if isinstance(model.call, Staged) and (stages or cuts):
        raise ConfigError(f"model {model.info.name!r}: expected no --stages or --cuts, its source returns Staged")
    if isinstance(model.call, CellModel):
        raise ConfigError(f"model {model.info.name!r}: expected a model to cut, got a recurrent one, run by its cell")
    if model.stages and not (stages or cuts):
        return [model]
    key = f"model {model.info.name!r}: {'cuts' if cuts else 'stages'}"
    if stages or cuts:
        try:
            return [sliced(model, stages, cuts)]
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None
    found = []
    for number in _TRIED:
        try:
            found.append(sliced(model, number))
        except ConfigError as error:
            if not found:
                raise ConfigError(f"{key}: {error}") from None
            break  # it cannot be cut in so many places
    return found


async def _times(model: Model, settings: Settings, length: int, budget_s: float) -> StageTimes:
    """Time the model whole and in stages, in turn, as a worker runs them. Raises ConfigError."""
    from app.contract import Stages
    from app.engine.profiling.idle import size_sets
    from app.scheduler.estimates.evidence import UnitTime

    whole = replace(model, stages=Stages())
    *_, sizes = size_sets(model.info.batching.max_batch)
    found: dict[int, list[tuple[UnitTime, UnitTime]]] = {size: [] for size in sizes}
    async with (
        idle_engine(settings, 2) as engine, loaded(engine, whole, length) as uncut, loaded(engine, model, length) as cut
    ):  # fmt: skip
        begun = time.monotonic()
        for _ in range(_MOST):
            for size in sizes:
                first, second = [
                    await repeated(engine.profiling.measuring, one.executor, 0, one.spare[:size])
                    for one in (uncut, cut)
                ]
                found[size].append((first, second))
            if time.monotonic() - begun > budget_s:
                break
    medians = {size: [UnitTime.median(timed) for timed in zip(*visits, strict=True)] for size, visits in found.items()}
    return StageTimes(
        {size: one.ns / 1e6 for size, (one, _) in medians.items()},
        {size: one.ns / 1e6 for size, (_, one) in medians.items()},
        [{size: one.by_stage[stage] / 1e6 for size, (_, one) in medians.items()} for stage in range(len(model.stages))],
    )
