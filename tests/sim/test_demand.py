"""What an autoscaler sees of a load: demand, which follows it."""

from __future__ import annotations

import pytest
from tiers import full

from app.scheduler.estimates.profile import linear, parse
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Profile, Program, Row, Stage, WorkerSpec
from app.sim.fleet import Setup
from app.sim.node import PROGRAM, Node
from app.sim.report import Tally
from app.sim.simulator import Simulator

S = 1_000_000_000
REQUESTS = 1000
QUICK = linear(7, 0.6, 16)


def drive(setup: Setup, node: Node, klass: Klass = Klass.REALTIME) -> float:
    """Demand per second of a run."""
    simulator = Simulator([node], Tally(), deadline_ns=setup.deadline_ns)
    for chunk in setup.instants():
        simulator.feed(chunk.tolist(), klass=klass)
    ended = simulator.now
    simulator.drain()
    node.scheduler.tick(simulator.now)  # of the last window
    return node.scheduler.states[PROGRAM].demand_ns[klass] / ended


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
        simulator = Simulator([node := one.node(0)], Tally())
        for chunk in one.instants():
            simulator.feed(chunk.tolist(), [20] * len(chunk))
        ended = simulator.now
        simulator.drain()
        node.scheduler.tick(simulator.now)
        assert node.scheduler.states[PROGRAM].demand_ns[Klass.REALTIME] / ended == pytest.approx(load, rel=0.15)


def test_calls_refused_before_their_rows_are_known_count_as_others_do() -> None:
    """A full queue refuses at the head of a request. As one row each, calls of 8 would ask for what fits."""
    scheduler = Scheduler(DeviceSpec((WorkerSpec(16),)))
    scheduler.add_program(Program(PROGRAM, "m", (Stage(Profile(QUICK.batch_ns)),), "no_wait", max_queue=32), 0)
    for number in range(4):
        scheduler.submit(Call(number, PROGRAM, [Row() for _ in range(8)], Klass.REALTIME, 0, 0, None), 0)
    for _ in range(96):
        assert scheduler.admit(PROGRAM, 1, Klass.REALTIME, None, 0) is not None
        scheduler.refused(PROGRAM, 0, 0)
    scheduler.tick(S)
    assert scheduler.states[PROGRAM].rate.rate == 800
    assert scheduler.states[PROGRAM].demand_ns[Klass.REALTIME] / S == pytest.approx(800 / QUICK.peak, rel=1e-3)


@full
def test_demand_is_by_class() -> None:
    setup = Setup(QUICK, 0.5 * QUICK.peak, "no_wait", requests=REQUESTS, seed=1)
    node = setup.node(0)
    assert drive(setup, node, Klass.BEST_EFFORT) == pytest.approx(0.5, rel=0.1)
    assert node.scheduler.states[PROGRAM].demand_ns[Klass.REALTIME] == 0
