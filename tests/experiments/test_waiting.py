"""The turns of `experiments.costs.waiting` leave as many rows waiting as it says."""

from __future__ import annotations

import pytest

from experiments.costs.waiting import KINDS, Bench, step_us


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_wait_in_every_turn(kind: str) -> None:
    bench = Bench(kind, 100)
    for _ in range(50):
        bench.turn_ns()
        assert 92 <= bench.scheduler.waiting(1) <= 108
    assert step_us(kind, 100, 3) > 0
