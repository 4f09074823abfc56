"""The default policy: the control table of the load as it is, looked up by the rows that wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import full, repeatable

from app.scheduler.estimates.profile import linear
from app.scheduler.optimal.beside import TimeLeft
from app.scheduler.optimal.tables import ControlTables, solve
from app.scheduler.policies import Cut, Facts, Hold, KeyView, policy_class
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, Outcome, Profile, Step, Unit

from ..test_scheduler import calls_of
from ..views import view_of
from ..world import make_call, make_device, make_program

CI = repeatable(300)
FEW = repeatable(12)
MS, S = 1_000_000, 1_000_000_000
#: At low load one row waits for a second; at high load one and two wait for a third. Three rows are run as four.
TABLES = ControlTables(
    loads=(0.1, 0.9),
    tables=((0, 0, 2, 3, 4, 4, 6, 7, 8), (0, 0, 0, 3, 4, 5, 6, 7, 8)),
    tail=8, sizes=(1, 2, 4, 4, 5, 6, 7, 8), hold_ns=(80 * MS, 12 * MS), peak=1_000.0,
)  # fmt: skip

#: Of two workers, where batches take up to 20 ms: columns for another unit half and wholly before its end.
SEVERAL = ControlTables(
    (0.5,), ((0, 1, 1, 1, 2),), 4, (1, 2, 3, 4), (0,), 1_000.0, 2, (1, 2, 3, 4),
    beside=TimeLeft((4,), (20 * MS,), 2), others=(((0, 1, 2, 2, 4), (0, 0, 0, 0, 4)),),
)  # fmt: skip


def decide(view: KeyView, idle: tuple[int, ...] = (8,), now: int = 0) -> Cut | Hold:
    return policy_class("adaptive")().decide(view, idle, now)


def view(ready: int, level: int = 0, *, limit: int = 8, oldest: int = 0, tables: ControlTables = TABLES) -> KeyView:
    return view_of(ready, limit, 8, oldest, facts=Facts(control=tables, level=level))


class TestPolicy:
    @pytest.mark.parametrize(
        ("ready", "level", "expected"),
        [
            pytest.param(2, 0, Cut(2, 2, "idle"), id="all"),
            pytest.param(5, 0, Cut(4, 4, "table"), id="fewer-than-wait"),
            pytest.param(3, 0, Cut(3, 4, "idle"), id="padded-where-faster"),
            pytest.param(8, 0, Cut(8, 8, "full"), id="full"),
            pytest.param(500, 0, Cut(8, 8, "full"), id="beyond-the-table"),
            pytest.param(1, 0, Hold(80 * MS), id="held"),
            pytest.param(2, 1, Hold(12 * MS), id="held-at-another-level"),
            pytest.param(3, 1, Cut(3, 4, "idle"), id="no-longer-held"),
            pytest.param(1, -1, Cut(1, 1, "idle"), id="hardly-any-load"),
            pytest.param(3, -1, Cut(3, 4, "idle"), id="padded-without-a-level"),
        ],
    )
    def test_table_is_looked_up(self, ready: int, level: int, expected: Cut | Hold) -> None:
        assert decide(view(ready, level)) == expected

    @pytest.mark.parametrize(
        ("ready", "limit", "idle", "expected"),
        [
            pytest.param(8, 2, (2,), Cut(2, 2, "table"), id="small-worker"),
            pytest.param(3, 3, (3,), Cut(3, 3, "idle"), id="no-worker-takes-the-padding"),
            pytest.param(3, 3, (4,), Cut(3, 4, "idle"), id="a-worker-just-takes-it"),
            pytest.param(3, 3, (8,), Cut(3, 4, "idle"), id="padding-needs-no-room"),
        ],
    )
    def test_what_the_device_can_take(self, ready: int, limit: int, idle: tuple[int, ...], expected: Cut) -> None:
        assert decide(view(ready, limit=limit), idle) == expected

    @pytest.mark.parametrize(
        ("ready", "column", "expected"),
        [
            pytest.param(3, 0, Cut(1, 1, "table"), id="both-are-free"),
            pytest.param(3, 1, Cut(2, 2, "table"), id="the-other-ends-soon"),
            pytest.param(3, 2, Hold(30 * MS), id="the-other-has-begun"),
            pytest.param(4, 2, Cut(4, 4, "idle"), id="enough-of-them"),
            pytest.param(9, 2, Cut(4, 4, "table"), id="beyond-the-table"),
        ],
    )
    def test_where_the_other_worker_is_counts(self, ready: int, column: int, expected: Cut | Hold) -> None:
        one = view(ready, tables=SEVERAL, oldest=6 * MS)
        one.column = column
        assert decide(one, now=10 * MS) == expected

    def test_a_wait_for_another_worker_ends(self) -> None:
        """When that ends, however long rows have waited; it is looked for after the time of the largest batch, on a
        device that is as slow as it is. And before a deadline."""
        one = view(3, tables=SEVERAL, oldest=6 * MS)
        one.column, one.facts.scale = 2, 1.5
        assert decide(one, now=35 * MS) == Hold(65 * MS)
        one.due = 60 * MS
        assert decide(one, now=35 * MS) == Hold(60 * MS)
        assert decide(one, now=60 * MS) == Cut(3, 3, "deadline")

    @pytest.mark.parametrize(
        ("column", "due", "expected"),
        [
            pytest.param(1, 1 << 62, Hold(30 * MS), id="until-the-other-ends"),
            pytest.param(0, 1 << 62, Cut(1, 1, "table"), id="there-is-no-other"),
            pytest.param(1, 10 * MS, Cut(2, 2, "table"), id="a-row-is-due"),
        ],
    )
    def test_one_unit_runs_alone_where_the_last_ones_had_company(
        self, column: int, due: int, expected: Cut | Hold
    ) -> None:
        one = view(3, tables=SEVERAL, oldest=6 * MS)
        one.column, one.due, one.facts.crowded = column, due, True
        assert decide(one, now=10 * MS) == expected

    @pytest.mark.parametrize(
        ("due", "now", "expected"),
        [
            pytest.param(1 << 62, 90 * MS - 1, Hold(90 * MS), id="before-the-bound"),
            pytest.param(1 << 62, 90 * MS, Cut(1, 1, "hold_ended"), id="at-the-bound"),
            pytest.param(50 * MS, 20 * MS, Hold(50 * MS), id="before-the-deadline-margin"),
            pytest.param(50 * MS, 50 * MS, Cut(1, 1, "deadline"), id="at-the-deadline-margin"),
            pytest.param(5 * MS, 20 * MS, Cut(1, 1, "deadline"), id="margin-has-passed"),
            pytest.param(95 * MS, 20 * MS, Hold(90 * MS), id="deadline-beyond-the-bound"),
        ],
    )
    def test_hold_ends(self, due: int, now: int, expected: Cut | Hold) -> None:
        """The row came at 10 and is held for at most 80."""
        one = view(1, oldest=10 * MS)
        one.due = due
        assert decide(one, now=now) == expected

    @pytest.mark.parametrize(("running", "size"), [(1, 3), (2, 4)])
    def test_padding_is_what_is_fastest_in_this_company(self, running: int, size: int) -> None:
        """Alone no size is faster than one's own, beside another unit four rows are faster than three."""
        one = view(3, tables=replace(TABLES, workers=2, alone=tuple(range(1, 9))))
        one.running, one.free = running, 1
        assert decide(one) == Cut(3, size, "idle")

    def test_a_slower_device_holds_for_longer(self) -> None:
        """Its rate is the same share of less, so the rows that it waits for take as much longer to come."""
        one = view(1, oldest=10 * MS)
        one.facts.scale = 2.5
        assert decide(one, now=20 * MS) == Hold(210 * MS)


