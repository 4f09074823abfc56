"""What becomes of rows is what one table says."""

from __future__ import annotations

import pytest
from hypothesis import given
from tiers import full, repeatable

from app.scheduler.rows import ledger
from app.scheduler.rows.ledger import TRANSITIONS, Event
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
