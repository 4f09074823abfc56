"""Invariant: only what was measured is known, of the very pair of architectures, and never for larger batches."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.pairs import Pair, Paired, PairTime, slowdowns


def times(*slower: float) -> tuple[PairTime, ...]:
    """One row and eight, beside one row and then beside sixteen."""
    sizes = [(1, 1), (8, 1), (1, 16), (8, 16)]
    return tuple(PairTime(*one, 100, 100, fraction) for one, fraction in zip(sizes, slower, strict=False))


FULL = times(0.01, 0.02, 0.03, 0.04)
BESIDE = Pair("bulk", "b1", FULL)
CALLS, BULK = Paired("calls", "a1", 8, (BESIDE,)), Paired("bulk", "b1", 16)


def test_a_pair_by_the_ids_of_its_programs():
    """The other way round nothing was measured."""
    assert slowdowns({3: CALLS, 7: BULK}) == {(3, 7): 0.04}


def test_a_program_beside_itself_and_two_versions_of_a_model():
    itself = Paired("calls", "a1", 8, (Pair("calls", "a1", FULL),))
    assert slowdowns({1: itself, 2: itself._replace(architecture="a2")}) == {(1, 1): 0.04, (2, 1): 0.04}


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
    assert slowdowns({0: calls, 1: bulk}) == {}


def test_smaller_batches_are_known():
    assert slowdowns({0: CALLS._replace(max_batch=2), 1: BULK._replace(max_batch=1)}) == {(0, 1): 0.04}
