"""The simulated device and its service times.

`push` hands a unit to the device, `due` is when the next one ends, and `pop` returns it then. The units of one worker
run in the order in which they were pushed. UnitTimes come from the profile, optionally multiplied by random factors of
mean 1.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from app.scheduler.estimates.profile import Profile
from app.scheduler.types import Unit

from .row_steps import DecoderTimes
from .simulated_front import SimulatedFront

_DRAWN = 1024  # factors drawn at a time


class Factors:
    """Endless random factors with a gamma distribution of mean 1 and coefficient of variation `cv`."""

    __slots__ = ("_left", "_random", "_shape")

    def __init__(self, cv: float, seed: list[int]) -> None:
        self._shape = cv**-2
        self._random = np.random.default_rng(seed)
        self._left: list[float] = []

    def __call__(self) -> float:
        if not self._left:
            self._left = (self._random.standard_gamma(self._shape, _DRAWN) / self._shape).tolist()
        return self._left.pop()


def factors(service: str, seed: list[int]) -> Callable[[], float] | None:
    """The random factors of a `service`, None for deterministic. Raises ValueError for an unknown service."""
    kind, _, text = service.partition(":")
    if service == "deterministic":
        return None
    if service == "exponential":
        return Factors(1.0, seed)
    try:
        cv = float(text) if kind == "gamma" else -1.0
    except ValueError:
        cv = -1.0
    if not (cv == 0 or 1e-9 <= cv <= 100):
        raise ValueError(f"service: expected deterministic, exponential or gamma:CV, got {service!r}")
    return Factors(cv, seed) if cv else None


class UnitTimes:
    """The time of a unit alone, in nanoseconds, by its stage, size, longest row and steps."""

    __slots__ = ("_parts", "_plain")

    def __init__(self, profile: Profile) -> None:
        self._parts = profile.parts
        plain = not profile.stages and not profile.by_length
        self._plain = profile.batch_ns if plain else ()  # a short cut for most runs

    def __call__(self, unit: Unit) -> int:
        if self._plain:
            return self._plain[unit.size - 1] * unit.course.steps
        return round(self._parts[unit.stage].time(unit.size, unit.forecast.length)) * unit.course.steps


class _Running:
    """A unit at the head of its worker's queue."""

    __slots__ = ("began", "left", "slow", "unit")

    def __init__(self, unit: Unit, work: float, now: int) -> None:
        self.unit = unit
        self.left = work  # the work that remains: nanoseconds if it ran alone
        self.slow = 1.0  # the factor by which the other running units slow it down
        self.began = now


class SimulatedDevice:
    """Runs one unit at a time, whichever worker it belongs to; or up to `at_once` units of different workers, which
    slow one another down by the profile's `concurrency`.

    While k units run, a unit of b rows takes concurrency[k][b] / batch[b] times as long as alone. The factor is
    interpolated between measured k. Above the largest k it grows in proportion to k, so more units gain nothing.

    `front`: it slows units down while it is busy. `decodes`: the model is a decoder, of which one unit runs at a time.
    """

    def __init__(
        self,
        profile: Profile,
        at_once: int = 1,
        factor: Callable[[], float] | None = None,
        front: SimulatedFront | None = None,
        *,
        decodes: bool = False,
    ) -> None:
        if at_once > 1 and not all(part.concurrency_ns for part in profile.parts):
            raise ValueError("concurrency: the profile has no times of units that run at once, which `shared` needs")
        #: When the next unit ends, in ns; None while nothing runs.
        self.due: int | None = None
        #: Nanoseconds in which at least one unit ran (until the last end), and of all units added up.
        self.busy_ns = 0
        self.unit_ns = 0
        #: As `Outcome.times`: for a decoder's last unit the time of its step, without reading prompts. Else empty.
        self.step_times: tuple[int, ...] = ()
        self._front = front
        self._times = DecoderTimes(profile) if decodes else UnitTimes(profile)
        self._factor = factor
        self._slow = [[slowdown(part, units) for part in profile.parts] for units in range(1, at_once + 1)]
        self._shared = at_once > 1
        #: By worker; a device that runs one unit at a time has all of them under 0.
        self._waiting: dict[int, deque[Unit]] = defaultdict(deque)
        self._running: dict[int, _Running] = {}
        self._seen = 0  # when `left` was last brought up to date
        self._next = -1  # the worker whose unit ends at `due`

    def push(self, unit: Unit, now: int) -> None:
        """Queue a unit at its worker."""
        worker = unit.worker if self._shared else 0
        if worker in self._running:
            self._waiting[worker].append(unit)
            return
        self._pass(now)
        self._begin(unit, now)
        self._plan(now)

    def pop(self, now: int) -> tuple[Unit, int]:
        """Remove and return the unit that ends now, and the nanoseconds it ran. Call it only when `now` is `due`."""
        self._pass(now)
        ended = self._running.pop(self._next)
        if self._waiting[self._next]:
            self._begin(self._waiting[self._next].popleft(), now)
        self._plan(now)
        self.unit_ns += now - ended.began
        return ended.unit, now - ended.began

    def follow_front(self, now: int) -> None:
        """Recompute `due`, because a thread of the front has begun or ended its work."""
        if self._running:
            self._pass(now)
            self._plan(now)

    def _begin(self, unit: Unit, now: int) -> None:
        factor = 1.0 if self._factor is None else self._factor()
        work = self._times(unit) * factor
        if isinstance(self._times, DecoderTimes):
            self.step_times = (round(self._times.step_ns * factor),)
        self._running[unit.worker if self._shared else 0] = _Running(unit, work, now)

    def _pass(self, now: int) -> None:
        """Subtract the time since the last change from the remaining work of each unit."""
        elapsed = now - self._seen
        self._seen = now
        if self._running:
            self.busy_ns += elapsed
        for running in self._running.values():
            running.left -= elapsed / running.slow

    def _plan(self, now: int) -> None:
        """Compute the speed of each running unit, and which one ends first. Call it when units or the front change."""
        self.due = None
        slow = self._slow[len(self._running) - 1]
        beside = 1.0 if self._front is None else self._front.slows
        for worker, running in self._running.items():
            running.slow = slow[running.unit.stage][running.unit.size - 1] * beside
            end = now + max(1, round(running.left * running.slow))
            if self.due is None or end < self.due:
                self.due, self._next = end, worker


def slowdown(profile: Profile, units: int) -> tuple[float, ...]:
    """By batch size: the factor by which a unit takes longer while `units` run."""
    most = max(profile.concurrency_ns, default=1)
    beyond = max(1.0, units / most)
    times = zip(profile.times(min(units, most)), profile.batch_ns, strict=True)
    return tuple(beyond * time / alone for time, alone in times)
