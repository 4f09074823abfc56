"""Copies of rows beside the units: hand-computed latencies."""

from __future__ import annotations

import numpy as np

from app.scheduler.estimates.profile import ModelProfile, parse
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, Program, Stage, WorkerSpec
from app.sim.device import Device
from app.sim.node import PROGRAM
from app.sim.report import Tally
from app.sim.simulator import Simulator
from experiments.common.simulated import CopyingNode
from tests.sim.runs import MS, Kept

PROFILE = parse({"batch_ms": {"1": 10, "3": 14}})


def latencies(
    times_ms: list[int], copy_ms: int = 3, profile: ModelProfile = PROFILE, launch_ms: int = 0
) -> tuple[list[float], float, float]:
    """Milliseconds of each request, in the order of its answer; busy and last millisecond."""
    program = Program(PROGRAM, "copied", (Stage(profile.stage()),), "no_wait", profile.max_batch)
    scheduler = Scheduler(DeviceSpec((WorkerSpec(profile.max_batch),)))
    node, tally = CopyingNode(scheduler, program, Device(profile), launch_ms * MS), Tally(latencies=Kept())
    instants = np.array(times_ms) * MS
    node.copy(instants, copy_ms * MS)
    simulator = Simulator([node], tally)
    simulator.feed(instants.tolist())
    simulator.drain()
    return [latency / MS for latency in tally.latencies], tally.busy_ns / MS, tally.end_ns / MS


def test_rows_are_copied_behind_a_running_unit() -> None:
    """Copied at 3, 6 and 9: the first unit computes from 3 to 13, the batch of two at once after it."""
    assert latencies([0, 1, 2]) == ([13, 24, 23], 22, 25)


def test_a_unit_waits_for_the_last_of_its_rows() -> None:
    """At 13 the device is free. The row of 11 is copied at 14; those of 10 and 12 at 13 and 16. To wait is no work."""
    assert latencies([0, 11]) == ([13, 13], 20, 24)
    assert latencies([0, 10, 12]) == ([13, 18, 16], 22, 28)


def test_a_launch_overlaps_with_the_copy() -> None:
    assert latencies([0], launch_ms=5) == ([15], 10, 15)


def test_the_copy_engine_can_be_the_limit() -> None:
    assert latencies([0, 0, 0], 20, parse({"batch_ms": {"1": 10}})) == ([30, 50, 70], 30, 70)
