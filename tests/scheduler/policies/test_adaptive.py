"""The default policy: the control table of the load as it is, looked up by the rows that wait."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from app.scheduler.estimates.curve import Curve
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.optimal.time_left import TimeLeft
from app.scheduler.policies import Cut, Hold, Offer, policy_class
from app.scheduler.types import Forecast, Formed, Outcome, Unit

from ..driven import feed, scheduler_of
from ..views import estimates_of, offer_of
from ..world import make_call, make_program

CI = repeatable(300)
MS, S = 1_000_000, 1_000_000_000
#: At low load two rows are run one by one, and of five four; at high load all. Three rows are run as four.
TABLES = ControlTables(
    loads=(0.1, 0.9),
    tables=((0, 1, 1, 3, 4, 4, 6, 7, 8), (0, 1, 2, 3, 4, 5, 6, 7, 8)),
    tail=8, sizes=(1, 2, 4, 4, 5, 6, 7, 8), peak=1_000.0,
)  # fmt: skip

#: Of two workers, where batches take up to 20 ms: columns for another unit half and wholly before its end.
SEVERAL = ControlTables(
    (0.5,), ((0, 1, 1, 1, 2),), 4, (1, 2, 3, 4), 1_000.0, 2, (1, 2, 3, 4),
    beside=TimeLeft((4,), (20 * MS,), 2), others=(((0, 1, 2, 2, 4), (0, 0, 0, 0, 4)),),
)  # fmt: skip


def decide(offer: Offer, now: int = 0) -> Cut | Hold:
    return policy_class("adaptive")().decide(offer, now)


def offered(
    ready: int, level: int = 0, *, limit: int = 8, idle: tuple[int, ...] = (8,), tables: ControlTables | None = TABLES,
    known: dict[str, object] | None = None, **more: object,
) -> Offer:  # fmt: skip
    """An offer to a policy with tables. `known`: what else is estimated."""
    return offer_of(ready, limit, 8, idle, estimates_of(control=tables, level=level, **known or {}), **more)


#: The same tables where the fastest size alone is one's own, and four rows are faster than three beside another unit.
COMPANY = replace(TABLES, workers=2, alone=tuple(range(1, 9)))


@pytest.mark.parametrize(
    ("offer", "expected"),
    [
        pytest.param(offered(4), Cut(4, 4, "idle"), id="all"),
        pytest.param(offered(5), Cut(4, 4, "table"), id="fewer-than-wait"),
        pytest.param(offered(3), Cut(3, 4, "idle"), id="padded-where-faster"),
        pytest.param(offered(8), Cut(8, 8, "full"), id="full"),
        pytest.param(offered(500), Cut(8, 8, "full"), id="beyond-the-table"),
        pytest.param(offered(5, level=1), Cut(5, 5, "idle"), id="at-another-level"),
        pytest.param(offered(2, level=-1), Cut(2, 2, "idle"), id="hardly-any-load"),
        pytest.param(offered(3, level=-1), Cut(3, 4, "idle"), id="padded-without-a-level"),
        pytest.param(offered(8, limit=2, idle=(2,)), Cut(2, 2, "idle"), id="small-worker"),
        pytest.param(offered(3, limit=3, idle=(3,)), Cut(3, 3, "idle"), id="no-worker-takes-the-padding"),
        pytest.param(offered(3, limit=3, idle=(4,)), Cut(3, 4, "idle"), id="a-worker-just-takes-it"),
        pytest.param(offered(3, limit=3), Cut(3, 4, "idle"), id="padding-needs-no-room"),
        pytest.param(offered(3, tables=COMPANY), Cut(3, 3, "idle"), id="not-padded-alone"),
        pytest.param(offered(3, tables=COMPANY, running_and_free=(2, 1)), Cut(3, 4, "idle"), id="padded-in-company"),
    ],
)
def test_table_is_looked_up(offer: Offer, expected: Cut) -> None:
    assert decide(offer) == expected


def of_two(ready: int, column: int, now: int, scale: float = 1.0, **more: object) -> Offer:
    """An offer of rows that wait since 6 ms; the other worker's unit has so many halves of its 20 ms left, or is none.

    `scale`: by how much the device is slower than was measured.
    """
    left = round(column * scale * 10 * MS)
    beside = [Unit(0, 1, 1, 0, [], 4, Formed.IDLE, now, Forecast(left, now))] * bool(column)
    return offered(ready, tables=SEVERAL, oldest_at=6 * MS, known={"scale": scale}, beside=beside, **more)


@pytest.mark.parametrize(
    ("now", "offer", "expected"),
    [
        pytest.param(10, of_two(3, 0, 10 * MS), Cut(1, 1, "table"), id="both-are-free"),
        pytest.param(10, of_two(3, 1, 10 * MS), Cut(2, 2, "table"), id="the-other-ends-soon"),
        pytest.param(10, of_two(3, 2, 10 * MS), Hold(30 * MS), id="the-other-has-begun"),
        pytest.param(10, of_two(4, 2, 10 * MS), Cut(4, 4, "idle"), id="enough-of-them"),
        pytest.param(10, of_two(9, 2, 10 * MS), Cut(4, 4, "table"), id="beyond-the-table"),
        pytest.param(35, of_two(3, 2, 35 * MS, 1.5), Hold(65 * MS), id="however-long-rows-have-waited"),
        pytest.param(35, of_two(3, 2, 35 * MS, 1.5, due_at=60 * MS), Hold(60 * MS), id="before-a-deadline"),
        pytest.param(60, of_two(3, 2, 60 * MS, 1.5, due_at=60 * MS), Cut(3, 3, "deadline"), id="due"),
    ],
)
def test_where_the_other_worker_is_counts(now: int, offer: Offer, expected: Cut | Hold) -> None:
    """A wait ends with its unit, which is looked for after the time of the largest batch, or before a deadline."""
    assert decide(offer, now * MS) == expected


@pytest.mark.parametrize(
    ("waiting", "error", "often", "tried"),
    [
        pytest.param(5, 0.2, 100, 5, id="all-rows"),
        pytest.param(9, 0.2, 3, 6, id="a-size-that-may-be-the-fastest"),
        pytest.param(9, 0.01, 3, 8, id="or-is"),
    ],
)
def test_one_decision_in_so_many_is_not_followed(waiting: int, error: float, often: int, tried: int) -> None:
    """While batch times are uncertain: here of six rows, which may serve more a second than eight."""
    times = tuple(MS * rows for rows in (10, 11, 12, 13, 14, 15, 16, 17))
    curve = Curve(Profile(times, errors=(*[0.01] * 5, error, 0.01, 0.01)))
    policy = policy_class("adaptive")()
    found = [policy.decide(offered(waiting, known={"latency": [curve]}), 0) for _ in range(2 * often)]
    rows = [one.rows for one in found if isinstance(one, Cut)]
    usual = TABLES.serve(0, waiting)
    others = {number: ran for number, ran in enumerate(rows, 1) if ran != usual}
    assert others == ({} if tried == usual else {often: tried, 2 * often: tried})
    exact = {"latency": [Curve(Profile(times))]}
    policy = policy_class("adaptive")()
    assert {policy.decide(offered(waiting, known=exact), 0) for _ in range(often)} == {found[0]}


@pytest.mark.parametrize(
    ("waiting", "error", "rows"),
    [
        pytest.param(32, 0.2, 6, id="a-size-that-may-be-the-fastest"),
        pytest.param(32, 0.01, 8, id="or-is"),
        pytest.param(31, 0.2, 8, id="full-batches-may-keep-up"),
        pytest.param(5, 0.2, 5, id="all-rows"),
    ],
)
def test_before_the_first_table_a_long_queue_is_served_by_hope(waiting: int, error: float, rows: int) -> None:
    """Full batches, which the warm-up ran alone, can be so slow beside each other that the queue grows for ever."""
    times = tuple(MS * ms for ms in (10, 11, 12, 13, 14, 15, 16, 17))
    uncertain, exact = (
        {"latency": [Curve(Profile(times, errors=errors))]} for errors in ((*[0.01] * 5, error, 0.01, 0.01), ())
    )
    for known, expected in ((uncertain, rows), (exact, min(waiting, 8))):
        decided = decide(offered(waiting, tables=None, known=known))
        assert isinstance(decided, Cut)
        assert decided.rows == expected


@CI
@given(
    ready=st.integers(1, 80),
    idle=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    full=st.integers(1, 40),
    oldest=st.integers(0, 100),
    delay=st.integers(0, 100),
    now=st.integers(100, 300),
)
def test_without_tables_it_decides_as_no_wait(ready, idle, full, oldest, delay, now) -> None:
    idle.sort(reverse=True)
    seen = offer_of(ready, min(idle[0], full), full, idle, oldest_at=oldest, max_delay=delay)
    assert policy_class("adaptive")().decide(seen, now) == policy_class("no_wait")().decide(seen, now)


def test_the_level_follows_the_rate_of_the_window() -> None:
    """100 of 1000 rows a second: of two rows one is run. 900, or nothing at all: both."""
    times = tuple(size * MS for size in (1, 2, 5, 4, 5, 6, 7, 8))
    scheduler, ident = scheduler_of(make_program(batch_ns=times, max_batch=8)), count()
    scheduler.control(1, TABLES, 0)
    for now, rate, started in ((S, 100, 1), (2 * S, 900, 2), (3 * S, 0, 2)):
        scheduler.refused(1, rate, now)
        scheduler.tick(now)
        (unit,) = feed(scheduler, *(make_call(next(ident), arrived=now) for _ in range(2)), now=now).start
        assert len(unit.rows) == started
        scheduler.finished(Outcome(unit.id), now)
        for call in list(scheduler.calls):
            scheduler.cancel(call.id, now)


#: The low table cuts one by one, the high one takes all.
TELLING = replace(TABLES, tables=((0, *(1 for _ in range(40))), tuple(range(41))))


@pytest.mark.parametrize(
    ("ready", "over_ms", "level", "rows"),
    [
        pytest.param(9, 10, 0, 9, id="one-was-expected"),
        pytest.param(8, 10, 0, 8, id="just-a-burst"),
        pytest.param(9, 90, 0, 1, id="as-many-as-expected"),
        pytest.param(12, 55, 0, 1, id="within-three-deviations"),
        pytest.param(7, 5, 0, 1, id="too-few-to-say"),
        pytest.param(20, 0, 0, 1, id="of-one-instant"),  # nothing can be said of their rate
        pytest.param(12, 500, 1, 12, id="a-lull-is-left-to-the-window"),
    ],
)
def test_a_burst_is_seen_before_the_window_ends(ready: int, over_ms: int, level: int, rows: int) -> None:
    """Tables 0 and 1 are for 100 and 900 rows a second. The window has seen its rate, and then these rows come."""
    known = estimates_of(control=TELLING, level=level, rate=(100.0, 900.0)[level])
    assert decide(offer_of(ready, 40, 40, (40,), known), over_ms * MS).rows == rows
