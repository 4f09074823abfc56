"""A simulated server that learns its batch times while it serves, as the server does, and ones that know them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.engine.profiling.tables import Due
from app.scheduler.estimates import evidence
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.types import DeviceSpec, PolicySpec, Program, Stage, Step, Unit, WorkerSpec
from experiments.common.simulated import Instants, Recorder
from experiments.policies.simulated import MEASURED, PROFILES, devices
from planner.node import PROGRAM, Node
from planner.simulated_device import SimulatedDevice
from planner.simulator import Simulator
from planner.tally import Tally

PEAK = 500.0  # rows/s that each device serves at best, one batch at a time
BESIDE = 1.4  # slowdown by a second unit, where it was not measured
#: Batches that begin in the same slot have the same noise. Shorter than batches: of a longer one's, more would begin in
#: fast slots, so that small batches would be faster on average than their curve says.
_SLOT_NS = 500_000
_SLOTS = 4096  # drawn at a time
_QUEUE = 1 << 30  # rows that may wait


def curves() -> dict[str, Profile]:
    """Three measured devices and two made up, all as fast at best, and exactly known."""
    found = {}
    for name, known in devices(PROFILES).items():
        if name not in (*MEASURED, "0.2 + 3 b", "4 to 8 rows, then + 0.4"):
            continue
        profile = replace(known, by_length=(), stages=(), errors=(), handover_ns=None)
        profile = profile.scaled(profile.peak / PEAK)
        beside = profile.concurrency_ns or {2: tuple(round(BESIDE * ns) for ns in profile.batch_ns)}
        found[name] = replace(profile, concurrency_ns=beside)
    return found


@dataclass(frozen=True)
class Evidence:
    """How batch times scatter about the curve. `cv`: of gamma noise; `spikes`: share of batches and their factor.

    `warm`: the spikes of the warm-up, which runs each size once.
    """

    cv: float
    spikes: tuple[float, float] = (0.0, 1.0)
    warm: tuple[float, float] = (0.0, 1.0)

    def factors(self, count: int, seed: Sequence[int]) -> NDArray[np.float64]:
        """Of mean 1."""
        share, factor = self.spikes
        return self._drawn(count, seed, self.spikes) / (1 + share * (factor - 1))

    def warmed_up(self, profile: Profile, seed: int) -> Profile:
        """What a server knows when it is ready: no times of units that run at once."""
        taken = np.array(profile.batch_ns) * self._drawn(profile.max_batch, [seed, 1], self.warm)
        known = evidence.Evidence(Profile((1,) * profile.max_batch))
        for size, ns in enumerate(taken.tolist(), 1):
            known.add(evidence.Point(1, size), evidence.UnitTime(max(1, round(ns))), evidence.WARM_UP)
        return known.profile()

    def _drawn(self, count: int, seed: Sequence[int], spikes: tuple[float, float]) -> NDArray[np.float64]:
        random = np.random.default_rng(seed)
        noise = random.standard_gamma(self.cv**-2, count) * self.cv**2
        return np.asarray(noise * np.where(random.random(count) < spikes[0], spikes[1], 1.0))


@dataclass(frozen=True)
class Phases:
    """A quantity that is constant from each of `begins` (seconds, the first is 0) to the next."""

    begins: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, now: int) -> float:
        return self.values[bisect_right(self.begins, now / 1e9) - 1]

    def arrivals(self, seconds: float, seed: int) -> Instants:
        """Poisson arrivals, if this is their rate."""
        times = np.array([*self.begins, seconds])
        expected = np.concatenate([[0.0], np.cumsum(np.diff(times) * self.values)])
        random = np.random.default_rng([seed, 2])
        gaps = random.exponential(size=round(expected[-1] + 10 * np.sqrt(expected[-1]) + 10))
        counted = gaps.cumsum()
        found = np.interp(counted[counted < expected[-1]], expected, times)
        return np.rint(found * 1e9).astype(np.int64)


STEADY = Phases((0.0,), (1.0,))


class Machine(SimulatedDevice):
    """A device whose noise is a function of time, so that all policies meet the same, and whose speed changes."""

    def __init__(self, profile: Profile, workers: int, noise: Callable[[int], NDArray[np.float64]], slow: Phases):
        super().__init__(profile, workers, self._factor_now)
        self._noise, self._slower = noise, slow
        self._slots: list[float] = []
        self._at = 0

    def _factor_now(self) -> float:
        slot = self._at // _SLOT_NS
        while len(self._slots) <= slot:
            self._slots += self._noise(len(self._slots)).tolist()
        return self._slots[slot] * self._slower.at(self._at)

    def _begin(self, unit: Unit, now: int) -> None:
        self._at = now
        super()._begin(unit, now)


class Learner(Recorder):
    """Solves tables when the server does. Solving takes a second, until the next tick."""

    def __init__(self, device: DeviceSpec) -> None:
        super().__init__(device)
        self._due = Due(len(device.workers))
        self._solved: ControlTables | None = None

    def tick(self, now: int) -> None:
        super().tick(now)
        if self._solved is not None:
            self.control(PROGRAM, self._solved, now)
            self._solved = None
        curve = self.states[PROGRAM].estimates.latency[0]
        if self._due.again([curve], now):
            known = curve.learned()
            if self._due.begin([curve], known.errors, now):
                self._solved = control.solve(known, workers=len(self.device.workers))


class Told(Recorder):
    """Is told the true rate and the true speed at each moment."""

    rate = slow = STEADY

    def step(self, now: int, *, hold: bool = False) -> Step:
        estimates = self.states[PROGRAM].estimates
        estimates.latency[0].speed.scale = estimates.scale = self.slow.at(now)
        estimates.arrivals.steady = self.rate.at(now)
        if estimates.control is not None:
            estimates.level = estimates.control.level(estimates.arrivals.steady, estimates.scale)
        return super().step(now, hold=hold)


@lru_cache(maxsize=64)
def exact_tables(profile: Profile, workers: int) -> ControlTables:
    return control.solve(profile, workers=workers)


@dataclass(frozen=True)
class Case:
    """A device with traffic. `rate`: of arrivals, in rows/s, as `told` knows it. `slow`: of its batches, over the
    curve."""

    profile: Profile
    evidence: Evidence
    instants: Instants
    rate: Phases
    workers: int = 1
    slow: Phases = STEADY
    seed: int = 0

    def noise(self, begun: int) -> NDArray[np.float64]:
        return self.evidence.factors(_SLOTS, [self.seed, 3, begun])


class Served:
    """A case served by `no_wait`, by the `exact` tables of the true curve, by these and `told` rate and speed, or
    `learned` from a warm-up on."""

    def __init__(self, case: Case, how: str) -> None:
        learns, workers = how == "learned", case.workers
        given = case.evidence.warmed_up(case.profile, case.seed) if learns else case.profile
        policy = PolicySpec("no_wait" if how == "no_wait" else "adaptive")
        program = Program(PROGRAM, "m", (Stage(given),), policy, given.max_batch, _QUEUE)
        spec = DeviceSpec((WorkerSpec(given.max_batch),) * workers, max_running=workers)
        self.scheduler = (Learner if learns else Told if how == "told" else Recorder)(spec)
        if isinstance(self.scheduler, Told):
            self.scheduler.rate, self.scheduler.slow = case.rate, case.slow
        node = Node(self.scheduler, program, Machine(case.profile, workers, case.noise, case.slow))
        if how in ("exact", "told"):
            self.scheduler.control(PROGRAM, exact_tables(case.profile, workers), 0)
        self._simulator = Simulator([node], Tally())
        self._instants, self._fed = case.instants, 0

    def until(self, seconds: float) -> None:
        """Serve what arrives up to then."""
        upto = int(np.searchsorted(self._instants, round(seconds * 1e9)))
        self._simulator.feed(self._instants[self._fed : upto].tolist())
        self._fed = upto

    def latency_ms(self) -> NDArray[np.float64]:
        """Of each request, in order of arrival, when all are served."""
        self._simulator.feed(self._instants[self._fed :].tolist())
        self._simulator.drain()
        latencies = self.scheduler.latency_ns
        return np.array([latencies[number] for number in range(1, len(self._instants) + 1)]) / 1e6