@CI
@given(
    ready=st.integers(1, 80),
    idle=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    full=st.integers(1, 40),
    oldest=st.integers(0, 100),
    delay=st.integers(0, 100),
    now=st.integers(100, 300),
)
def test_without_tables_it_decides_as_no_wait(
    ready: int, idle: list[int], full: int, oldest: int, delay: int, now: int
) -> None:
    idle.sort(reverse=True)
    seen = view_of(ready, min(idle[0], full), full, oldest, delay)
    assert policy_class("adaptive")().decide(seen, idle, now) == policy_class("no_wait")().decide(seen, idle, now)


curves = st.one_of(
    st.lists(st.integers(200_000, 5_000_000), min_size=1, max_size=8),
    st.lists(st.integers(200_000, 5_000_000), min_size=1, max_size=8).map(sorted),
)


@full
@FEW
@given(curves, st.integers(1, 3), st.integers(1, 2**31))
def test_under_latency_no_usable_worker_idles_while_rows_wait(curve: list[int], workers: int, seed: int) -> None:
    """Whatever the curve, the level and the workers: a cut at a size at which no smaller one is slower.

    Only for another worker a row may wait, and no longer than a batch takes.
    """
    tables = solve(Profile(tuple(curve)), workers=workers, loads=(0.3, 0.8))
    largest = len(curve)
    for ready in (*range(1, 40), 255, 256, 257, 300, 10_000):
        for level in (-1, 0, 1):
            capacities = [1 + (seed * (ready + i)) % 9973 % largest for i in range(1 + ready % 4)]
            idle = tuple(sorted(capacities, reverse=True))
            seen = view_of(ready, idle[0], largest, facts=Facts(control=tables, level=level))
            seen.column = seed % (1 + len(tables.others[level])) if tables.others else 0
            decision = decide(seen, idle)
            if isinstance(decision, Hold):
                assert seen.column
                assert decision == Hold(max(curve))
                seen.column = 0
                decision = decide(seen, idle)
            assert isinstance(decision, Cut)
            assert 1 <= decision.rows <= min(ready, decision.size)
            assert decision.size <= idle[0]
            if tables.sizes[decision.rows - 1] <= idle[0]:
                assert curve[decision.size - 1] == min(curve[decision.rows - 1 :])


