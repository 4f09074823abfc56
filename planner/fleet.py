"""Simulates a deployment: K equal replicas behind a router, with one stream of requests.

If the router does not look at the state of replicas, each replica is simulated by itself. Then several processes each
take a share of the replicas, draw the whole stream and select their requests. If the router does look, all replicas are
in one simulation. The same setup gives the same figures for any number of processes. The figure `simulated` says how it
was done: "split, 2 processes" or "coupled, 1 process".
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import OBJECTIVES, POLICIES, policy_class, policy_for
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, PolicySpec, Program, Stage, WorkerSpec
from planner.option_values import default_workers
from planner.profile_times import peak_at

from .arrivals import Instants
from .arrivals import make as make_arrivals
from .drawn_lengths import Lengths
from .drawn_lengths import mean as mean_length
from .node import PROGRAM, Node
from .routers import BLIND, ROUTERS, Blind
from .routers import make as make_router
from .simulated_device import SimulatedDevice, factors
from .simulated_front import FrontCosts, SimulatedFront
from .simulator import Simulator
from .tally import Tally, summary

DEVICES = ("serial", "shared")
_MOST = {"requests": 10**9, "replicas": 100_000}  # more would take hours, or the memory of the machine
_LONGEST_S = 1e7  # of simulated time, in which each second costs some microseconds: two minutes
_PART = 250_000  # requests per process at least, because a process takes half a second to start

#: Separate seeds for what is random, so that changing one does not change the others.
_SERVICE, _ROUTING, _LENGTHS, _PROMPTS = 1, 2, 3, 4

#: Threshold of the garbage collector in new objects. At its default, 700, it walks all replicas again and again: with
#: 10,000 replicas a run takes 2.5 times as long. It is not needed, since the simulator breaks reference cycles itself.
_COLLECT = 1_000_000

_solve = lru_cache(maxsize=8)(control.solve)  # takes two seconds; the tables are the same for all loads and routers

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. `rate`: requests per second of all replicas together; None keeps that of a trace."""

    profile: Profile
    rate: float | None
    policy: str = "adaptive"
    requests: int = 100_000
    seed: int = 0
    arrivals: str = "poisson"
    service: str = "deterministic"
    device: str = "serial"
    workers: tuple[int, ...] = ()  # capacities in rows; empty: one worker of the largest batch
    deadline_ns: int | None = None
    max_queue: int = 1024
    max_delay_ns: int = 5_000_000
    replicas: int = 1
    router: str = "random"
    objective: str = "latency"  # of the policy adaptive
    tables: ControlTables | None = None  # of the policy adaptive; `run` solves them if None
    push_depth: int = 1  # units handed to one worker and unfinished
    push_ahead_ns: int = 0  # how long before the predicted end of a unit the next one may be handed over
    launch_ns: int = 0  # time that the host needs to launch a unit, beside the profile's hand-over
    lengths: str = ""  # of the requests; a row makes as many steps in each cell
    prompts: str = ""  # of a decoder: lengths of the prompts; `lengths` are then those of the written texts
    length_buckets: tuple[int, ...] = ()
    reorder: bool = True  # a policy that picks rows by length may do so
    complete_wait: float = 0.1  # of the policy dva_load: its T_comp_wait over the time of one row alone
    front: FrontCosts | None = None  # of each replica; None: requests are submitted when they arrive

    def check(self, longest_s: float = _LONGEST_S) -> None:
        """Raises ValueError that names the bad option, before a simulation of more than `longest_s`, too."""
        _one_of("policy", self.policy, tuple(POLICIES))
        _one_of("device", self.device, DEVICES)
        _one_of("objective", self.objective, OBJECTIVES)
        _one_of("router", self.router, ROUTERS)
        for name in ("requests", "replicas", "max_queue", "push_depth"):
            _at_least(1, name, getattr(self, name))
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name}: expected at most {most}, got {getattr(self, name)}")
        for name in ("launch_ns", "push_ahead_ns", "seed"):
            _at_least(0, name, getattr(self, name))
        if not self.complete_wait >= 0:
            raise ValueError(f"complete_wait: expected at least 0, got {self.complete_wait}")
        if any(not 1 <= capacity <= self.profile.max_batch for capacity in self.workers):
            raise ValueError(
                f"workers: expected capacities from 1 to {self.profile.max_batch}, got {list(self.workers)}"
            )
        if self.deadline_ns is not None and self.deadline_ns < 1:
            raise ValueError("deadline: expected more than 0")
        if self.objective == "deadline" and self.deadline_ns is None:
            raise ValueError("objective: deadline needs one for each request; give --deadline-ms")
        if self.router == "power_of_two" and self.replicas < 2:
            raise ValueError("router: power_of_two needs at least two replicas")
        cells = any(part.cell for part in self.profile.parts)
        if cells and not self.lengths:
            raise ValueError("lengths: the profile has a cell, which needs the lengths of requests")
        parts = self.profile.parts
        if self.prompts and ([part.cell for part in parts] != [False, True] or not parts[0].by_length):
            raise ValueError("prompts: expected a profile of a stage that reads, with length_ms, and a cell behind it")
        self.drawn_lengths()
        if self.lengths and not (cells or self.length_buckets or any(part.by_length for part in parts)):
            raise ValueError("lengths: expected a profile with length_ms or a cell: to this one they mean nothing")
        rate, served = make_arrivals(self.arrivals, self.rate, self.seed).rate, self.peak * self.replicas
        name, slowest = ("rate", rate) if rate <= served else ("profile", served)
        if not slowest * longest_s >= self.requests:
            least = self.requests / longest_s
            raise ValueError(f"{name}: expected at least {least:g}/s for {self.requests} requests, got {slowest:g}/s")
        self.node(0)

    @property
    def peak(self) -> float:
        """Rows per second of one device at best: a load of 1. With lengths, for rows of the mean length."""
        means = [mean_length(spec, option) for option, spec, _ in self._length_specs]
        return peak_at(self.profile, *means) if means else self.profile.peak

    @property
    def split(self) -> bool:
        """Whether each replica can be simulated by itself."""
        return self.replicas == 1 or self.router in BLIND

    def node(self, replica: int, scheduler: Callable[[DeviceSpec], Scheduler] = Scheduler) -> Node:
        """A new replica, with its own random service times."""
        spec = self._spec()
        factor = factors(self.service, [self.seed, _SERVICE, replica])
        front = None if self.front is None else SimulatedFront(self.front)
        decodes = bool(self.prompts)
        device = SimulatedDevice(self.profile, spec.max_running, factor, front, decodes=decodes)
        stages = tuple(Stage(part, part.cell) for part in self._served.of_stages())
        if decodes:
            stages = tuple(replace(cell, own_steps=True) for cell in stages)
        name = policy_for(self.policy, self.objective)
        program = Program(
            PROGRAM, self.profile.model, stages,
            PolicySpec(name, self.max_delay_ns, self.reorder, self.complete_wait),
            self.profile.max_batch, self.max_queue, self.length_buckets, one_unit=decodes,
        )  # fmt: skip
        node = Node(scheduler(spec), program, device, self.launch_ns + (self.profile.handover_ns or 0), front)
        if self.tables is not None:
            node.scheduler.control(PROGRAM, self.tables, 0)
        return node

    @property
    def _served(self) -> Profile:
        """The profile as the scheduler knows it. For a decoder only its steps, as on the server."""
        if not self.prompts:
            return self.profile
        cell = self.profile.parts[-1]
        return replace(self.profile, batch_ns=cell.batch_ns, by_length=(), stages=(cell,))

    def _spec(self) -> DeviceSpec:
        capacities = self.workers or default_workers(self.policy, self.profile.max_batch)
        workers = tuple(WorkerSpec(capacity) for capacity in capacities)
        running = 1 if self.device == "serial" else len(workers)
        return DeviceSpec(
            workers, max_running=running, push_depth=self.push_depth, push_ahead_ns=self.push_ahead_ns,
        )  # fmt: skip

    def solved(self) -> Setup:
        """The same setup with control tables, if the policy uses them."""
        if not policy_class(self.policy).uses_tables or self.tables is not None:
            return self
        running = 1 if self.device == "serial" else max(1, len(self.workers))
        return replace(self, tables=_solve(self._served, workers=running, lead_ns=self._spec().lead_ns))

    def drawn_lengths(self) -> list[Lengths]:
        """The random lengths of all requests in order, if they have any, then their steps, if these differ."""
        return [Lengths(spec, [self.seed, stream], option) for option, spec, stream in self._length_specs]

    @property
    def _length_specs(self) -> list[tuple[str, str, int]]:
        """(option, spec, random stream) of the length options that were given."""
        specs = [("prompts", self.prompts, _PROMPTS), ("lengths", self.lengths, _LENGTHS)]
        return [one for one in specs if one[1]]

    def instants(self) -> Iterator[Instants]:
        """The times of all requests, in chunks; a trace may end sooner."""
        left = self.requests
        for chunk in make_arrivals(self.arrivals, self.rate, self.seed).chunks():
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return


