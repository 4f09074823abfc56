"""What requests cost, computed from runs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.bench.front import _front, _Used
from app.sim.fit import Load

from .made import MS, repeat

PROFILE = [(3 + size) * MS for size in range(1, 9)], MS // 2


def used(held: float, size: int, factor: float, requests: int = 400) -> _Used:
    """A run of 4 s in batches of one size that take `factor` times what the profile says; the loop is at work for
    so much of the time, 1 ms a request and the rest for its batches, answers come after 10 ms."""
    compute = round(PROFILE[0][size - 1] * factor)
    run = repeat([10] * requests, compute_ns=np.full(requests, compute), batch=np.full(requests, size))
    return _Used(round(held * run.elapsed_s * 1e9), 0, run)


def test_what_batches_took_over_the_profile_is_told_of_open_loops() -> None:
    runs = [used(0.1, 1, factor) for factor in (2.0, 9.0, 2.5, 3.0, 4.0)]
    costs, loads = _front(runs, *PROFILE)
    assert loads == [Load(100, 2), Load(100, 2.5), Load(100, 3), Load(100, 4)]
    assert costs.spread == 0


def test_a_request_and_a_batch_are_told_apart_by_how_many_share_one() -> None:
    """1 ms a request and 2 a batch, of a loop that 100 requests a second keep at work for so much of the time."""
    runs = [used(0.1 * (1 + 2 / size), size, 1) for size in (1, 8, 1, 2, 4)]
    found, _ = _front(runs, *PROFILE)
    assert (found.call_ns, found.batch_ns) == (pytest.approx(MS, rel=1e-6), pytest.approx(2 * MS, rel=1e-6))
    assert found.path_ns == pytest.approx(10 * MS - 4 * MS - MS // 2 - 3 * MS, rel=1e-3)


def test_a_server_that_says_nothing_of_its_batches_is_as_the_profile() -> None:
    runs = [_Used(MS, 0, repeat([10] * 4)) for _ in range(5)]
    costs, loads = _front(runs, *PROFILE)
    assert (costs.scale, costs.slowed, loads) == (1, 0, [])
