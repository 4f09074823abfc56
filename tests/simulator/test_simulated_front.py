"""The front: a request passes the loop, a thread and the loop again, and all of them share one interpreter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiers import full

from planner.fleet import Setup, run
from planner.profile_times import linear
from planner.simulated_front import FrontCosts, FrontWork, LoopPart, SimulatedFront

from .runs import MS, latencies, simulated


def latencies_ms(times_ms: list[float], front: FrontCosts, **options: Any) -> list[float]:
    """Of requests at these times, in the order of their answers; a batch takes 10 ms whatever its size."""
    return latencies(linear(10, 0, 8), times_ms, front=front, **options)[0]


def test_a_lone_request_pays_for_each_part_once() -> None:
    every = FrontCosts(call_ns=2 * MS, batch_ns=4 * MS, decode_ns=3 * MS, path_ns=MS)
    assert latencies_ms([5], every) == [2 + 4 + 3 + 1 + 10]
    assert latencies_ms([5], replace(every, path_ns=-MS)) == [2 + 4 + 3 - 1 + 10]
    assert latencies_ms([5], FrontCosts()) == [10]


def test_what_is_read_in_a_turn_shares_a_batch_and_is_answered_in_order() -> None:
    """1 ms each to read three, which had come while the first was read; they wait for its batch."""
    front = FrontCosts(call_ns=2 * MS)
    assert latencies_ms([0, 0.1, 0.2, 0.3], front) == [
        pytest.approx(one) for one in (1 + 10 + 1, 21 - 0.1 + 1, 21 - 0.2 + 2, 21 - 0.3 + 3)
    ]


def test_threads_share_the_interpreter_among_them_and_with_the_loop() -> None:
    """Two at once take twice as long as one, and a third waits for a thread."""
    assert latencies_ms([0], FrontCosts(decode_ns=4 * MS)) == [14]
    first, *rest = latencies_ms([0, 0], FrontCosts(decode_ns=4 * MS))
    assert (first, rest) == (18, [18])
    three = latencies_ms([0, 0, 0], FrontCosts(decode_ns=4 * MS, threads=2))
    assert three == [18, 18, 28]  # 12, but the device is busy
    # 2 ms of decoding beside 1 ms of reading the other: at half speed until that has been read
    assert latencies_ms([0, 2], FrontCosts(call_ns=2 * MS, decode_ns=2 * MS))[0] == 1 + 3 + 10 + 1


def test_texts_that_wait_are_read_together() -> None:
    """The first alone in 3 ms; those that come meanwhile in 2 ms and 1 ms each, and they are one batch."""
    texts = FrontCosts(decode_ns=MS, group_ns=2 * MS, threads=1)
    assert latencies_ms([0], texts) == [13]
    assert latencies_ms([0, 1, 2], texts, workers=(8, 8), device="serial") == [13, 22, 21]


def test_a_batch_takes_longer_while_threads_are_at_work() -> None:
    """10 ms alone. The second request is decoded for 6 ms beside the first one's batch, which is then half as fast."""
    front = FrontCosts(decode_ns=6 * MS, slowed=1.0, threads=1)
    assert latencies_ms([0, 6], front) == [pytest.approx(6 + 10 + 3), pytest.approx(19 - 6 + 10)]
    assert latencies_ms([0, 100], front) == [16, 16]


def test_a_batch_takes_longer_the_more_of_late_the_loop_was_at_work() -> None:
    """Of the last 0.1 s it read for 6 ms; a second later that is forgotten."""
    front = FrontCosts(call_ns=12 * MS, slowed=0.5)
    slower = 10 * 0.5 * (1 - math.exp(-6 / 100))
    assert latencies_ms([0], front) == [pytest.approx(6 + 10 + slower + 6)]
    first, later = latencies_ms([0, 1000], front)
    assert later == pytest.approx(first, rel=1e-3)


def test_deadlines_count_from_the_arrival_and_refusals_leave_nothing_behind() -> None:
    front = FrontCosts(call_ns=6 * MS)
    assert latencies_ms([0], front, deadline_ns=14 * MS) == [16]  # its batch ended in time: it is answered
    assert latencies_ms([0], front, deadline_ns=12 * MS) == []
    setup = Setup(linear(10, 0, 1), 1.0, policy="no_wait", front=front, max_queue=1)
    tally = simulated(setup, node := setup.node(0), [0] * 6)
    assert tally.refused > 0
    assert (tally.completed + tally.refused, node.unanswered) == (6, 0)


@full
def test_replicas_and_routers_have_fronts_of_their_own() -> None:
    one = Setup(linear(10, 0, 1), 50.0, policy="no_wait", requests=600, arrivals="uniform", front=FrontCosts(3 * MS))
    assert run(one)["p50_ms"] == pytest.approx(13, rel=1e-3)
    for router in ("round_robin", "least_waiting"):
        several = replace(one, rate=100.0, replicas=2, router=router)
        assert run(several)["p99_ms"] == pytest.approx(13, rel=1e-3)


def test_what_a_timer_starts_follows_the_piece_of_work_at_hand() -> None:
    front = SimulatedFront(FrontCosts(call_ns=2 * MS, batch_ns=2 * MS))
    front.put([FrontWork(LoopPart.READ, "first")], 0)
    front.put([FrontWork(LoopPart.READ, "second")], 0)
    front.insert([FrontWork(LoopPart.START, "unit")], MS // 2)
    done = []
    while front.due is not None:
        at = front.due
        work = front.pop(at)
        done.append((at / MS, work.what))
    assert done == [(1, "first"), (2, "unit"), (3, "second")]


def test_costs_are_read_as_they_are_written() -> None:
    front = FrontCosts(
        100_200, 300_000, MS, group_ns=7000, path_ns=-50_000, scale=1.2, slowed=0.3, spread=0.1, error=0.05
    )
    assert front.to_dict() == {
        "call_us": 100.2, "batch_us": 300.0, "decode_us": 1000.0, "group_us": 7.0, "path_us": -50.0,
        "scale": 1.2, "slowed": 0.3, "spread": 0.1, "error": 0.05,
    }  # fmt: skip
    assert FrontCosts.parse(front.to_dict()) == front
    assert FrontCosts.parse({"call_us": "x", "batch_us": None}) == FrontCosts()


def test_the_time_that_a_row_holds_the_interpreter() -> None:
    assert FrontCosts(call_ns=10, batch_ns=40, decode_ns=5, group_ns=4).held_ns(4) == 26
    assert np.isclose(FrontCosts().held_ns(1), 0)
