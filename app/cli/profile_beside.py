"""`starling profile A --beside B`: what a unit of A is slowed by while one of B runs on another worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from app.cli.profile_text import progress
from app.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to load: only when the command runs
    from app.contract import Model
    from app.engine.device import Device
    from app.engine.profiling.cache import Key
    from app.scheduler.estimates.pairs import Pair

ALL = "all"  # in place of a name: every model there is, the one that is measured included


@dataclass(frozen=True, slots=True)
class Company:
    """How to measure pairs. `device`: makes one of two workers that take so many rows; `length` 0: as the rows are."""

    device: Callable[[int], Device]
    folder: Path
    length: int
    repeats: int
    budget_s: float
    precision: str


def check_room(cores: int, threads: int, workers: Sequence[int]) -> None:
    """Raise ConfigError where the device has one worker. `workers`: units at once, as asked for."""
    why = "beside: nothing can run beside a model on a device of one worker"
    if workers and max(workers) < 2:
        raise ConfigError(f"{why}, and --workers asks for one")
    if cores < 2 * threads:
        hint = f"; --threads {cores // 2} makes room for two" if cores > 1 else ""
        raise ConfigError(f"{why}: {threads} of {cores} core(s) each, no second one fits{hint}")


def measure_beside(model: Model, others: Sequence[Model], company: Company, out: Path | None, *, as_json: bool) -> None:
    """Measure the pairs, keep each where `starling serve` finds it, and print them; `out`: also write them there.

    `others` may hold `model` itself. Raises ConfigError when a model fails.
    """
    from app.engine.profiling.cache import ProfileCache, pairs_to_dict

    cache, kept, pairs = ProfileCache(company.folder), None, []
    for key, pair in _measured(model, others, company):
        kept = cache.store_pair(key, pair)
        pairs.append(pair)
    text = json.dumps(pairs_to_dict(key, pairs), indent=1)
    try:
        if out is not None:
            out.write_text(text + "\n", encoding="utf-8")
    except OSError as exc:
        raise ConfigError(str(exc)) from exc
    if as_json:
        print(text)
    else:
        _show(key, pairs, kept)


def _measured(model: Model, others: Sequence[Model], company: Company) -> Iterator[tuple[Key, Pair]]:
    """Each pair when it has been measured, and the key of the model's profile. Every pair gets the same time."""
    import torch

    from app.engine.profiling.cache import architecture_of, key_of
    from app.engine.profiling.pairs import PairBench, PairSampler, ends, ends_and_middle, measure_pair
    from app.models.checks.samples import short_lengths
    from app.scheduler.estimates.pairs import Pair

    def lengths(of: Model) -> dict[str, int] | None:
        return dict(short_lengths(of.info.client_inputs, company.length)) if company.length else None

    most = model.info.batching.max_batch
    mosts = [other.info.batching.max_batch for other in others]
    samplers = [PairSampler(ends_and_middle(most), ends(rows), most=company.repeats) for rows in mosts]
    with progress(company.budget_s, sum(len(sampler.visits) for sampler in samplers)) as told:

        def settled(_: int) -> None:
            told(sum(sampler.done for sampler in samplers))

        for other, rows, sampler in zip(others, mosts, samplers, strict=True):
            device = company.device(max(most, rows))
            with PairBench(device, (model, other), (most, rows), (lengths(model), lengths(other))) as bench:
                bench.warm()
                measure_pair(bench, sampler, company.budget_s / len(others), settled)
                placed, beside = bench.placed
            extra = {
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "torch": torch.__version__,
                "precision": company.precision,
                "lengths": [dict(one) for one in bench.lengths],
            }
            yield key_of(placed, device), Pair(other.info.name, architecture_of(beside), sampler.times(), extra)


def _show(key: Key, pairs: Sequence[Pair], kept: Path | None) -> None:
    """A table of all that was measured, and a line for each pair."""
    out = Console()

    def say(text: str) -> None:
        out.print(text, highlight=False, soft_wrap=True)

    say(f"{key.model} on {key.device}, {key.threads} thread(s) per worker, two workers")
    staged = any(time.stages for pair in pairs for time in pair.times)
    table = Table("beside", "rows", "ms alone", "ms beside", "slower", "spread", "speed", "runs")
    for column in table.columns:
        column.justify = "right"
    if staged:
        table.add_column("slower by stage")
    for pair in pairs:
        for time in sorted(pair.times, key=lambda one: (one.beside_rows, one.rows)):
            by_stage = [" ".join(f"{ratio:.1%}" for ratio in time.stages)] if staged else []
            table.add_row(
                f"{time.beside_rows} of {pair.model}", str(time.rows), f"{time.alone_ns / 1e6:.3f}",
                f"{time.beside_ns / 1e6:.3f}", f"{time.slower:.1%}", f"{time.spread:.1%}", f"{time.speed:.0%}",
                str(time.visits), *by_stage,
            )  # fmt: skip
    out.print(table)
    for pair in pairs:
        speeds = [time.speed for time in pair.times]
        say(
            f"{key.model} is slowed by {pair.slower:.1%} at most beside {pair.model}, which keeps {min(speeds):.0%} to "
            f"{max(speeds):.0%} of its speed"
        )
    if kept is not None:
        say(f"kept       {kept}")
