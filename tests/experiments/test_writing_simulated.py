"""The worker of a decoder in virtual time: how long rows may read, and when they join."""

from __future__ import annotations

import pytest

from experiments.writing.simulated import ENDLESS, SERVED, SHAPES, Between, predicted, simulate

REQUESTS = 150


def test_the_longer_rows_may_read_the_sooner_texts_end_and_the_longer_steps_wait() -> None:
    found = [simulate(SHAPES["gpt2"], 1.8, reading, REQUESTS) for reading in ("50 ms", SERVED, "all")]
    assert [one.mean for one in found] == sorted((one.mean for one in found), reverse=True)
    assert [one.held_p99 for one in found] == sorted(one.held_p99 for one in found)
    assert found[0].held_p99 <= 35 + 16 * 2.8 < found[1].held_p99 <= 3 * 205


def test_first_tokens_come_sooner_where_rows_join_at_once() -> None:
    at_once, when_it_pays = (simulate(SHAPES["t5"], 8, SERVED, REQUESTS, joins=joins) for joins in (True, False))
    assert at_once.first < when_it_pays.first


def test_one_text_takes_what_its_reading_and_steps_take() -> None:
    found = simulate(SHAPES["t5"], 0.01, SERVED, 1)
    steps, rest = divmod(found.mean - found.first, 18)
    assert (steps > 0, rest) == (True, pytest.approx(0, abs=1e-6))
    assert found.first > 0.2 + 12 + 2 * 0.65 + 18


def test_the_prediction_weighs_those_that_begin_against_those_that_end() -> None:
    assert predicted(Between(50, 8, [100.0])) == ENDLESS
    assert predicted(Between(50, 25, [100.0])) == 0
