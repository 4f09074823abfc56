"""Control tables: when they are solved again, where they are kept."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace

import pytest
from fakes import virtual

from app.engine.profiling import tables as tables_module
from app.engine.profiling.profiled_model import Origin
from app.engine.profiling.review import Review
from app.engine.profiling.tables import solve_aside, tables_of
from app.errors import ConfigError
from app.scheduler.estimates.latency import LiveTimes
from app.scheduler.estimates.profile import ModelProfile, linear
from app.scheduler.optimal import tables as control
from app.scheduler.types import Profile

from ..rig import assert_answer, device, make_model, serving

# Control tables: solved for the policy that uses them, kept beside the profiles, replaced with the profile.


PROFILE = linear(4, 1, 4)


def level_of(rig):
    state = rig.engine.scheduler.states[rig.served.program]
    return state.estimates.control


def has_been_measured(rig):
    rig.served.profiled.profile = PROFILE
    rig.served.profiled.origin = Origin.MEASURED
    rig.engine.profiling._on_profile(rig.served.profiled)
    rig.engine.profiling._want_tables(rig.served.profiled)


@virtual
async def test_tables_are_solved_for_adaptive_alone_and_again_when_it_has_been_measured() -> None:
    first = make_model(policy="adaptive", max_batch=4)
    async with serving(first, make_model(name="n", policy="no_wait")) as rig:
        await rig.loop.turn(3)
        states = [rig.engine.scheduler.states[served.program] for served in rig.models]
        assert [state.estimates.control is None for state in states] == [False, True]
        assert_answer(await rig.ask(10.0), 10.0)
        has_been_measured(rig)
        await rig.loop.turn(3)
        assert level_of(rig) == control.solve(PROFILE.stage())


@virtual
async def test_several_workers_have_no_tables_before_the_model_has_been_measured() -> None:
    """A warm-up runs each size once: a table from a spike there would leave a worker idle for ever."""
    async with serving(make_model(policy="adaptive", max_batch=4), device=device(4, 4)) as rig:
        await rig.loop.turn(3)
        assert level_of(rig) is None
        has_been_measured(rig)
        await rig.loop.turn(3)
        assert level_of(rig).workers == 2


def test_a_process_of_its_own_solves_the_same() -> None:
    curve = Profile(batch_ns=(5_000_000, 9_000_000, 14_000_000, 10_000_000), errors=(0.02,) * 4)
    aside, here = solve_aside(curve, loads=(0.5, 0.9)), control.solve(curve, loads=(0.5, 0.9))
    assert aside.mean_ns == pytest.approx(here.mean_ns)  # the last places depend on where numpy's arrays lie
    assert replace(aside, mean_ns=here.mean_ns) == here


@virtual
async def test_a_model_whose_tables_cannot_be_solved_is_served_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise ArithmeticError("no solution")

    monkeypatch.setattr(tables_module.control, "solve", fails)
    with caplog.at_level(logging.ERROR, "starling.engine"):
        async with serving(make_model(policy="adaptive")) as rig:
            await rig.loop.turn(3)
            assert_answer(await rig.ask(10.0), 10.0)
    assert "its tables are not solved, batches are formed as by no_wait" in caplog.text


@virtual
async def test_policy_that_the_device_cannot_serve_is_a_config_error() -> None:
    async with serving(make_model(policy="window"), device=device(1, 4)) as rig:
        with pytest.raises(ConfigError, match=r"^policy: ebird shares a device with no other policy, here window"):
            await rig.engine.start(make_model(name="e", policy="ebird"))


class TestKept:
    def test_found_again(self, tmp_path, monkeypatch) -> None:
        solved = tables_of(PROFILE, 1, tmp_path / "new")
        (kept,) = (tmp_path / "new").iterdir()
        monkeypatch.setattr(tables_module.control, "solve", None)  # it would fail if it were asked
        assert tables_of(PROFILE, 1, tmp_path / "new") == solved
        assert json.loads(kept.read_text())["workers"] == 1

    def test_those_of_stages_have_values_and_a_file_of_their_own(self, tmp_path) -> None:
        plain = tables_of(PROFILE, 1, tmp_path)
        staged = replace(PROFILE, stages=(linear(2, 0.5, 4),) * 2)
        solved = tables_of(staged, 1, tmp_path)
        assert not plain.values
        assert len(solved.values) == len(solved.loads)
        assert solved == control.solve(PROFILE.stage(), values=True, handovers=2)
        assert len(list(tmp_path.iterdir())) == 2

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '{"loads": 3}'])
    def test_a_spoilt_file_is_solved_anew(self, tmp_path, text: str) -> None:
        solved = tables_of(PROFILE, 1, tmp_path)
        (kept,) = tmp_path.iterdir()
        kept.write_text(text)
        assert tables_of(PROFILE, 1, tmp_path) == solved


def test_a_process_that_ends_does_not_wait_for_a_solution() -> None:
    program = (
        "import threading; from app.engine.profiling.tables import DaemonThreads as D;"
        "print(D().submit(sum, [1, 2]).result()); D().submit(threading.Event().wait)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "3\n")


# Tables are solved again when the curve has moved by more than its error, and seldom; contradiction needs evidence.


S = 1_000_000_000
KNOWN = ModelProfile(linear(7, 0.6, 8).batch_ns, errors=(0.02,) * 8)


def live(off: float, batches: int, size: int = 3) -> LiveTimes:
    """So many batches of each size took what was predicted, those of one were `off` from it."""
    found = LiveTimes(KNOWN.errors)
    for _ in range(batches):
        for one in range(1, 9):
            predicted = found.factors[one - 1]
            found.observe(one, (1 + off if one == size else 1) / predicted - 1)
    return found


def test_a_size_that_has_moved_is_solved_for_once() -> None:
    review, seen = Review(KNOWN, 0), live(-0.3, 200)
    assert review.corrected([seen], 9 * S) is None  # too soon
    corrected = review.corrected([seen], 11 * S)
    assert corrected is not None
    assert corrected.batch_ns[2] < 0.8 * KNOWN.batch_ns[2]
    assert corrected.errors == seen.errors()
    assert review.corrected([seen], 300 * S) is None


def test_however_the_curve_moves_solutions_are_ever_further_apart() -> None:
    review, moving = Review(KNOWN, 0), (live(0.4, 100), live(-0.3, 100))
    solved = [review.corrected([moving[second % 2]], second * S) is not None for second in range(6000)]
    assert 7 <= sum(solved) <= 10


def test_a_profile_is_contradicted_by_enough_batches_far_off() -> None:
    review = Review(KNOWN, 0)
    assert review.contradicted([live(-0.5, 100)])
    assert not review.contradicted([live(-0.5, 10)])
    assert not review.contradicted([live(-0.08, 100)])


def test_of_a_model_in_stages_all_stages_count() -> None:
    stages = (ModelProfile(KNOWN.batch_ns), ModelProfile(KNOWN.batch_ns))
    whole = ModelProfile(tuple(2 * time for time in KNOWN.batch_ns), stages=stages, errors=KNOWN.errors)
    corrected = Review(whole, 0).corrected([live(-0.4, 200), live(0.0, 200)], 61 * S)
    assert corrected is not None
    assert 0.75 < corrected.batch_ns[2] / whole.batch_ns[2] < 0.85
    assert corrected.stages[0].batch_ns[2] < 0.7 * stages[0].batch_ns[2]


def test_others_that_slow_a_batch_more_than_profiled_are_solved_for() -> None:
    """Also where the profile says nothing of units at once."""
    one = LiveTimes(KNOWN.errors)
    for _ in range(100):
        one.shared.observe(1.0, 0.0, 1.0)
        one.shared.observe(0.0, 1.0, 0.5)
    corrected = Review(KNOWN, 0, 2).corrected([one], 11 * S)
    assert corrected is not None
    assert corrected.times(2)[3] == pytest.approx(2 * KNOWN.batch_ns[3], rel=0.05)
    assert corrected.batch_ns[3] == pytest.approx(KNOWN.batch_ns[3], rel=0.02)
