"""What `adaptive` chooses between two stages, and that slicing a model makes nothing worse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from tiers import full

from app.scheduler.estimates.lengths import LengthTimes
from app.scheduler.estimates.parts import StagePlan
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal.tables import ControlTables, solve
from app.scheduler.policies import Cut, Hold, Offer, policy_class
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import Formed, Row, Stage
from planner.fleet import Setup, run
from planner.profile_times import linear

from ..driven import MS, feed, finish, scheduler_of
from ..views import estimates_of, offer_of
from ..world import make_call, make_program

LARGEST = 8
FLAT = (4 * MS,) * LARGEST  # what remains takes as long for any number of rows
STEEP = tuple(size * MS for size in range(1, LARGEST + 1))  # batching brings nothing


@cache
def tables(whole: tuple[int, ...]) -> ControlTables:
    return solve(Profile(whole, stages=(Profile(whole),)), loads=(0.1, 0.5, 0.9))


def estimates(stages: list[tuple[int, ...]], level: int = 1, **curves: Any) -> Estimates:
    """Of a program with these times by stage. `curves`: others than follow from these."""
    whole = tuple(map(sum, zip(*stages, strict=True)))
    made = estimates_of(level=level, control=tables(whole))
    for name, value in {"plan": StagePlan.of(stages), **curves}.items():
        setattr(made.curves, name, value)
    return made


def offered(ready: int, stage: int, known: Estimates, upstream: tuple[int, int] = (-1, 0), *,
            downstream: int = 0, **more: Any) -> Offer:  # fmt: skip
    """On an idle device with one worker, in front of a stage."""
    around = SimpleNamespace(
        upstream_stage=upstream[0], upstream=upstream[1], downstream=downstream,
        downstream_stage=stage + 1 if downstream else -1,
    )  # fmt: skip
    most = min(ready, LARGEST)
    return offer_of(ready, most, LARGEST, (LARGEST,), known, stage=stage, around=around, **more)


def decide(offer: Offer) -> Cut | Hold:
    return policy_class("adaptive")().decide(offer, 0)


@full
def test_goes_on_where_nobody_comes_and_batching_pays() -> None:
    known = estimates([FLAT, FLAT])
    assert decide(offered(3, 1, known)) == Cut(3, 3, Formed.IDLE)
    assert decide(offered(LARGEST, 1, known)) == Cut(LARGEST, LARGEST, Formed.FULL)


def test_waits_for_rows_that_catch_up_soon() -> None:
    """Two thirds of the way are still to go, and many are behind; not for one where most of the way is done."""
    short = (MS // 10,) * LARGEST
    assert decide(offered(1, 1, estimates([short, FLAT]), (0, 3))) == Hold(None)
    assert decide(offered(6, 1, estimates([FLAT, short]), (0, 1))) == Cut(6, 6, Formed.IDLE)


def test_a_stage_runs_a_batch_in_parts_and_the_first_waits_for_the_others() -> None:
    """The first stage is fastest in fours, the second takes as long for any number."""
    fours = (4 * MS,) * 4 + (12 * MS,) * 4
    known = estimates([fours, FLAT], 2)
    assert decide(offered(LARGEST, 0, known)) == Cut(4, 4, Formed.TABLE)
    assert decide(offered(4, 1, known, (0, 8))) == Hold(None)
    joining = offered(8, 0, known, downstream=4)
    assert decide(joining) in (Cut(4, 4, Formed.IDLE), Cut(4, 4, Formed.TABLE))


def test_each_stage_is_padded_to_the_size_that_is_fastest_for_it() -> None:
    uneven = (2 * MS, 9 * MS, 9 * MS, 3 * MS, *(9 * MS,) * 4)
    known = estimates([FLAT, uneven], sizes=((), ((1, 4, 4, 4, 5, 6, 7, 8),)))
    assert decide(offered(2, 1, known)) == Cut(2, 4, Formed.IDLE)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"running_and_free": (2, 1)}, id="another-unit-runs"),
        pytest.param({"running_and_free": (1, 2)}, id="another-worker-is-free"),
        pytest.param({"due_at": 0}, id="a-deadline"),
    ],
)
def test_does_not_wait(change: dict[str, Any]) -> None:
    known = estimates([(MS // 10,) * LARGEST, FLAT])
    assert decide(offered(1, 1, known, (0, 3), **change)) == Cut(1, 1, Formed.IDLE)


def sliced(profile: Profile, shares: tuple[float, ...]) -> Profile:
    stages = (Profile(tuple(round(time * share) for time in profile.batch_ns)) for share in shares)
    return replace(profile, stages=tuple(stages))


PROFILES = {
    "overhead": linear(7, 0.6, 32),
    "cnn": linear(0.2, 3, 32),
    "gpu": Profile(tuple(round((4 + 0.4 * max(0, size - 8)) * MS) for size in range(1, 33))),
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


@pytest.mark.parametrize(("deadline", "stage"), [(None, 0), (7 * MS + MS // 8, 1)])
def test_a_row_that_is_due_does_not_wait_for_others(deadline: int | None, stage: int) -> None:
    """Of a scheduler with one worker: three rows would catch up with the first at little cost, but past its time."""
    short = (MS // 10,) * LARGEST
    scheduler = scheduler_of(make_program(stages=(Stage(Profile(short)), Stage(Profile(FLAT))), max_batch=LARGEST))
    scheduler.control(1, tables(tuple(map(sum, zip(short, FLAT, strict=True)))), 0)
    scheduler.states[1].estimates.level = 1
    (unit,) = feed(scheduler, make_call(0, deadline=deadline)).start
    scheduler.submit(make_call(1, 3, arrived=1), 1)
    (following,) = finish(scheduler, unit, MS // 10, compute_ns=MS // 10).start
    assert following.stage == stage


def test_a_unit_picked_by_length_stays_as_it_is() -> None:
    """Rows of other lengths would pad it."""
    times = LengthTimes([((10, STEEP), (100, FLAT))], LARGEST)
    known = estimates([(MS // 10,) * LARGEST, STEEP], lengths=(times, times))
    assert policy_class("adaptive")().passes_through(known, 1, [Row(length=10)] * 4)
    assert decide(offered(1, 1, known, (0, 3))) == Cut(1, 1, Formed.IDLE)
