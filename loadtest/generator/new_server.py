"""One load on a server that was started for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.common.servers import MeasurementError, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session, in_loop
from loadtest.generator.stats import Repeat


def on_new_server(flags: Sequence[str], *, warm_up_s: float = 0.0, **fields: Any) -> Repeat:
    """Binary requests to `starling serve` with these flags, without or after so many seconds of the same load.

    `fields`: of the BenchPlan. Raises MeasurementError if a request failed.
    """
    with starling(flags) as server:
        plan = BenchPlan(url=server.url, payload="binary", repeats=1, **fields)
        server.wait_ready()
        repeat = in_loop(_once(plan, warm_up_s))
    for example in repeat.examples.values():
        raise MeasurementError(f"{plan.model}: {example}")
    return repeat


async def _once(plan: BenchPlan, warm_up_s: float) -> Repeat:
    async with Session(plan) as session:
        if warm_up_s:
            await session.once(plan, plan.seed + 1000, warm_up_s)
        return await session.once(plan, plan.seed, plan.duration_s)
