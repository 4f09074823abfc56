"""What `adaptive` chooses between two stages, and that slicing a model makes nothing worse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tiers import full

from app.scheduler.estimates.lengths import LengthTimes
from app.scheduler.estimates.parts import StagePlan
from app.scheduler.estimates.profile import ModelProfile, linear
from app.scheduler.optimal.tables import ControlTables, solve
from app.scheduler.policies import Cut, Facts, Hold, KeyView, Neighbours, policy_class
from app.scheduler.rows.ready import LengthWindow
from app.scheduler.types import Formed, Profile
from planner.fleet import Setup, run

from ..views import view_of

MS = 1_000_000
LARGEST = 8
FLAT = (4 * MS,) * LARGEST  # what remains takes as long for any number of rows
STEEP = tuple(size * MS for size in range(1, LARGEST + 1))  # batching brings nothing


@cache
def tables(whole: tuple[int, ...]) -> ControlTables:
    return solve(Profile(whole), loads=(0.1, 0.5, 0.9), values=True)


def view(ready: int, stage: int, stages: list[tuple[int, ...]], upstream: tuple[int, int] = (-1, 0), *,
         level: int = 1, downstream: int = 0) -> KeyView:  # fmt: skip
    """Of an idle device with one worker, in front of a stage of a program."""
    whole = tuple(map(sum, zip(*stages, strict=True)))
    facts = Facts(level=level, control=tables(whole), plan=StagePlan.of(stages))
    neighbours = Neighbours(
        cell=False, batch=None, here=ready, newcomers=False, latest=None, last_formed=-1, active=ready,
        other_buckets=0, oldest=0, upstream_stage=upstream[0], upstream=upstream[1], downstream=downstream,
        downstream_stage=stage + 1 if downstream else -1, waiting_before=upstream[1], waiting_after=0,
    )  # fmt: skip
    made = view_of(ready, min(ready, LARGEST), LARGEST, facts=facts)
    return replace(made, running_and_free=lambda: (1, 1), stage=stage, neighbours=neighbours)


def decide(given: KeyView, now: int = 0) -> Cut | Hold:
    return policy_class("adaptive")().decide(given, (LARGEST,), now)


@full
def test_goes_on_where_nobody_comes_and_batching_pays() -> None:
    assert decide(view(3, 1, [FLAT, FLAT])) == Cut(3, 3, Formed.IDLE)
    assert decide(view(LARGEST, 1, [FLAT, FLAT])) == Cut(LARGEST, LARGEST, Formed.FULL)


def test_waits_for_rows_that_catch_up_soon() -> None:
    """Two thirds of the way are still to go, and many are behind; not for one where most of the way is done."""
    short = (MS // 10,) * LARGEST
    assert decide(view(1, 1, [short, FLAT], (0, 3))) == Hold(None)
    assert decide(view(6, 1, [FLAT, short], (0, 1))) == Cut(6, 6, Formed.IDLE)


def test_a_stage_runs_a_batch_in_parts_and_the_first_waits_for_the_others() -> None:
    """The first stage is fastest in fours, the second takes as long for any number."""
    fours = (4 * MS,) * 4 + (12 * MS,) * 4
    begin = view(LARGEST, 0, [fours, FLAT], level=2)
    assert decide(begin) == Cut(4, 4, Formed.TABLE)
    assert decide(view(4, 1, [fours, FLAT], (0, 8), level=2)) == Hold(None)
    joining = view(8, 0, [fours, FLAT], level=2, downstream=4)
    assert decide(joining) in (Cut(4, 4, Formed.IDLE), Cut(4, 4, Formed.TABLE))


def test_each_stage_is_padded_to_the_size_that_is_fastest_for_it() -> None:
    uneven = (2 * MS, 9 * MS, 9 * MS, 3 * MS, *(9 * MS,) * 4)
    given = view(2, 1, [FLAT, uneven])
    given.facts.sizes = ((), ((1, 4, 4, 4, 5, 6, 7, 8),))
    assert decide(given) == Cut(2, 4, Formed.IDLE)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"running_and_free": lambda: (2, 1)}, id="another-unit-runs"),
        pytest.param({"running_and_free": lambda: (1, 2)}, id="another-worker-is-free"),
        pytest.param({"due": 0}, id="a-deadline"),
    ],
)
def test_does_not_wait(change: dict[str, Any]) -> None:
    given = view(1, 1, [(MS // 10,) * LARGEST, FLAT], (0, 3))
    assert decide(replace(given, **change)) == Cut(1, 1, Formed.IDLE)


def sliced(profile: ModelProfile, shares: tuple[float, ...]) -> ModelProfile:
    stages = (ModelProfile(tuple(round(time * share) for time in profile.batch_ns)) for share in shares)
    return replace(profile, stages=tuple(stages))


PROFILES = {
    "overhead": linear(7, 0.6, 32),
    "cnn": linear(0.2, 3, 32),
    "gpu": ModelProfile(tuple(round((4 + 0.4 * max(0, size - 8)) * MS) for size in range(1, 33))),
}


@cache
def at_load(name: str, load: float) -> tuple[Setup, float]:
    """A profile served whole at a share of its peak, and the mean latency in ms."""
    profile = PROFILES[name]
    setup = Setup(profile, load * profile.peak, "adaptive", requests=1_000, max_queue=1 << 20)
    return setup, run(setup)["mean_ms"]


@full
@pytest.mark.parametrize(
    ("name", "shares"),
    [*((name, (0.25,) * 4) for name in PROFILES), ("overhead", (0.5, 0.5)), ("gpu", (0.1, 0.9))],
    ids=str,
)
def test_never_worse_than_the_unsliced_model(name: str, shares: tuple[float, ...]) -> None:
    """The same arrivals for both: what is left of chance is below 1 %."""
    for load in (0.25, 0.9):
        setup, whole = at_load(name, load)
        assert run(replace(setup, profile=sliced(setup.profile, shares)))["mean_ms"] <= 1.01 * whole


class TestLengths:
    """With times by length, runs are judged by their longest row."""

    #: One row as short as 1 takes 1 ms a stage, at 100 as long as any number of them takes in `FLAT`.
    SHORT = ((1, (MS,) * LARGEST), (100, FLAT))

    def decided(self, longest: int, fitting: int, upstream: tuple[int, int]) -> Cut | Hold:
        given = view(1, 1, [(MS // 10,) * LARGEST, FLAT], upstream)
        first = ((1, (MS // 10,) * LARGEST), (100, (MS // 10,) * LARGEST))
        given.facts.lengths = (LengthTimes([first, self.SHORT], LARGEST), LengthTimes([self.SHORT], LARGEST))
        assert given.neighbours is not None
        given.neighbours.longest, given.neighbours.joinable = longest, fitting
        return decide(given)

    def test_goes_on_by_the_times_of_its_longest_row(self) -> None:
        """Short rows gain nothing from a batch, long ones take as long in any: they stay together."""
        given = view(4, 1, [FLAT, STEEP])
        facts = replace(given.facts, remaining=((), STEEP))
        assert not policy_class("adaptive")().passes_through(facts, 1, 4, 0)
        times = LengthTimes([((10, STEEP), (100, tuple(10 * time for time in FLAT)))], LARGEST)
        facts = replace(facts, lengths=(times, times))
        assert not policy_class("adaptive")().passes_through(facts, 1, 4, 10)
        assert policy_class("adaptive")().passes_through(facts, 1, 4, 100)

    def test_follows_with_the_longest_that_fit(self) -> None:
        given = view(5, 0, [FLAT, FLAT], downstream=6)
        given.facts.lengths = (LengthTimes([self.SHORT, self.SHORT], LARGEST), LengthTimes([self.SHORT], LARGEST))
        assert given.neighbours is not None
        given.neighbours.longest_downstream = 20
        given = replace(given, length_window=LengthWindow([8, 18, 19, 20, 90], 2, 5, 155, 8, 90))
        assert decide(given) == Cut(2, 2, Formed.IDLE, shorter=0)  # 19, which is the oldest, and 20
        given.neighbours.longest_downstream = 17  # the oldest is longer than those ahead, and goes by itself
        assert decide(given) == Cut(1, 1, Formed.IDLE, shorter=0)

    def test_waits_for_rows_that_make_it_no_longer(self) -> None:
        assert self.decided(100, 3, (0, 3)) == Hold(None)
        assert self.decided(100, 0, (0, 3)) == Cut(1, 1, Formed.IDLE)  # the oldest of those behind is longer
