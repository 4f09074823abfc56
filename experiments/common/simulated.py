"""Simulates one server under given arrivals and records the latency of each request in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import Cut, Hold, Offer
from app.scheduler.policies.adaptive import Adaptive, column_of
from app.scheduler.policies.base import hold_or_cut
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, PolicySpec, Program, Stage, Step, Unit, WorkerSpec
from planner.node import PROGRAM, Node
from planner.simulated_device import SimulatedDevice
from planner.simulator import Simulator
from planner.tally import Tally

Instants = NDArray[np.int64]

FOREVER_MS = 3_600_000.0  # a delay longer than any run
_PATIENCE = 100  # mean latencies: by then the next row has come, with a chance of nearly 1
_WARM_NS = 3_000_000_000  # not steady: `adaptive` knows no rate until the first tick, after a second
_COOL = 100  # requests at the end that are not steady: rows held then wait for arrivals that do not come
_QUEUE = 1 << 30  # rows that may wait: nothing is refused, because latencies are what is compared
_solve = lru_cache(maxsize=64)(control.solve)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its settings. `delay_ms`: of window, static and preferred."""

    name: str
    delay_ms: float = 5.0


class Optimal(Adaptive):
    """Follows the tables of an optimum, which may let rows wait for company while a worker is free.

    When no more rows come, those that wait run after many times the mean latency.
    """

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        control = offer.state.estimates.control
        if control is None or column_of(offer, control, now) or control.serve(0, offer.ready.count):
            return super().decide(offer, now)
        return hold_or_cut(offer, offer.ready.count, round(_PATIENCE * control.mean_ns[0]), now)


def follow(scheduler: Scheduler, tables: ControlTables) -> None:
    """Serve the program by these tables of an optimum, whatever its policy."""
    scheduler.policies[PROGRAM] = Optimal()
    scheduler.control(PROGRAM, tables, 0)


class Recorder(Scheduler):
    """A scheduler that records each call's latency by its number; calls are numbered in order of arrival."""

    def __init__(self, device: DeviceSpec) -> None:
        super().__init__(device)
        self.latency_ns: dict[int, int] = {}

    def step(self, now: int, *, hold: bool = False) -> Step:
        step = super().step(now, hold=hold)
        for call in step.done:
            self.latency_ns[call.id] = now - call.arrived
        return step


class CopyingNode(Node):
    """A node that copies rows to the device beside the units (Ebird, section V): one after another in order of arrival,
    each from its arrival on. A unit computes when the last of its rows has been copied.
    """

    __slots__ = ("_copied",)

    def copy(self, instants: Instants, row_ns: int) -> None:
        """Rows of calls that arrive at these times will be copied, in `row_ns` each."""
        self._copied: list[int] = []
        free = 0
        for arrived in instants.tolist():
            free = max(free, arrived) + row_ns
            self._copied.append(free)

    def launched_at(self, unit: Unit, now: int) -> int:
        return max(super().launched_at(unit, now), *(self._copied[row.call.id - 1] for row in unit.rows))


@dataclass(frozen=True, slots=True)
class Server:
    """The simulated server: `running` units at once on workers of these capacities. `copy_ns`: time to copy one row to
    the device, beside the units."""

    policy: Policy
    profile: Profile
    workers: tuple[int, ...]
    running: int = 1
    copy_ns: int = 0
    tables: ControlTables | None = None  # of the optimum, which are followed in place of the policy

    def node(self, instants: Instants, device: SimulatedDevice | None = None) -> Node:
        """A new node for these arrivals. Without a device, units run one after another and take the profile's times."""
        program = Program(
            PROGRAM, self.profile.model, (Stage(self.profile),),
            PolicySpec(self.policy.name, round(self.policy.delay_ms * 1e6)), self.profile.max_batch, _QUEUE,
        )  # fmt: skip
        spec = DeviceSpec(tuple(map(WorkerSpec, self.workers)), max_running=self.running)
        node = (CopyingNode if self.copy_ns else Node)(Recorder(spec), program, device or SimulatedDevice(self.profile))
        if isinstance(node, CopyingNode):
            node.copy(instants, self.copy_ns)
        if self.tables is not None:
            follow(node.scheduler, self.tables)
        elif self.policy.name == "adaptive":
            tables = _solve(self.profile, workers=self.running)
            node.scheduler.control(PROGRAM, tables, 0)
        return node


@dataclass(frozen=True, slots=True)
class Served:
    """`latency_ms` of each request in order of arrival, without the first `warm` ones.

    `busy`: share of time in which a unit ran, from the last warm-up request to the last request.
    """

    latency_ms: NDArray[np.float64]
    tally: Tally
    busy: float


def serve(server: Server, instants: Instants, device: SimulatedDevice | None = None, warm: int = 0) -> Served:
    """Simulate the arrivals. Raises RuntimeError if a policy never answered some of the requests."""
    tally = Tally()
    node = server.node(instants, device)
    simulator = Simulator([node], tally)
    simulator.feed(instants[:warm].tolist())
    before, began = node.device.busy_ns, int(instants[warm - 1]) if warm else 0
    simulator.feed(instants[warm:].tolist())
    busy = (node.device.busy_ns - before) / (int(instants[-1]) - began)
    simulator.drain()
    recorder = node.scheduler
    assert isinstance(recorder, Recorder)
    if len(recorder.latency_ns) != len(instants):
        raise RuntimeError(
            f"{server.policy.name}: {len(recorder.latency_ns)} of {len(instants)} requests were answered"
        )
    latencies = np.array([recorder.latency_ns[number] for number in range(1, len(instants) + 1)]) / 1e6
    return Served(latencies[warm:], tally, busy)


def steady(server: Server, instants: Instants, device: SimulatedDevice | None = None) -> Served:
    """The same without its beginning and its end."""
    served = serve(server, instants, device, min(len(instants) // 2, int(np.searchsorted(instants, _WARM_NS))))
    count = len(served.latency_ms)
    return replace(served, latency_ms=served.latency_ms[: count - min(_COOL, count // 10)])


def stepped(steps: Sequence[tuple[int, float]], seed: int) -> Instants:
    """Poisson arrivals: each step is a number of requests and their rate. Rates scale the same random gaps."""
    rates = np.repeat([rate for _, rate in steps], [count for count, _ in steps])
    gaps = np.random.default_rng(seed).exponential(size=len(rates)) / rates
    return np.rint(gaps.cumsum() * 1e9).astype(np.int64)
