"""What becomes of rows is what one table says, and how late the driver's timers are is learnt."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from tiers import few, full, repeatable

from app.scheduler.rows import ledger
from app.scheduler.rows.ledger import LATE_TIMER_NS, TRANSITIONS, Deadlines, Event
from app.scheduler.types import RowState

from .test_invariants import cells
from .world import Trace, World


@full
def test_rows_change_in_every_way_that_the_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to long rows. A change that it does not have fails a trace, as does a wrong count of rows alive
    (`Book.check`)."""
    seen: set[tuple[RowState, Event]] = set()

    class Noted(dict[RowState, RowState]):
        """The changes of one event, each noted when it is looked up."""

        def __init__(self, event: Event) -> None:
            super().__init__({state: to for (state, one), to in TRANSITIONS.items() if one is event})
            self.event = event

        def __getitem__(self, state: RowState) -> RowState:
            seen.add((state, self.event))
            return super().__getitem__(state)

    for event in Event:
        monkeypatch.setattr(ledger, f"_{event.name}", Noted(event))

    @repeatable(200)
    @given(cells())
    def happens(trace: Trace) -> None:
        World(trace).run()

    happens()
    assert seen == set(TRANSITIONS)


@pytest.mark.parametrize("deviation", [0.2, 1.0])
def test_one_timer_in_a_hundred_is_later_than_expected(deviation: float) -> None:
    deadlines, drawn = Deadlines({}), random.Random(1)
    late, seen = 0, few(100_000)
    for _ in range(seen):
        took = round(LATE_TIMER_NS * drawn.gauss(3, deviation))
        late += took > deadlines.timer_ns
        deadlines.woke(took)
    assert 0.006 * seen < late < 0.014 * seen + 20


def test_how_late_timers_are_follows_within_its_bounds() -> None:
    """Timers that are late, in time again, and stalls."""
    deadlines, unit = Deadlines({}), LATE_TIMER_NS
    for took, often, low, high in ((3.0, 200, 2.9, 3.3), (0.1, 2_000, 1.0, 1.0), (500.0, 200, 10.0, 10.0)):
        for _ in range(often):
            deadlines.woke(round(took * unit))
        assert low <= deadlines.timer_ns / unit <= high
