"""Rows picked by length, and rows that join a cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, combinations_with_replacement, product

import pytest
from tiers import full, some

from app.scheduler.estimates.profile import Profile
from app.scheduler.policies import POLICIES, by_length
from app.scheduler.policies.adaptive import Adaptive
from app.scheduler.policies.offer import JoinOffer
from app.scheduler.types import Klass, Program, Stage, Unit
from planner.fleet import Setup, run

from ..cells import Curve, sum_of_latencies
from ..driven import MS, calls_of, scheduler_of
from ..world import make_call, make_device, make_program

# Rows picked by length: the first always goes, so that nothing waits for ever; what goes beside it pays.


LARGEST = 8


def profile(fixed_ms: float, token_ms: float) -> Profile:
    """b rows, the longest of them of L tokens, take `fixed_ms` + `token_ms` x b x L."""

    def times(length: int) -> tuple[int, ...]:
        return tuple(round((fixed_ms + token_ms * size * length) * MS) for size in range(1, LARGEST + 1))

    return Profile(times(20), by_length=((1, times(1)), (100, times(100))))


PER_TOKEN = profile(4, 0.2)  # what is padded costs


def program(given: Profile = PER_TOKEN, **options: object) -> Program:
    return make_program(stages=(Stage(given),), max_batch=LARGEST, **options)


def lengths_of(unit: Unit) -> list[int]:
    return [row.length for row in unit.rows]


def first_unit(lengths: list[int], given: Profile = PER_TOKEN, **options: object) -> Unit:
    """The first of a device on which these rows wait, in this order."""
    scheduler = scheduler_of(program(given, **options), device=make_device(LARGEST))
    for ident, length in enumerate(lengths):
        scheduler.submit(make_call(ident, lengths=(length,)), 0)
    return scheduler.step(0).start[0]


class TestWhatGoes:
    def test_rows_like_the_oldest_go_with_it(self) -> None:
        assert lengths_of(first_unit([10, 90, 11, 80, 9, 100, 10])) == [10, 11, 9, 10]
        assert lengths_of(first_unit([90, 10, 11, 85, 9, 95, 10])) == [90]  # 85 would save little, and all wait for it
        assert 10 not in lengths_of(first_unit([90, 10, 11, 85, 9, 95, 10], profile(12, 0.1)))

    def test_not_where_the_model_says_no_or_the_policy_does_not_reorder(self) -> None:
        lengths = [10, 90, 11, 80]
        assert lengths_of(first_unit(lengths, reorder=False)) == lengths
        assert lengths_of(first_unit(lengths, policy="no_wait")) == lengths
        known = scheduler_of(program()).states[1].estimates
        assert [name for name, policy in POLICIES.items() if policy().reorders(known)] == ["adaptive", "deadline"]

    def test_rows_of_a_better_class_and_priority_go_first(self) -> None:
        """A worse one is not picked for its length while better rows wait."""
        scheduler = scheduler_of(program(), device=make_device(LARGEST))
        scheduler.submit(make_call(0, lengths=(10,), klass=Klass.BEST_EFFORT), 0)
        for ident, (length, priority) in enumerate([(9, 1), (10, 2), (11, 1)], 1):
            scheduler.submit(make_call(ident, lengths=(length,), priority=priority), 0)
        assert calls_of(scheduler.step(0).start[0]) == [1, 3]


class TestChoice:
    def test_windows_hold_the_first_row(self) -> None:
        lengths = list(range(1, 64))
        sums = [0, *accumulate(lengths)]
        for place, size in product((0, 1, 31, 61, 62), (1, 2, 8, 32, 63)):
            windows = by_length._windows(lengths, sums, place, size)
            assert windows
            assert all(first <= place < first + size <= 63 for first in windows)

    @full
    @pytest.mark.parametrize("load", [0.3, 0.9])
    @pytest.mark.parametrize("times", [PER_TOKEN, profile(20, 0.02)], ids=["per-token", "overhead"])
    def test_never_worse_than_by_count(self, times: Profile, load: float) -> None:
        """In simulation, within 1 % of the mean latency."""
        measured = Profile(times.batch_ns, by_length=times.by_length)
        ours = Setup(measured, 1.0, requests=5_000, lengths="lognormal:14:0.75:4:100", max_queue=1 << 30)
        count = replace(ours, reorder=False)
        rate = load * 0.6 * ours.peak  # padding takes about so much
        means = [run(replace(setup, rate=rate))["mean_ms"] for setup in (ours, count)]
        assert means[0] < 1.01 * means[1]


# `Adaptive.joins` against brute force: of two ways that rows could go, the one with the smaller sum of latencies.


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
    ending = len(lengths) - len(stay)
    return Adaptive().joins(
        JoinOffer(left=left, ending=ending, stay=stay, joiners=joiners, steps=steps, time=time, boundary_ns=0)
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
