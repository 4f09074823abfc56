"""Invariant: a pair is known by ratios of times that lie next to one another, of each combination of sizes."""

from __future__ import annotations

from collections import Counter
from itertools import count, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.profiling.pairs import PairSampler, Visit, ends, ends_and_middle

MS = 1_000_000


def visited(sampler: PairSampler, visit: Visit) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    while (sizes := sampler.next()) is not None:
        found[sizes] += 1
        sampler.add(sizes, visit)
    return found


@given(st.integers(1, 300))
def test_sizes_hold_both_ends(max_batch: int):
    assert ends(max_batch) == sorted({1, max_batch})
    assert set(ends(max_batch)) <= set(ends_and_middle(max_batch)) <= set(range(1, max_batch + 1))
    assert len(ends_and_middle(max_batch)) == min(3, max_batch)


def test_the_middle_is_that_of_the_octaves():
    assert [ends_and_middle(most) for most in (8, 16, 32, 64)] == [[1, 4, 8], [1, 4, 16], [1, 8, 32], [1, 8, 64]]


def test_each_pass_visits_every_combination_once():
    sampler = PairSampler([1, 4, 8], [1, 16])
    passes = [[sampler.next() for _ in range(6)] for _ in range(3)]
    assert all(sorted(one) == sorted(product([1, 4, 8], [1, 16])) for one in passes)  # type: ignore[type-var]
    assert not sampler.complete
    assert {tuple(sampler.order()) for _ in range(50)} == {
        (0, 1, 2),
        (0, 2, 1),
        (1, 0, 2),
        (1, 2, 0),
        (2, 0, 1),
        (2, 1, 0),
    }


def test_what_agrees_is_left_alone_and_what_does_not_is_bounded():
    sampler = PairSampler([1, 2], [1], most=9)
    noise, visits = count(), Counter()
    while (sizes := sampler.next()) is not None:
        visits[sizes] += 1
        beside = 110 if sizes == (1, 1) else 110 + 10 * (next(noise) % 2)
        sampler.add(sizes, Visit(100, beside, 50, 100))
    assert visits == {(1, 1): 5, (2, 1): 9}
    assert sampler.complete
    assert sampler.done == 2


def test_a_machine_that_drifts_bends_nothing():
    """It becomes ten times as slow from visit to visit; the ratio stays."""
    sampler = PairSampler([4], [8])
    for power in range(5):
        slow = 10**power
        sampler.add((4, 8), Visit(100 * slow, 103 * slow, 200 * slow, 250 * slow))
    (time,) = sampler.times()
    assert (time.rows, time.beside_rows, time.slower, time.speed, time.visits) == (4, 8, 0.03, 0.8, 5)
    assert (time.alone_ns, time.beside_ns, time.spread, time.stages) == (10_000, 10_300, 0.0, ())


def test_stages_each_by_itself():
    sampler = PairSampler([1], [1], least=2)
    assert visited(sampler, Visit(100, 110, 9, 9, (60, 40), (63, 47))) == {(1, 1): 2}
    assert sampler.times()[0].stages == (0.05, 0.175)
    single = PairSampler([1], [1], least=1)
    visited(single, Visit(100, 110, 9, 9, (100,), (110,)))
    assert single.times()[0].stages == ()


def test_what_was_not_timed_is_left_out():
    sampler = PairSampler([1, 2], [1])
    assert sampler.times() == ()
    sampler.add((2, 1), Visit(MS, MS, MS, MS))
    assert [(time.rows, time.slower) for time in sampler.times()] == [(2, pytest.approx(0))]
