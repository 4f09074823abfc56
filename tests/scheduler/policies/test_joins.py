"""`Adaptive.joins` against brute force: of two ways that rows could go, the one with the smaller sum of latencies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import pytest
from tiers import some

from app.scheduler.policies.adaptive import Adaptive
from app.scheduler.policies.view import JoinOffer

from ..cells import Curve, sum_of_latencies

CURVES: dict[str, Curve] = {
    "flat": lambda rows: 10,
    "linear": lambda rows: 10 * rows,
    "overhead": lambda rows: 20 + 3 * rows,
    "slope": lambda rows: 3 + 10 * rows,
    "bends": lambda rows: 10 + 10 * max(0, rows - 2),
    "jagged": lambda rows: [0, 5, 9, 14, 12, 13, 20, 22][rows],
}


def cases() -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Steps left of each row that runs, rows that would join, and their steps."""
    for runners, joiners in product((1, 2, 3), (1, 2, 3)):
        for lengths in combinations_with_replacement(range(1, 8), runners):
            for steps in range(1, 8):
                yield lengths, joiners, steps


def chosen(lengths: tuple[int, ...], joiners: int, steps: int, time: Curve) -> bool:
    left = min(lengths)
    stay = [length - left for length in lengths if length > left]
    return Adaptive().joins(
        JoinOffer(
            left=left,
            ending=len(lengths) - len(stay),
            stay=stay,
            joiners=joiners,
            steps=steps,
            time=time,
            boundary_ns=0,
        )
    )


@pytest.mark.parametrize("curve", CURVES)
def test_rows_join_where_that_has_the_smaller_sum_of_latencies(curve: str) -> None:
    """Exactly where the rows that stay end together; else nearly so, with what the first of them has before it."""
    time, best, ours = CURVES[curve], 0, 0
    for lengths, joiners, steps in some(cases()):
        ways = [sum_of_latencies(lengths, joiners, steps, time, now=now) for now in (False, True)]
        best += min(ways)
        ours += (took := ways[chosen(lengths, joiners, steps, time)])
        if len(set(lengths)) <= 2:
            assert took == min(ways), (lengths, joiners, steps)
    assert ours <= 1.001 * best


def test_rows_of_one_step_time_do_not_wait_for_a_long_unit() -> None:
    assert chosen((290,), 1, 1, CURVES["linear"])
    assert not chosen((290,), 1, 290, CURVES["linear"]), "they would only share the time"
