"""The suggestion has the least mean latency over light, moderate and high load, with as few workers as give it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.profiling.sizing import (
    Candidate,
    Size,
    choose,
    compare,
    counts_to_compare,
    size_in,
    suggested,
    suggestion,
)
from app.scheduler.estimates.profile import ModelProfile, linear


def measured(fixed_ms: float, row_ms: float, threads: int = 1, **slower: float) -> ModelProfile:
    """A profile of 1 to 4 rows; `x2=1.5`: two at once take one and a half times as long."""
    alone = linear(fixed_ms, row_ms, 4)
    together = {int(name[1:]): tuple(round(by * time) for time in alone.batch_ns) for name, by in slower.items()}
    return replace(alone, threads=threads, concurrency_ns=together)


def chosen(*candidates: Candidate) -> Candidate:
    found = choose(compare(candidates, None))
    return next(one for one in candidates if (one.profile, one.workers) == (found.profile, found.workers))


@given(st.integers(1, 200))
def test_pairs_fit_the_cores(cores: int):
    found = counts_to_compare(cores)
    assert all(threads * workers <= cores for threads, workers in found)
    assert {(1, 1), (1, cores), (cores, 1)} <= set(found)
    assert len(set(found)) == len(found) <= 2 * (cores.bit_length() + 1)


@pytest.mark.parametrize(("slower", "workers"), [(1.0, 2), (2.2, 1)])
def test_two_workers_are_suggested_where_they_do_not_slow_each_other_too_much(slower: float, workers: int):
    profile = measured(3, 1, x2=slower)
    assert chosen(Candidate(profile, 1), Candidate(profile, 2)).workers == workers


def test_a_lone_row_does_not_wait_for_throughput():
    quick, slow = Candidate(measured(3, 1, threads=8), 1), Candidate(measured(8, 1, x8=1.0), 8)
    assert slow.rows_per_s > 3 * quick.rows_per_s
    assert chosen(quick, slow) is quick


def test_what_is_slower_at_light_load_needs_much_more_throughput():
    quick, many = Candidate(measured(3, 1, threads=2), 1), Candidate(measured(6, 1.8, x2=1.0), 2)
    assert quick.rows_per_s < many.rows_per_s < 1.2 * quick.rows_per_s
    assert chosen(quick, many) is quick


def test_near_the_least_fewer_workers_win_and_then_fewer_threads():
    few = Candidate(measured(3.05, 1.01, threads=2), 1)
    assert chosen(Candidate(measured(3, 1, threads=4), 1), few) is few


def test_a_core_is_left_to_http():
    one, two = (Candidate(measured(3, 1, x2=1.0), workers) for workers in (1, 2))
    found = compare([one, two], 1)
    assert [len(each.to_dict()["mean_ms"]) for each in found] == [3, 0]
    assert None not in found[0].to_dict()["mean_ms"]
    assert choose(found).workers == 1


@pytest.mark.parametrize(
    "wrong", [{}, {"threads": 1}, {"threads": "1", "workers": [1]}, {"threads": 0, "workers": [1]},
              {"threads": 1, "workers": []}, {"threads": 1, "workers": ["8"]}, {"threads": 1, "workers": [0]}],
)  # fmt: skip
def test_what_is_no_suggestion_is_left_out(wrong):
    assert size_in(wrong) is None


def test_the_last_suggestion_is_read_as_it_was_written():
    profile = measured(3, 1, threads=2, x3=1.0)
    told = suggestion(Candidate(profile, 3), 32, 2)
    assert (told["threads"], told["workers"], told["max_alive"]) == (2, [32, 32, 32], 24)
    late = replace(profile, extra={"made": "2026-02-01", "suggested": told})
    early = replace(profile, extra={"made": "2026-01-01", "suggested": {"threads": 1, "workers": [8]}})
    assert suggested([late, early]) == Size(2, (32, 32, 32), 24)
    assert suggested([early, profile]) == Size(1, (8,))
    assert suggested([profile]) is None
