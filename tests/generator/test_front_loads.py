"""What requests cost, computed from runs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.generator.front_loads import _front, _load

from .made import MS, repeat

PROFILE = [(3 + size) * MS for size in range(1, 9)], MS // 2


def used(held: float, size: int, factor: float, requests: int = 400):
    """A run of 4 s in batches of one size that take `factor` times what the profile says; the loop is at work for
    so much of the time, answers come after 10 ms."""
    compute = round(PROFILE[0][size - 1] * factor)
    run = repeat([10] * requests, compute_ns=np.full(requests, compute), batch=np.full(requests, size))
    return run, _load(run, round(held * run.elapsed_s * 1e9), 0)


def test_what_batches_took_over_the_profile_is_told_of_open_loops() -> None:
    runs = [used(0.1, size, factor) for size, factor in ((8, 9.0), (1, 2.0), (1, 2.5), (2, 3.0), (4, 4.0))]
    costs, loads = _front(runs, *PROFILE)
    assert [(load.requests, load.seconds) for load in loads] == [(400, 4)] * 4
    assert [load.over(PROFILE[0]) for load in loads] == pytest.approx([2, 2.5, 3, 4])
    assert [(size, count) for load in loads for size, (count, _) in load.batches.items()] == [
        (1, 400), (1, 400), (2, 200), (4, 100),
    ]  # fmt: skip
    assert costs.path_ns == pytest.approx(10 * MS - costs.call_ns - costs.batch_ns - MS // 2 - 8 * MS, abs=2)


def test_batches_vary_as_those_of_their_size_do() -> None:
    compute = np.array([4, 6, 40, 40, 60, 60]) * MS
    load = _load(repeat([10] * 6, compute_ns=compute, batch=np.array([1, 1, 2, 2, 2, 2])), 0, 0)
    assert load.batches == {1: (2, pytest.approx(0.01)), 2: (2, pytest.approx(0.1))}
    assert load.spread == pytest.approx(0.2)


def test_a_server_that_says_nothing_of_its_batches_is_as_the_profile() -> None:
    run = repeat([10] * 4)
    costs, loads = _front([(run, _load(run, MS, 0))] * 5, *PROFILE)
    assert (costs.scale, costs.slowed, [load.batches for load in loads]) == (1, 0, [{}] * 4)
