"""The suggestion is the most throughput that does not cost a lone row its time, with as few workers as give it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.profiling.sizing import Candidate, Size, candidate, choose, pairs, size_in, suggestion

MS = 1_000_000


@given(st.integers(1, 200))
def test_pairs_fit_the_cores(cores: int):
    found = pairs(cores)
    assert all(threads * workers <= cores for threads, workers in found)
    assert {(1, 1), (1, cores), (cores, 1)} <= set(found)
    assert len(set(found)) == len(found) <= 2 * (cores.bit_length() + 1)


def test_a_candidate_has_the_best_size_of_all_workers_together():
    one = candidate(1, 2, 4 * MS, {1: 4 * MS, 2: 5 * MS, 4: 20 * MS})
    assert (one.size, one.rows_per_s, one.single_ns) == (2, 800.0, 4 * MS)


def test_most_throughput_wins():
    assert choose([Candidate(1, 1, 8, 500, MS), Candidate(1, 4, 8, 1500, MS)]).workers == 4


def test_unless_a_lone_row_waits_for_it():
    quick, slow = Candidate(8, 1, 8, 1000, MS), Candidate(1, 8, 8, 3000, 3 * MS)
    assert choose([quick, slow]) is quick


def test_near_the_most_fewer_workers_win_and_then_fewer_threads():
    few = Candidate(2, 1, 8, 960, MS)
    assert choose([Candidate(1, 4, 8, 1000, MS), few, Candidate(4, 1, 8, 990, MS)]) is few


def test_no_candidates():
    with pytest.raises(ValueError, match="empty"):
        choose([])


def test_settings_that_follow():
    told = suggestion(Candidate(2, 3, 8, 500.123, MS), 32, 2)
    assert (told["threads"], told["workers"], told["max_running"], told["max_alive"]) == (2, [32, 32, 32], 3, 48)


@pytest.mark.parametrize(
    "wrong", [{}, {"threads": 1}, {"threads": "1", "workers": [1]}, {"threads": 0, "workers": [1]},
              {"threads": 1, "workers": []}, {"threads": 1, "workers": ["8"]}, {"threads": 1, "workers": [0]}],
)  # fmt: skip
def test_what_is_no_suggestion_is_left_out(wrong):
    assert size_in(wrong) is None


def test_a_suggestion_is_read_as_it_was_written():
    assert size_in(suggestion(Candidate(1, 4, 8, 500, MS), 32, 1)) == Size(1, (32, 32, 32, 32), 32)
    assert size_in({"threads": 2, "workers": [8]}) == Size(2, (8,))
