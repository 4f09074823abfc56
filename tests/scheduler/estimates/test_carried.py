from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.scheduler.estimates.carried import carried
from app.scheduler.estimates.profile import Profile

BEFORE = Profile(
    (100, 200, 300, 400, 500, 600, 700, 800),
    {2: (150, 300, 450, 600, 750, 900, 1050, 1200)},
    by_length=((9, (10, 20, 30, 40, 50, 60, 70, 80)),),
    errors=(0.25,) * 8,
)


def after(moved: dict[int, float], error: float = 0.001) -> Profile:
    """Some sizes have run, and take so many times as long."""
    times = tuple(round(ns * moved.get(size, 1)) for size, ns in enumerate(BEFORE.batch_ns, 1))
    errors = tuple(error if size in moved else 0.25 for size in range(1, 9))
    return Profile(times, BEFORE.concurrency_ns, by_length=BEFORE.by_length, errors=errors)


def moves(found: Profile) -> list[float]:
    return [later / first for later, first in zip(found.batch_ns, BEFORE.batch_ns, strict=True)]


def test_sizes_that_have_not_run_follow_those_that_have() -> None:
    """The more, the nearer they are; what has run stays as it was measured."""
    found = moves(carried(after({4: 1.5}), BEFORE))
    assert found[3] == 1.5
    assert 1 < found[0] < found[1] < found[2] < 1.5
    assert 1.5 > found[4] > found[5] > found[6] > found[7] > 1


def test_between_two_sizes_both_count() -> None:
    found = moves(carried(after({2: 1.5, 8: 0.7}), BEFORE))
    assert found[1] == 1.5
    assert found[7] == 0.7
    assert found[2] > 1.05
    assert found[6] < 0.95
    assert found[2] > found[3] > found[4] > found[5] > found[6]


@pytest.mark.parametrize("seed", range(10))
def test_as_the_dense_process_has_it(seed: int) -> None:
    """Regression on what the sizes that ran have shown, with the covariances of all sizes."""
    random = np.random.default_rng(seed)
    sizes = np.arange(1, 2 + seed * 4)
    ran = random.random(len(sizes)) < 0.5
    ran[0] = True
    first, left = 0.25, np.where(ran, random.uniform(0.01, 0.9, len(sizes)), 1.0)
    before = Profile(tuple((sizes * 10**9).tolist()), errors=(first,) * len(sizes))
    moves = np.where(ran, random.normal(0, 0.1, len(sizes)), 0.0)
    times = np.rint(before.batch_ns * np.exp(moves)).astype(int)
    found = carried(Profile(tuple(times.tolist()), errors=tuple((first * np.sqrt(left)).tolist())), before)
    alike = 0.5 * np.minimum.outer(sizes, sizes) / np.maximum.outer(sizes, sizes) + 0.5 * np.eye(len(sizes))
    noise = np.diag(1 / (1 - left[ran]) - 1)
    weights = alike[:, ran] @ np.linalg.inv(alike[np.ix_(ran, ran)] + noise)
    likely = weights @ (moves[ran] / (1 - left[ran]))
    assert np.log(np.divide(found.batch_ns, before.batch_ns)) == pytest.approx(likely, abs=1e-6)
    assert found.errors == pytest.approx(first * np.sqrt(1 - np.diag(weights @ alike[ran])), abs=1e-6)


def test_what_has_not_moved_stays() -> None:
    """Also where sizes count as exact."""
    assert carried(BEFORE, BEFORE).batch_ns == BEFORE.batch_ns
    assert carried(BEFORE, BEFORE).errors == pytest.approx(BEFORE.errors)
    assert carried(after({4: 1.0}), BEFORE).batch_ns == BEFORE.batch_ns
    exact = replace(BEFORE, errors=(0.0,) * 8)
    assert carried(BEFORE, exact).batch_ns == BEFORE.batch_ns


@pytest.mark.parametrize("size", [1, 8])
def test_other_units_and_lengths_move_alike(size: int) -> None:
    found = carried(after({size: 1.5}), BEFORE)
    for times, first in (
        (found.concurrency_ns[2], BEFORE.concurrency_ns[2]),
        (found.by_length[0][1], BEFORE.by_length[0][1]),
    ):
        assert [later / one for later, one in zip(times, first, strict=True)] == pytest.approx(
            [1.0 if at == size else move for at, move in enumerate(moves(found), 1)], rel=0.05
        )


def test_neighbours_are_known_better() -> None:
    """The more, the nearer they are; none is known better than by half of its variance, nor worse than before."""
    found = carried(after({4: 1.5}), BEFORE).errors
    assert found[3] == 0.001
    assert 0.25 * 0.5**0.5 < found[4] < found[5] < found[7] < 0.25
    assert 0.25 * 0.5**0.5 < found[2] < found[1] < found[0] < 0.25
