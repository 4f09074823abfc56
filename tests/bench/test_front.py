"""What requests cost, computed from runs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.bench.front import _front, _Used

from .made import MS, repeat

PROFILE = [(3 + size) * MS for size in range(1, 9)], MS // 2


def used(held: float, size: int, factor: float, requests: int = 400) -> _Used:
    """A run of 4 s in batches of one size that take `factor` times what the profile says; the loop is at work for
    so much of the time, 1 ms a request and the rest for its batches, answers come after 10 ms."""
    compute = round(PROFILE[0][size - 1] * factor)
    run = repeat([10] * requests, compute_ns=np.full(requests, compute), batch=np.full(requests, size))
    return _Used(round(held * run.elapsed_s * 1e9), 0, run)


def test_the_line_through_what_batches_took_gives_scale_and_slowdown() -> None:
    """Twice as long as by the profile beside an idle front, and 1.5 times that more beside one always at work."""
    runs = [used(held, 1, 2 * (1 + 1.5 * held)) for held in (0.1, 0.9, 0.2, 0.3, 0.4)]
    found = _front(runs, *PROFILE)
    assert (found.scale, found.slowed, found.spread) == (
        pytest.approx(2),
        pytest.approx(1.5),
        pytest.approx(0, abs=1e-9),
    )


def test_batches_that_are_no_slower_at_more_load_have_their_mean() -> None:
    found = _front([used(held, 1, 2 - held) for held in (0.1, 0.9, 0.2, 0.3, 0.4)], *PROFILE)
    assert (found.scale, found.slowed) == (pytest.approx(1.75), 0)


def test_a_request_and_a_batch_are_told_apart_by_how_many_share_one() -> None:
    """1 ms a request and 2 a batch, of a loop that 100 requests a second keep at work for so much of the time."""
    runs = [used(0.1 * (1 + 2 / size), size, 1) for size in (1, 8, 1, 2, 4)]
    found = _front(runs, *PROFILE)
    assert (found.call_ns, found.batch_ns) == (pytest.approx(MS, rel=1e-6), pytest.approx(2 * MS, rel=1e-6))
    assert found.path_ns == pytest.approx(10 * MS - 4 * MS - MS // 2 - 3 * MS, rel=1e-3)


def test_a_server_that_says_nothing_of_its_batches_is_as_the_profile() -> None:
    runs = [_Used(MS, 0, repeat([10] * 4)) for _ in range(5)]
    assert (_front(runs, *PROFILE).scale, _front(runs, *PROFILE).slowed) == (1, 0)
