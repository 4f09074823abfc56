"""Sizes: how many replicas keep an objective, and the demand that an autoscaler sees."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tiers import full

from app.scheduler.estimates.profile_format import parse
from app.scheduler.types import Klass
from planner import sizing
from planner.fleet import Setup, counted
from planner.node import PROGRAM, Node
from planner.profile_times import linear
from planner.simulated_front import FrontCosts
from planner.simulator import Simulator
from planner.sizing import Runs
from planner.tally import Tally

# The number of replicas is the least that keeps the objective: against theory where there is one.


MS = 1_000_000
ONE = linear(10, 0, 1)  # 10 ms for a row, one at a time: at a rate r of one replica an M/D/1 queue


@pytest.fixture
def few_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that say nothing of a percentile may be short."""
    monkeypatch.setattr(sizing, "_EACH", 100)


def setup(profile: Any = ONE, **options: Any) -> Setup:
    return Setup(profile, 1.0, **{"policy": "no_wait", "requests": 1000, "max_queue": 100_000, **options})


def md1_p99_ms(load: float, service_ms: float = 10.0) -> float:
    """The 99th percentile of the time in an M/D/1 queue (Erlang, 1909), by halving."""

    def waits_less(ms: float) -> float:
        terms = (load * (k - ms / service_ms) for k in range(int(ms / service_ms) + 1))
        return (1 - load) * sum(term**k / math.factorial(k) * math.exp(-term) for k, term in enumerate(terms))

    low, high = 0.0, 20 * service_ms
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if waits_less(middle) < 0.99 else (low, middle)
    return high + service_ms


@full
def test_the_runs_hold_the_percentile_of_an_m_d_1_queue() -> None:
    for replicas, rate in ((1, 40.0), (2, 120.0)):
        got = sizing.estimate(setup(), replicas, rate, Runs())
        exact = md1_p99_ms(rate / replicas / 100)
        assert got.p99_ns[0] <= exact * MS <= got.p99_ns[-1]
        assert got.median_ns == pytest.approx(exact * MS, rel=0.1)
        assert got.load == rate / replicas / 100
        assert got.busy == pytest.approx(got.load, rel=0.05)
        assert (len(got.p99_ns), got.mean_batch, got.refused) == (sizing.RUNS, 1, 0)


@full
def test_the_fewest_replicas_of_an_m_d_1_queue() -> None:
    """One more than theory needs, at most: what is close to the objective is refused."""
    rate, objective_ms = 120.0, 40.0
    exact = next(count for count in range(2, 60) if md1_p99_ms(rate / count / 100) <= objective_ms)
    got = sizing.fewest(setup(), rate, objective_ms * MS, 1000, Runs())
    assert got in (exact, exact + 1)


@full
@pytest.mark.usefixtures("few_each")
def test_an_objective_below_one_request_alone_needs_no_search() -> None:
    told: list[None] = []
    assert sizing.fewest(setup(requests=200), 50, 9.9 * MS, 10_000, Runs(on_run=partial(told.append, None))) is None
    assert told == []
    assert sizing.keeps_alone(setup(requests=200), 12 * MS, Runs())