class Server:
    """One device under `adaptive`; a window of so many rows, then what a Step says."""

    def __init__(self, device: DeviceSpec, profile: Profile, **options: object) -> None:
        self.scheduler = Scheduler(device)
        stages = make_program(batch_ns=profile.batch_ns).stages
        stages = (replace(stages[0], profile=profile),)
        self.scheduler.add_program(make_program(stages=stages, max_queue=1 << 20, **options), 0)
        self.calls = 0

    def window(self, rows: int, end: int) -> None:
        """So many rows come and go; then the rate monitor's window closes."""
        for _ in range(rows):
            self.calls += 1
            self.scheduler.submit(make_call(self.calls, arrived=end - 1), end - 1)
            self.scheduler.cancel(self.calls, end - 1)
        self.scheduler.tick(end)

    def arrive(self, rows: int, now: int, deadline: int | None = None) -> Step:
        for _ in range(rows):
            self.calls += 1
            self.scheduler.submit(make_call(self.calls, arrived=now, deadline=deadline), now)
        return self.scheduler.step(now)

    def finish(self, unit: Unit, now: int, compute_ns: int = 0) -> Step:
        self.scheduler.finished(Outcome(unit.id, None, compute_ns), now)
        return self.scheduler.step(now)


PROFILE = Profile(tuple(size * MS for size in (1, 2, 5, 4, 5, 6, 7, 8)))


