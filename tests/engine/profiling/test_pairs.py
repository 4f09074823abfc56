"""Two models side by side. Invariant: a pair is known by ratios of times that lie next to one another."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import MS, Fate, virtual

from app.scheduler.types import Fault
from planner.commands.measured_pairs import OTHER, Visit, combinations, is_known, measure_pair

from ..rig import Rig, device, make_model, serving


def runs_beside(rig: Rig) -> bool:
    """Whether the other worker has a unit."""
    return any(one.worker == OTHER and one.ended is None for one in rig.device.pushed)


@virtual
async def test_each_combination_is_timed_alone_and_beside_until_it_is_known():
    """As often as needed: five times where they agree."""
    models = make_model(name="a", max_batch=2), make_model(name="b", max_batch=2)
    async with serving(*models, device=device(4, 4, ms=1), profile_budget_s=1.0) as rig:
        first, other = (served.profiled for served in rig.models)
        executor: Any = first.executor
        executor.batch_ns = lambda size: size * MS * (3 if runs_beside(rig) else 2) // 2
        found = await measure_pair(rig.engine.profiling.measuring, first, other, 1000.0)
        assert [(one.rows, one.beside_rows) for one in found] == [(1, 1), (1, 2), (2, 1), (2, 2)]
        assert [(one.alone_ms, one.beside_ms, one.slower) for one in found] == [(1, 1.5, 0.5)] * 2 + [(2, 3, 0.5)] * 2
        assert {one.job.executor for one in rig.device.pushed} == {first.executor, other.executor}
        assert not runs_beside(rig)
        timed = len(rig.device.pushed)
        await measure_pair(rig.engine.profiling.measuring, first, other, 0.0)
        assert (len(rig.device.pushed) - timed) * 5 == timed, "one pass, however small the budget"


@pytest.mark.parametrize(
    ("worker", "message"),
    [(0, "model 'a': a batch of 1 rows: as told"), (1, "model 'b': a batch of 1 rows beside 'a': as told")],
)
@virtual
async def test_a_model_that_fails_is_named_with_its_company(worker: int, message: str):
    fails = device(4, 4, fate=lambda pushed: Fate(fault=Fault.MODEL if pushed.worker == worker else None))
    models = make_model(name="a", max_batch=2), make_model(name="b", max_batch=2)
    async with serving(*models, device=fails, profile_budget_s=1.0) as rig:
        with pytest.raises(RuntimeError, match=message):
            await measure_pair(rig.engine.profiling.measuring, *(served.profiled for served in rig.models), 1.0)
        assert not [one for one in rig.device.pushed if one.ended is None]


def test_sizes_that_are_timed():
    assert combinations(1, 1) == [(1, 1)]
    assert combinations(32, 8) == [(1, 1), (1, 8), (8, 1), (8, 8), (32, 1), (32, 8)]


def test_a_slowdown_is_known_when_its_median_is():
    assert is_known([Visit(100, 110)] * 5)
    assert not is_known([Visit(100, 110), Visit(100, 120)] * 4)