def run(setup: Setup, processes: int = 1, progress: Progress = lambda requests: None) -> dict[str, Any]:
    """Simulate a setup. Returns the figures of `report.summary`, with policy, rate and load.

    `progress` is called with numbers of requests as they are fed; with several processes when one has ended. Raises
    ValueError for a bad setup.
    """
    setup.check()
    setup = setup.solved()
    processes = max(1, min(processes, setup.replicas, setup.requests // _PART)) if setup.split else 1
    tally = counted(setup, processes, progress)
    rate = setup.rate or make_arrivals(setup.arrivals, None, setup.seed).rate
    cell: dict[str, Any] = {"policy": setup.policy, "rate": rate, "load": rate / setup.replicas / setup.peak}
    cell |= summary(tally)
    if setup.replicas > 1:
        cell |= {"replicas": setup.replicas, "router": setup.router}
        how = "split" if setup.split else "coupled"
        cell["simulated"] = f"{how}, {processes} process{'es' * (processes > 1)}"
    return cell


def counted(setup: Setup, processes: int = 1, progress: Progress = lambda requests: None) -> Tally:
    """The counts of a setup that has been checked and solved. `run` makes its figures from them."""
    if processes == 1 or not setup.split:
        return _simulated(setup, range(setup.replicas), progress)
    return _in_processes(setup, processes, progress)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Run the garbage collector only once in `_COLLECT` objects."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_seldom_collected()
def _simulated(setup: Setup, replicas: range, progress: Progress = lambda requests: None) -> Tally:
    """Simulate these replicas: all of them together if the router looks at them, else each by itself."""
    tally = Tally()
    nodes = [setup.node(replica) for replica in replicas]
    seed = [setup.seed, _ROUTING]
    if setup.split:
        blind = Blind(setup.router, setup.replicas, seed)
        simulators = [Simulator([node], tally, deadline_ns=setup.deadline_ns) for node in nodes]
    else:
        blind, router = None, make_router(setup.router, nodes, seed)
        simulators = [Simulator(nodes, tally, deadline_ns=setup.deadline_ns, route=router.route, moved=router.moved)]
    drawn = setup.drawn_lengths()
    for chunk in setup.instants():
        lengths = [one.draw(len(chunk)) for one in drawn]
        parts = [np.arange(len(chunk))] if blind is None else blind.parts(len(chunk), replicas)
        for simulator, part in zip(simulators, parts, strict=True):
            simulator.feed(chunk[part].tolist(), *(one[part].tolist() for one in lengths))
        progress(len(chunk))
    for simulator in simulators:
        simulator.drain()
    return tally


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """So many processes to simulate on. A Ctrl-C ends them without a word."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of numpy's linear algebra
    with ProcessPoolExecutor(count, context, signal.signal, (signal.SIGINT, signal.SIG_DFL)) as pool:
        yield pool


def _in_processes(setup: Setup, count: int, progress: Progress) -> Tally:
    """Simulate shares of the replicas in several processes and add up the results. Raises what a share raises."""
    bounds = [setup.replicas * part // count for part in range(count + 1)]
    tally = Tally()
    with processes(count) as pool:
        shares = [pool.submit(_simulated, setup, range(low, high)) for low, high in pairwise(bounds)]
        for share in as_completed(shares):
            tally.add(share.result())
            progress(share.result().requests)
    return tally


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
