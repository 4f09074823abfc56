"""What becomes of rows is what one table says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tiers import full, repeatable

from app.scheduler.rows.ledger import TRANSITIONS, Ledger
from app.scheduler.types import Call, Row, RowState

from .test_invariants import cells
from .world import Trace, World

#: The methods that change rows.
METHODS = ("start", "make_ready", "stay", "retry", "end", "end_rows", "leave")


@full
def test_rows_change_in_every_way_that_the_table_has_and_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to long rows. And as many rows are alive as are in the states that count so."""
    seen: set[tuple[RowState, RowState]] = set()

    def watch(name: str) -> None:
        method = getattr(Ledger, name)

        def watching(ledger: Ledger, *args: Any, **options: Any) -> None:
            first = args[0]
            rows = [first] if isinstance(first, Row) else first.rows if isinstance(first, Call) else list(first)
            before, alive = [row.state for row in rows], ledger.alive
            method(ledger, *args, **options)
            after = [row.state for row in rows]
            assert ledger.alive - alive == sum(map(is_alive, after)) - sum(map(is_alive, before))
            seen.update((one, other) for one, other in zip(before, after, strict=True) if one is not other)

        monkeypatch.setattr(Ledger, name, watching)

    for name in METHODS:
        watch(name)

    @repeatable(200)
    @given(cells())
    def happens(trace: Trace) -> None:
        World(trace).run()

    happens()
    assert seen == {(source, target) for (source, _), target in TRANSITIONS.items() if source is not target}


def is_alive(state: RowState) -> bool:
    return RowState.WAITING < state < RowState.ENDED
