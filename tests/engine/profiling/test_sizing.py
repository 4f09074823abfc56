"""The suggestion is the most throughput that does not cost a lone row its time, with as few workers as give it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.profiling.sizing import Candidate, Size, agreed, candidate, choose, pairs, suggestion

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


def test_models_that_share_a_device_get_the_fewest_that_any_asks_for():
    one = suggestion(Candidate(1, 4, 8, 500, MS), 32, 1)
    other = suggestion(Candidate(2, 2, 8, 500, MS), 16, 1)
    assert agreed([one]) == Size(1, (32, 32, 32, 32), 32)
    assert agreed([one, other]) == Size(1, (32, 32), 32)
    assert agreed([]) is None


@pytest.mark.parametrize(
    "wrong", [{}, {"threads": 1}, {"threads": "1", "workers": [1]}, {"threads": 0, "workers": [1]},
              {"threads": 1, "workers": []}, {"threads": 1, "workers": ["8"]}, {"threads": 1, "workers": [0]}],
)  # fmt: skip
def test_what_is_no_suggestion_is_left_out(wrong):
    assert agreed([wrong]) is None
    assert agreed([wrong, {"threads": 2, "workers": [8], "max_alive": 8}]) == Size(2, (8,), 8)
    assert agreed([{"threads": 2, "workers": [8]}, {"threads": 2, "workers": [8], "max_alive": 8}]) == Size(2, (8,))
