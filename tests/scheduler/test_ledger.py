"""A call leaves once, with the rows of it that wait; a closed program is forgotten with its last call and unit."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tiers import few

from app.scheduler.rows.ledger import Ledger
from app.scheduler.types import AT_ONCE, Call, Klass, Profile, Row, RowState, Stage

from .world import Arrival, Trace, World, make_device, make_program

#: All ways for a row to change: the method, from where to where, and how the number of rows on the device may change.
ROW_TRANSITIONS = (
    ("enter", None, RowState.WAITING, (0,)),
    ("start", RowState.WAITING, RowState.RUNNING, (0, 1)),
    ("make_ready", RowState.RUNNING, RowState.WAITING, (0,)),
    ("retry", RowState.RUNNING, RowState.WAITING, (0, -1)),
    ("end", RowState.RUNNING, RowState.ENDED, (-1,)),
    ("end_unit", RowState.RUNNING, RowState.ENDED, (-1,)),
    ("leave", RowState.WAITING, RowState.ENDED, (0, -1)),
)


class TestTransitions:
    """What moves rows and calls is what the tables say, whatever happens."""

    def watched(self, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, RowState | None, RowState, int]]:
        """Run random traces; return how rows changed: by which method, from which state to which, and `alive` by how
        much. `end` is called by `leave` too, for rows that wait."""
        seen: set[tuple[str, RowState | None, RowState, int]] = set()

        def watch(name: str) -> None:
            method = getattr(Ledger, name)

            def watching(ledger: Ledger, *args: Any, **options: Any) -> None:
                first = args[0]
                given = [first] if isinstance(first, Row) else first.rows if isinstance(first, Call) else first
                new = name == "enter"
                before = [(row, None if new else row.state, row.started) for row in given]
                method(ledger, *args, **options)
                for row, state, started in before:
                    if state is not row.state:
                        seen.add((name, state, row.state, row.started - started))

            monkeypatch.setattr(Ledger, name, watching)

        for name in {method for method, *_ in ROW_TRANSITIONS}:
            watch(name)
        for seed in range(300, 300 + few(300)):  # the rarest changes are among the first of them
            World(random_trace(seed)).run()
        return seen

    def test_rows_change_as_the_table_says_and_in_every_way_it_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        allowed = {(method, source, target, one) for method, source, target, alive in ROW_TRANSITIONS for one in alive}
        inside = {("end", RowState.WAITING, RowState.ENDED, alive) for alive in (0, -1)}  # `leave` calls it
        seen = self.watched(monkeypatch)
        assert seen <= allowed | inside
        assert seen - inside == allowed


def random_trace(seed: int) -> Trace:
    """Stages, cells, failures, deadlines, callers who leave, and units behind one another, at random."""
    rng = random.Random(seed)
    ahead_of = seed % 3 == 0
    classes = list(Klass) if ahead_of else [Klass.REALTIME]
    ahead = {"push_depth": 2, "push_ahead_ns": AT_ONCE} if ahead_of else {}
    stages = tuple(Stage(Profile((50, 60, 70)), rng.random() < 0.5) for _ in range(rng.randint(1, 2)))
    arrivals = tuple(
        Arrival(
            at=rng.randrange(600),
            lengths=(2,) * rng.randint(1, 4),
            timeout=rng.choice([None, None, 100, 400]),
            cancel=rng.choice([None, None, 0, 30, 120]),
            steps=rng.randint(1, 3),
            bad=frozenset({0}) if rng.random() < 0.2 else frozenset(),
            klass=rng.choice(classes),
        )
        for _ in range(10)
    )
    device = make_device(3, 2, max_alive=rng.choice([2, 5, 99]), **ahead)
    program = make_program(stages=stages, policy="no_wait", max_batch=3)
    return Trace(device, (program,), arrivals, oom_above=rng.choice([None, 1]))
