"""The worker of a decoder in virtual time: how long rows may read, and when they join."""

from __future__ import annotations

from experiments.writing.simulated import SERVED, SHAPES, simulate

REQUESTS = 150


def test_the_longer_rows_may_read_the_sooner_texts_end_and_the_longer_steps_wait() -> None:
    found = [simulate(SHAPES["gpt2"], 1.8, reading, REQUESTS) for reading in ("50 ms", SERVED, "all")]
    assert [one.mean for one in found] == sorted((one.mean for one in found), reverse=True)
    assert [one.held_p99 for one in found] == sorted(one.held_p99 for one in found)
    assert found[0].held_p99 <= 35 + 16 * 2.8 < found[1].held_p99 <= 3 * 205


def test_first_tokens_come_sooner_where_rows_join_at_once() -> None:
    at_once, when_it_pays = (simulate(SHAPES["t5"], 8, SERVED, REQUESTS, joins=joins) for joins in (True, False))
    assert at_once.first < when_it_pays.first
