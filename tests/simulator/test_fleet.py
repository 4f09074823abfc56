"""Replicas behind a router: the same figures however the work is divided, and routers that do what their name says."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from tiers import few, full

from planner import fleet
from planner.fleet import Setup, run
from planner.profile_times import linear
from planner.routers import Blind, LeastWaiting, PowerOfTwo
from planner.simulator import Simulator
from planner.tally import Tally

PROFILE = linear(7, 0.6, 16)
SETUP = Setup(PROFILE, 6 * 0.6 * PROFILE.peak, "no_wait", requests=few(2000), replicas=6, seed=3)


def test_figures_of_one_replica() -> None:
    cell = run(replace(SETUP, replicas=1, rate=0.6 * PROFILE.peak))
    assert list(cell) == [
        "policy", "rate", "load", "requests", "completed", "dropped", "mean_ms", "p50_ms", "p90_ms", "p99_ms",
        "p999_ms", "throughput", "mean_batch", "utilisation", "busy_s_per_request", "goodput",
    ]  # fmt: skip
    assert cell["load"] == pytest.approx(0.6)
    assert cell["completed"] == SETUP.requests
    assert cell["throughput"] == pytest.approx(cell["rate"], rel=3 / sqrt(SETUP.requests))


@full
@pytest.mark.parametrize("router", ["random", "round_robin"])
def test_shares_add_up_to_the_whole(router: str) -> None:
    """However the replicas are divided, and when all stand in one simulation, each request has the same latency."""
    setup = replace(SETUP, router=router, service="exponential")
    whole = fleet._simulated(setup, range(6))
    parts = Tally()
    for low, high in ((0, 1), (1, 4), (4, 6)):
        parts.add(fleet._simulated(setup, range(low, high)))
    together = Tally()
    blind = Blind(router, 6, [setup.seed, fleet._ROUTING])
    choices = iter(blind.choose(setup.requests).tolist())
    simulator = Simulator(list(map(setup.node, range(6))), together, route=choices.__next__)
    for chunk in setup.instants():
        simulator.feed(chunk.tolist())
    simulator.drain()
    for tally in (parts, together):
        assert tally.total_ns == whole.total_ns
        assert (tally.completed, tally.units, tally.busy_ns) == (whole.completed, whole.units, whole.busy_ns)
        assert (tally.counts == whole.counts).all()


@full
def test_processes_give_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_PART", 500)
    heard: list[int] = []
    one, two = run(SETUP), run(SETUP, processes=2, progress=heard.append)
    assert (one.pop("simulated"), two.pop("simulated")) == ("split, 1 process", "split, 2 processes")
    assert one == two
    assert sum(heard) == SETUP.requests


@pytest.mark.parametrize("router", ["least_waiting", "power_of_two"])
def test_routers_that_look_stand_together(router: str) -> None:
    setup = replace(SETUP, router=router)
    cell = run(setup, processes=4)
    assert cell == run(setup)
    assert (cell["simulated"], cell["router"], cell["completed"]) == ("coupled, 1 process", router, SETUP.requests)


def test_blind_choices() -> None:
    turns = Blind("round_robin", 3, [0])
    assert [*turns.choose(4), *turns.choose(3)] == [0, 1, 2, 0, 1, 2, 0]
    counts = np.bincount(Blind("random", 4, [0]).choose(40_000), minlength=4)
    assert counts == pytest.approx(np.full(4, 10_000), rel=0.05)


def test_least_waiting_is_least() -> None:
    made = list(map(SETUP.node, range(5)))
    for index, node in enumerate(made):
        node.index = index
    router = LeastWaiting(made, [0])
    random = np.random.default_rng(0)
    for _ in range(2000):
        chosen = made[router.route()]
        assert chosen.unanswered == min(node.unanswered for node in made)
        chosen.unanswered += 1
        router.moved(chosen)
        other = made[random.integers(5)]
        other.unanswered -= int(random.integers(other.unanswered + 1)) // 2
        router.moved(other)


def test_power_of_two_chooses_the_better_of_each_pair_as_often() -> None:
    made = list(map(SETUP.node, range(5)))
    for number, node in enumerate(made):
        node.unanswered = 4 - number
    router = PowerOfTwo(made, [0])
    chosen = np.bincount([router.route() for _ in range(10_000)], minlength=5)
    assert chosen / 10_000 == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "x"}, "policy: expected one of"),
        ({"device": "x"}, "device: expected one of serial, shared"),
        ({"router": "x"}, "router: expected one of random"),
        ({"router": "power_of_two", "replicas": 1}, "power_of_two needs at least two"),
        ({"requests": 0}, "requests: expected at least 1"),
        ({"replicas": 0}, "replicas: expected at least 1"),
        ({"workers": (17,)}, "workers: expected capacities from 1 to 16"),
        ({"deadline_ns": 0}, "deadline"),
        ({"seed": -1}, "seed: expected at least 0"),
        ({"launch_ns": -1}, "launch_ns: expected at least 0"),
        ({"push_ahead_ns": -1}, "push_ahead_ns: expected at least 0"),
        ({"push_depth": 0}, "push_depth: expected at least 1"),
        ({"rate": 0}, "rate"),
        ({"arrivals": "x"}, "arrivals"),
        ({"service": "x"}, "service"),
        ({"device": "shared", "workers": (1, 2)}, "concurrency"),
    ],
)
def test_setup_that_does_not_hold_together(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(replace(SETUP, **change))
