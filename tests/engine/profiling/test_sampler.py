"""Which batches are timed next: each cell once, then always the one that is known worst."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from app.engine.profiling.idle import Sampler, size_sets
from app.scheduler.estimates.evidence import Point, UnitTime
from app.scheduler.estimates.profile import Profile

MS = 1_000_000


# what to measure


@given(st.integers(1, 300))
def test_coarser_sets_keep_both_ends(max_batch: int):
    sets = size_sets(max_batch)
    assert sets[0] == list(range(1, max_batch + 1))
    assert [len(sizes) for sizes in sets] == sorted((len(sizes) for sizes in sets), reverse=True)
    assert all({1, max_batch} <= set(sizes) <= set(sets[0]) and sizes == sorted(set(sizes)) for sizes in sets)


# the sampler


KNOWN = Profile((MS, 2 * MS, 3 * MS, 4 * MS), errors=(0.25,) * 4)


def test_a_point_whose_times_agree_is_left_alone_and_the_worst_known_is_next():
    sampler, visits = Sampler(KNOWN, [Point(1, 1), Point(2, 2)]), Counter()
    order = []
    noise = count()
    while (point := sampler.next()) is not None:
        order.append(point)
        visits[point] += 1
        ns = MS if point == Point(1, 1) else 2 * MS + MS * (next(noise) * 37 % 101) // 50
        sampler.add(point, [UnitTime(ns)] * point.units)
    assert order[:2] == [Point(1, 1), Point(2, 2)]
    assert visits[Point(1, 1)] <= 10
    assert visits[Point(2, 2)] == 20


def test_larger_batches_of_a_dropped_length_are_not_timed():
    sampler = Sampler(KNOWN, [Point(1, 1), Point(1, 1, 8), Point(1, 2, 8), Point(1, 4, 8)])
    sampler.drop(Point(1, 2, 8))
    left = []
    while (point := sampler.next()) is not None:
        left.append(point)
        sampler.add(point, [UnitTime(MS)])
    assert set(left) == {Point(1, 1), Point(1, 1, 8)}