def test_no_run_is_simulated_twice_nor_more_at_once_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And groups of runs have the figures of runs one by one."""
    groups: list[list[int]] = []

    def simulate(setups: Iterable[Setup]) -> list[Tally]:
        groups.append([one.seed for one in setups])
        return [counted(one) for one in setups]

    monkeypatch.setattr(sizing, "RUNS", 3)
    small = setup(requests=100)
    runs = Runs(2, simulate)
    assert next(runs.of(small, 1, 40.0)).requests == 100
    assert groups == [[0, 1]]
    assert sizing.estimate(small, 1, 40.0, runs) == sizing.estimate(small, 1, 40.0, Runs())
    assert sizing.estimate(small, 1, 40.0, runs) == sizing.estimate(small, 1, 40.0, runs)
    assert groups == [[0, 1], [2]]
    list(runs.of(replace(small, seed=5), 1, 40.0))
    assert groups[2:] == [[5, 6], [7]]


def test_what_never_settles_is_not_simulated() -> None:
    got = sizing.estimate(setup(), 2, 200, Runs())
    assert (got.load, set(got.p99_ns)) == (1, {math.inf})
    assert not got.keeps(1e18)


@full
def test_requests_that_are_refused_are_late() -> None:
    """Of a queue that holds one, a share is refused whatever the latency of the others."""
    got = sizing.estimate(setup(max_queue=1), 1, 60, Runs())
    assert got.refused > 0.01
    assert set(got.p99_ns) == {math.inf}


def test_capacity_counts_hand_overs_workers_and_the_front() -> None:
    profile = replace(linear(10, 0, 4), handover_ns=2 * MS)
    assert sizing.capacity(setup(profile)) == pytest.approx(4000 / 12)
    two = parse({"batch_ms": {"1": 10, "4": 10}, "concurrency": {"2": {"1": 16, "4": 16}}, "handover_ms": 4})
    assert sizing.capacity(setup(two, workers=(4, 4), device="shared")) == pytest.approx(8000 / 20)
    loop = FrontCosts(call_ns=4 * MS, batch_ns=4 * MS)
    assert sizing.capacity(setup(profile, front=loop)) == pytest.approx(200)  # 5 ms a row in batches of 4
    held = FrontCosts(call_ns=MS, decode_ns=MS, slowed=0.8)
    most = sizing.capacity(setup(profile, front=held))
    longer = 1 + 0.8 * most * 0.002  # at that rate
    assert 4 / most == pytest.approx(0.012 * longer)


# What an autoscaler sees of a load: demand, which follows it.


REQUESTS = 1000
QUICK = linear(7, 0.6, 16)


def drive(setup: Setup, node: Node, klass: Klass = Klass.REALTIME, length: int | None = None) -> float:
    """Demand per second of a run, of rows of this length."""
    simulator = Simulator([node], Tally(), deadline_ns=setup.deadline_ns)
    for chunk in setup.instants():
        simulator.feed(chunk.tolist(), length and [length] * len(chunk), klass=klass)
    ended = simulator.now
    simulator.drain()
    node.scheduler.tick(simulator.now)  # of the last window
    return node.scheduler.states[PROGRAM].queue.demand_ns[klass] / ended


@full
@pytest.mark.parametrize("deadline_ns", [None, 60_000_000])
def test_demand_follows_the_load(deadline_ns: int | None) -> None:
    """Also where two thirds are refused, since they would be late."""
    for load in (0.5, 1.0, 3.0):
        setup = Setup(QUICK, load * QUICK.peak, "no_wait", requests=REQUESTS, seed=1, deadline_ns=deadline_ns)
        assert drive(setup, setup.node(0)) == pytest.approx(load, rel=0.08)


@full
def test_demand_of_a_cell_counts_the_steps_of_its_rows() -> None:
    profile = parse({"stages": [{"batch_ms": {"1": 1, "8": 2}, "cell": True}], "max_batch": 8})
    peak = Setup(profile, 1.0, "adaptive", lengths="fixed:20").peak
    for load in (0.5, 3.0):
        one = Setup(profile, load * peak, "adaptive", requests=REQUESTS, seed=1, lengths="fixed:20")
        assert drive(one, one.node(0), length=20) == pytest.approx(load, rel=0.15)


@full
def test_demand_is_by_class() -> None:
    setup = Setup(QUICK, 0.5 * QUICK.peak, "no_wait", requests=REQUESTS, seed=1)
    node = setup.node(0)
    assert drive(setup, node, Klass.BEST_EFFORT) == pytest.approx(0.5, rel=0.1)
    assert node.scheduler.states[PROGRAM].queue.demand_ns[Klass.REALTIME] == 0