class TestScheduler:
    def server(self, *capacities: int, **options: int) -> Server:
        return Server(make_device(*(capacities or (8,)), **options), PROFILE, max_batch=8)

    def test_level_follows_the_rate_of_the_window(self) -> None:
        """100 of 1000 rows a second: two rows are run. 900: they wait. Nothing at all: one is run."""
        server = self.server()
        server.scheduler.control(1, TABLES, 0)
        for end, rows, ready, started in ((1, 100, 2, [2]), (2, 900, 2, []), (3, 0, 1, [1])):
            server.window(rows, end * S)
            step = server.arrive(ready, end * S)
            assert [len(unit.rows) for unit in step.start] == started
            for unit in step.start:
                server.finish(unit, end * S)
            for call in list(server.scheduler.calls):
                server.scheduler.cancel(call.id, end * S)

    def test_level_follows_the_scale(self) -> None:
        """A device three times as slow has three times the load: 250 rows a second are then nearer to 0.9."""
        server = self.server()
        server.scheduler.control(1, TABLES, 0)
        server.window(250, S)
        (unit,) = server.arrive(2, S).start
        for now in range(100):
            server.finish(unit, S + now, 3 * PROFILE.batch_ns[unit.size - 1])
            (unit,) = server.arrive(3, S + now).start  # three rows are run at any level
        server.finish(unit, S + 100, 3 * PROFILE.batch_ns[3])
        assert server.scheduler.states[1].latency[0].scale == pytest.approx(3, rel=0.05)
        server.window(250, 3 * S)  # with the rows that ran, 277 a second over two seconds
        assert server.arrive(2, 3 * S).start == []

    def test_burst_is_seen_before_the_window_closes(self) -> None:
        """The queue is the table's state: a low level's table serves a burst as it stands."""
        server = self.server()
        server.scheduler.control(1, TABLES, 0)
        server.window(100, S)
        assert [len(unit.rows) for unit in server.arrive(40, S).start] == [8]

    def test_held_row_leaves_in_time_for_its_deadline(self) -> None:
        """One row takes 1 ms; a quarter of that and two late timers of a millisecond are kept in hand."""
        server = self.server()
        server.scheduler.control(1, TABLES, 0)
        server.window(100, S)
        step = server.arrive(1, S, deadline=S + 20 * MS)
        due = S + 20 * MS - MS - MS // 4 - 2 * MS
        assert (step.start, step.wake_at) == ([], due)
        step = server.scheduler.step(due)
        assert [(calls_of(unit), unit.reason) for unit in step.start] == [([101], "deadline")]
        assert step.drop == []


def test_solved_tables_hold_under_energy_and_not_under_latency() -> None:
    """7 + 0.6 b ms at a tenth of the load: a lone row is worth holding only where device time has a price."""
    profile = linear(7, 0.6, 8)
    for weight, held in ((0.0, False), (0.9, True)):
        server = Server(make_device(8), profile.stage(), max_batch=8)
        server.scheduler.control(1, solve(profile.stage(), weight=weight, loads=(0.1,)), 0)
        server.window(round(0.1 * profile.peak), S)
        step = server.arrive(1, S)
        assert (step.start == []) is held
        assert (step.wake_at is not None) is held


class TestBurst:
    """Tables 0 and 1 are for 100 and 900 rows a second. The window has seen 100, and then the rows below come."""

    #: The low table cuts one by one, the high one takes all.
    TELLING = replace(TABLES, tables=((0, *(1 for _ in range(40))), tuple(range(41))), hold_ns=(0, 0))

    def seen(self, ready: int, over_ms: float, level: int = 0) -> int:
        facts = Facts(control=self.TELLING, level=level, rate=100.0 if level == 0 else 900.0)
        cut = decide(view_of(ready, 40, 40, 0, facts=facts), (40,), round(over_ms * MS))
        assert isinstance(cut, Cut)
        return cut.rows

    def test_seen_before_the_window_ends(self) -> None:
        assert self.seen(9, over_ms=10) == 9  # one row was expected
        assert self.seen(8, over_ms=10) == 8

    def test_a_small_burst_leaves_the_table_of_a_higher_rate(self) -> None:
        facts = Facts(control=self.TELLING, level=1, rate=50.0)  # 12 rows in 40 ms are 300 a second
        assert decide(view_of(12, 40, 40, 0, facts=facts), (40,), 40 * MS) == Cut(12, 12, "idle")

    def test_a_cell_that_is_trimmed_runs_no_more_rows_than_pay(self) -> None:
        assert decide(view_of(8, 8, 4)) == Cut(4, 4, "full")

    @pytest.mark.parametrize(
        ("ready", "over_ms"),
        [
            pytest.param(9, 90, id="as-many-as-expected"),
            pytest.param(12, 55, id="within-three-deviations"),
            pytest.param(7, 5, id="too-few-to-say"),
        ],
    )
    def test_chance_is_no_burst(self, ready: int, over_ms: float) -> None:
        assert self.seen(ready, over_ms) == 1

    def test_a_lull_is_left_to_the_window(self) -> None:
        assert self.seen(12, over_ms=500, level=1) == 12

    def test_rows_of_one_instant(self) -> None:
        """Nothing can be said of the rate of what came all at once."""
        assert self.seen(20, over_ms=0) == 1
