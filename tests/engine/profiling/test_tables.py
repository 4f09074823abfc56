"""Control tables: where they are solved, and when again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from subprocess import Popen

import pytest
from fakes import virtual

from app.engine.profiling import tables as tables_module
from app.engine.profiling.profiled_model import Origin, ProfiledModel
from app.engine.profiling.tables import Solver
from app.errors import ConfigError
from app.scheduler.estimates.curve import Curve
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from planner.profile_times import linear

from ..rig import assert_answer, device, make_model, raising, serving

# Control tables: solved for the policy that uses them, replaced with the profile.


S = 1_000_000_000
PROFILE = linear(4, 1, 4)


def level_of(rig):
    state = rig.engine.scheduler.states[rig.served.program]
    return state.estimates.control


def has_been_measured(rig):
    rig.served.profiled.profile = PROFILE
    rig.served.profiled.origin = Origin.MEASURED
    rig.engine.profiling._measured(rig.served.profiled)


@virtual
async def test_tables_are_solved_for_adaptive_alone_when_it_has_been_measured() -> None:
    first = make_model(policy="adaptive", max_batch=4)
    async with serving(first, make_model(name="n", policy="no_wait")) as rig:
        await rig.loop.turn(3)
        states = [rig.engine.scheduler.states[served.program] for served in rig.models]
        assert [state.estimates.control is None for state in states] == [True, True]  # no more than a warm-up is known
        assert_answer(await rig.ask(10.0), 10.0)
        has_been_measured(rig)
        await rig.loop.turn(3)
        assert level_of(rig) == control.solve(PROFILE)


@virtual
@pytest.mark.parametrize("workers", [1, 2])
async def test_what_a_warm_up_knows_is_not_enough_for_tables_but_what_live_batches_add_is(workers: int) -> None:
    """A warm-up runs each size once: until more is known, all rows that wait are served.

    Several workers need to know, too, how much their batches slow one another.
    """
    async with serving(make_model(policy="adaptive", max_batch=4), device=device(*[4] * workers)) as rig:
        await rig.loop.turn(3)
        assert level_of(rig) is None
        for _ in range(12):
            assert_answer(await rig.ask(10.0), 10.0)
        await rig.loop.passes(3 * S)
        assert (level_of(rig) is None) == (workers > 1)


@pytest.fixture
async def solver() -> AsyncIterator[Solver]:
    made = Solver()
    yield made
    await made.close()


def process_of(solver: Solver) -> Popen[bytes]:
    return solver._child.process


async def test_a_process_of_its_own_solves_the_same(solver: Solver) -> None:
    curve = Profile(batch_ns=(5_000_000, 9_000_000, 14_000_000, 10_000_000), errors=(0.02,) * 4)
    aside, here = await solver.solve(curve, loads=(0.5, 0.9)), control.solve(curve, loads=(0.5, 0.9))
    assert aside.mean_ns == pytest.approx(here.mean_ns)  # the last places depend on where numpy's arrays lie
    assert replace(aside, mean_ns=here.mean_ns) == here
    with pytest.raises(ValueError, match="profile: expected batch times"):
        await solver.solve(Profile())


async def test_a_process_of_its_own_ends_when_nobody_awaits_its_solution(solver: Solver) -> None:
    first = asyncio.ensure_future(solver.solve(linear(7, 0.6, 32)))
    await asyncio.sleep(0)
    process = process_of(solver)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.get_running_loop().shutdown_default_executor()  # that is, its thread
    assert process.returncode == -signal.SIGKILL


async def test_a_process_of_its_own_solves_all_tables_and_one_that_has_ended_is_replaced(
    solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "solve", os.getpid)
    assert await solver.solve() == await solver.solve() == process_of(solver).pid
    killed = process_of(solver)
    killed.kill()
    await asyncio.to_thread(killed.wait)
    assert await solver.solve() == process_of(solver).pid != killed.pid
    monkeypatch.setattr(control, "solve", os.abort)
    with pytest.raises(EOFError):
        await solver.solve()
    aborted = process_of(solver)
    monkeypatch.setattr(control, "solve", os.getpid)
    assert await solver.solve() == process_of(solver).pid != aborted.pid
    await solver.close()
    assert process_of(solver).returncode == -signal.SIGKILL


@virtual
async def test_a_model_whose_tables_cannot_be_solved_is_served_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables_module.control, "solve", raising(ArithmeticError("no solution")))
    with caplog.at_level(logging.ERROR, "starling.engine"):
        async with serving(make_model(policy="adaptive", max_batch=4)) as rig:
            has_been_measured(rig)
            await rig.loop.turn(3)
            assert_answer(await rig.ask(10.0), 10.0)
    assert "its tables are not solved, batches are formed as by no_wait" in caplog.text


@virtual
async def test_policy_that_the_device_cannot_serve_is_a_config_error() -> None:
    async with serving(make_model(policy="window"), device=device(1, 4)) as rig:
        with pytest.raises(ConfigError, match=r"^policy: ebird shares a device with no other policy, here window"):
            await rig.engine.start(make_model(name="e", policy="ebird"))


# Tables are solved again while batches run, and ever more seldom.


@virtual
async def test_however_the_curve_moves_solutions_are_a_minute_apart_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Profile] = []

    async def solve(solver: Solver, profile: Profile, **options: object) -> ControlTables:
        asked.append(profile)
        return control.solve(profile, loads=(0.5,))

    monkeypatch.setattr(Solver, "solve", solve)
    async with serving(make_model(policy="adaptive", max_batch=4)) as rig:
        (curve,) = rig.served.profiled.curves
        for second in range(600):
            for _ in range(40):
                curve.observe(2, 10_000_000 if second % 20 < 10 else 1_000_000)
                curve.observe(3, 3_000_000)
            await rig.loop.passes(S)
        assert 11 + 7 - 2 <= len(asked) <= 11 + 8  # half as long again each time up to 115 s, then each minute


@virtual
async def test_none_are_solved_for_a_model_that_is_being_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick comes while a last measured batch is waited for: the solution would keep the model."""
    async with serving(make_model(policy="adaptive", max_batch=4)) as rig:
        profiling, model = rig.engine.profiling, rig.served.profiled

        async def unmeasured() -> None:
            for _ in range(40):
                model.curves[0].observe(2, 10_000_000)
            assert model.due.again(model.curves, S)
            profiling.review()

        monkeypatch.setattr(profiling.measuring, "unmeasured", unmeasured)
        await profiling.forget(model)
        assert model not in profiling._to_solve


def test_of_a_model_in_stages_all_stages_count() -> None:
    known = Profile(linear(7, 0.6, 8).batch_ns, errors=(0.02,) * 8)
    whole = Profile(tuple(2 * time for time in known.batch_ns), stages=(known, known), errors=known.errors)
    model = ProfiledModel(None, whole, Origin.CACHE)
    model.curves = [Curve(part) for part in whole.of_stages()]
    for _ in range(100):
        for size in range(1, 9):
            model.curves[0].observe(size, round(known.batch_ns[size - 1] * (0.6 if size == 3 else 1)))
            model.curves[1].observe(size, known.batch_ns[size - 1])
    found = model.learned()
    assert 0.75 < found.batch_ns[2] / whole.batch_ns[2] < 0.85
    assert found.stages[0].batch_ns[2] < 0.7 * known.batch_ns[2]
    assert found.batch_ns[5] == pytest.approx(whole.batch_ns[5], rel=0.03)
