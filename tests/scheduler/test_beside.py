"""Invariant: only what was measured is known, of the very pair of architectures, and never for larger batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.scheduler.beside import Beside, Paired
from app.scheduler.estimates.pairs import Pair, PairTime


def times(*slower: float, speed: float = 1.0) -> tuple[PairTime, ...]:
    """One row and eight, beside one row and then beside sixteen."""
    sizes = [(1, 1), (8, 1), (1, 16), (8, 16)]
    return tuple(PairTime(*one, 100, 100, fraction, speed=speed) for one, fraction in zip(sizes, slower, strict=False))


FULL = times(0.01, 0.02, 0.03, 0.04)
BESIDE = Pair("bulk", "b1", FULL)
CALLS, BULK = Paired("calls", "a1", 8, (BESIDE,)), Paired("bulk", "b1", 16)


def test_a_pair_by_the_ids_of_its_programs():
    beside = Beside.of({3: CALLS, 7: BULK})
    assert beside(3, 7) == 0.04
    assert beside(7, 3) is None  # the other way round nothing was measured
    assert beside(3, 3) is None
    assert beside(3, 99) is None
    assert beside.slowdowns == {(3, 7): 0.04}


def test_a_program_beside_itself_and_two_versions_of_a_model():
    itself = Paired("calls", "a1", 8, (Pair("calls", "a1", FULL),))
    beside = Beside.of({1: itself, 2: itself._replace(architecture="a2")})
    assert (beside(1, 1), beside(2, 1)) == (0.04, 0.04)
    assert (beside(1, 2), beside(2, 2)) == (None, None)


@pytest.mark.parametrize(
    ("calls", "bulk"),
    [
        (CALLS._replace(max_batch=9), BULK),
        (CALLS, BULK._replace(max_batch=17)),
        (CALLS, BULK._replace(architecture="b2")),
        (CALLS, BULK._replace(model="other")),
        (CALLS._replace(pairs=()), BULK),
    ],
    ids=["larger", "larger-beside", "another-architecture", "another-model", "no-pairs"],
)
def test_what_was_not_measured_is_not_known(calls: Paired, bulk: Paired):
    beside = Beside.of({0: calls, 1: bulk})
    assert beside(0, 1) is None
    assert not beside.slowdowns


def test_smaller_batches_are_known():
    assert Beside.of({0: CALLS._replace(max_batch=2), 1: BULK._replace(max_batch=1)})(0, 1) == 0.04


def test_the_greedy_choice_is_what_keeps_most_of_its_speed():
    speeds = {1: 0.6, 2: 0.97, 3: 0.8, 4: 0.99}
    beside = Beside({(0, program): Pair("m", "a", times(0.01, speed=speed)) for program, speed in speeds.items()})
    assert beside.order(0, [9, 1, 2, 3, 8, 4]) == [4, 2, 3, 1, 9, 8]


def test_what_is_as_good_stays_in_its_turn_and_what_is_unknown_comes_last():
    speeds = {1: 0.96, 2: 0.95, 3: 0.97}
    beside = Beside({(0, program): Pair("m", "a", times(0.01, speed=speed)) for program, speed in speeds.items()})
    assert beside.order(0, [2, 3, 1]) == [2, 3, 1]
    assert beside.order(0, [9, 3, 8, 2, 1]) == [3, 2, 1, 9, 8]
    assert beside.order(5, [3, 1]) == [3, 1]
    assert beside.speeds == {(0, program): speed for program, speed in speeds.items()}


def test_tables_are_equal_that_say_the_same():
    assert Beside.of({0: CALLS, 1: BULK}) == Beside({(0, 1): BESIDE})
    assert Beside({(0, 1): BESIDE}) != Beside({(0, 1): replace(BESIDE, times=FULL[:1])})
    assert Beside() == Beside.of({0: BULK, 1: BULK})
    assert Beside() != {}
