"""What becomes of rows is what one table says."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tiers import few

from app.scheduler.estimates.profile import Profile
from app.scheduler.rows.ledger import TRANSITIONS, Ledger
from app.scheduler.types import AT_ONCE, Call, Klass, Row, RowState, Stage

from .world import Arrival, Trace, World, make_device, make_program

#: The methods that change rows.
METHODS = ("start", "make_ready", "stay", "retry", "end", "end_rows", "leave")


def test_rows_change_in_every_way_that_the_table_has_and_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens. And as many rows are alive as are in the states that count so."""
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
    for seed in range(300, 300 + few(300)):  # the rarest changes are among the first of them
        World(random_trace(seed)).run()
    assert seen == {(source, target) for (source, _), target in TRANSITIONS.items() if source is not target}


def is_alive(state: RowState) -> bool:
    return RowState.WAITING < state < RowState.ENDED


def random_trace(seed: int) -> Trace:
    """Stages, cells, failures, deadlines, callers who leave, and units behind one another, at random."""
    rng = random.Random(seed)
    ahead_of = seed % 3 == 0
    together = 1 + 99 * (seed % 2 == 0)  # some arrive at one time, so that rows of a unit end at different steps
    classes = list(Klass) if ahead_of else [Klass.REALTIME]
    ahead = {"push_depth": 2, "push_ahead_ns": AT_ONCE} if ahead_of else {}
    stages = tuple(Stage(Profile((50, 60, 70)), rng.random() < 0.5) for _ in range(rng.randint(1, 2)))
    arrivals = tuple(
        Arrival(
            at=rng.randrange(600) // together * together,
            lengths=(2,) * rng.randint(1, 4),
            timeout=rng.choice([None, None, 100, 400]),
            cancel=rng.choice([None, None, 0, 30, 120]),
            steps=rng.randint(1, 3),
            bad=frozenset({0}) if rng.random() < 0.2 else frozenset(),
            klass=rng.choice(classes),
        )
        for _ in range(10)
    )
    device = make_device(3, 2, max_alive=rng.choice([2, 5, 99]), multi_step=seed % 2 == 0, **ahead)
    program = make_program(stages=stages, policy="no_wait", max_batch=3)
    return Trace(device, (program,), arrivals, oom_above=rng.choice([None, 1]))
