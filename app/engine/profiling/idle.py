"""Measures models while the server is idle: the profile that a freshly loaded model has only guessed at in warm-up.

Rules
    1. A batch is measured by the worker that serves, between calls: a model never runs where it would not otherwise.
    2. A batch is measured only when there has been no call for several times as long as it takes, so that few calls
       meet one. A call that does waits for the batch at hand, at most; one that would take too long is never measured.
    3. Rows to measure with have slots of their own, which no call is ever given.
    4. The scheduler hears of it once, at the end, as of any other input (`reprofile`). Units that it starts on a worker
       that measures are kept here until that one is free, so that no worker has more than its depth.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Protocol

from app.engine.devices.cpu.device import Device
from app.engine.devices.cpu.executor import Executor
from app.engine.devices.cpu.worker import Completion, Job
from app.engine.devices.pool import Pool, Slots
from app.engine.profiling.bench import Cell, Sampler, cells, coarser, fill, lengths_of, levels
from app.engine.profiling.cache import Key, ProfileCache, key_of
from app.engine.profiling.warmup import warm_up
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")

_QUIET_NS = 50_000_000  # without a call: shorter gaps are those between the calls of one busy client
_PATIENCE = 4  # times a batch's own time without a call, before it is measured: another is not so likely to come then
_LEAST, _MOST = 5, 30  # times per cell; the median of 30 is known to a few percent on a machine that does other things
_SHARE = 10  # a batch may take this part of the budget at most, or it keeps its time from warm-up


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model's batch times, and from where: warm-up, cache or measured. `made`: UTC, ISO 8601."""

    profile: ModelProfile
    origin: str
    made: str = ""

    def told(self) -> dict[str, Any]:
        """For the statistics: all but `batch_ms`, which stands beside it. Milliseconds."""
        profile, line = self.profile, self.profile.fit()
        return {
            "origin": self.origin,
            "made": self.made,
            "lengths": profile.extra.get("lengths", {}),
            "concurrency_ms": {
                str(units): {str(size): ns / 1e6 for size, ns in enumerate(times, 1)}
                for units, times in profile.concurrency_ns.items()
            },
            "fit": {"alpha_ms": line.alpha_ns / 1e6, "beta_ms": line.beta_ns / 1e6, "residual": line.residual},
            "best_batch": profile.best,
            "best_rows_per_s": profile.peak,
        }


class Target(Protocol):
    """A served model, as far as it is measured."""

    executor: Executor
    known: Known
    key: Key | None
    spare: Slots  # of its pool, for measuring: as many rows for each worker


class Driver(Protocol):
    """What measuring needs of the engine."""

    device: Device
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], int]
    lost: str | None

    @property
    def busy(self) -> bool:
        """Some call has not left, or some unit runs."""
        ...


class IdleProfiler:
    """Owned by the engine, used on its loop. `adopt` is told of each model that has been measured."""

    def __init__(
        self,
        driver: Driver,
        cache: ProfileCache | None,
        budget_s: float,
        adopt: Callable[[Any, Known], None],
    ) -> None:
        self.cache = cache
        #: Live jobs for workers that measure now, which get them when they are done.
        self.kept: dict[int, list[Job]] = {}
        #: Whether `moved` wants to be called.
        self.watching = False
        self._driver = driver
        self._budget_ns = int(budget_s * 1e9)
        self._adopt = adopt
        self._wanted: deque[Target] = deque()
        self._begun = False
        self._task: asyncio.Task[None] | None = None
        self._running: dict[int, int] = {}  # number of the measured unit -> worker
        self._number = 0  # of the last one; below 0, where the scheduler's are not
        self._times: list[int] = []
        self._fault = ""
        self._ended: asyncio.Future[None] | None = None
        self._idle_since: int | None = None  # None while a call is there
        self._need_ns = 0
        self._rest: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def spare(self) -> int:
        """Batches of spare slots that a model to be measured needs."""
        return len(self._driver.device.spec.workers) if self._budget_ns else 0

    # who is measured

    def want(self, target: Target) -> None:
        """Measure this model when there is time. Does nothing without a budget."""
        if self._budget_ns:
            self._wanted.append(target)
            self._go_on()

    def begin(self) -> None:
        """From now on: models that load would disturb what is measured, so the engine waits for those of the start."""
        self._begun = True
        self._go_on()

    def forget(self, target: Target) -> None:
        """The model is going: measure it no further. What of it runs at this moment ends."""
        if target in self._wanted:
            self._wanted.remove(target)

    async def close(self) -> None:
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _go_on(self) -> None:
        if self._begun and self._wanted and self._task is None:
            self._task = self._driver.loop.create_task(self._work(), name="profile")
            self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.watching = False
        self._rest = None
        self._disarm()
        if not task.cancelled() and task.exception() is not None:
            log.error("measuring profiles has failed", exc_info=task.exception())

    async def _work(self) -> None:
        self.watching = True
        self._idle_since = None
        while self._wanted:
            target = self._wanted[0]  # it stays there, so that `forget` finds it
            known = await self._measure(target)
            if not self._wanted or self._wanted[0] is not target:
                continue
            self._wanted.popleft()
            if known is not None:
                self._adopt(target, known)
                if self.cache is not None and target.key is not None:
                    await self._driver.loop.run_in_executor(None, self.cache.store, target.key, known.profile)

    async def _measure(self, target: Target) -> Known | None:
        """The model's profile, or None if it was not to be had."""
        info, pool = target.executor.model.info, target.executor.pool
        guessed = target.known.profile.batch_ns
        lengths = lengths_of(info)
        await self._driver.loop.run_in_executor(None, fill, pool, target.spare, lengths)
        if self._driver.device.staged:
            self._driver.device.arrive(target.executor, target.spare)
        workers = able(self._driver.device.spec, len(guessed))
        most = min(len(workers), self._driver.device.spec.max_running)
        sampler = Sampler(self._wanted_cells(guessed, levels(most)), least=_LEAST, most=_MOST)
        spent = 0
        while spent < self._budget_ns and (cell := sampler.next()) is not None:
            await self._quiet(max(_QUIET_NS, _PATIENCE * guessed[cell[1] - 1] * cell[0]))
            if self._driver.lost is not None or target not in self._wanted:
                return None
            begin = self._driver.clock()
            await self._run(target, cell, workers)
            took = self._driver.clock() - begin
            spent += took
            if self._fault:
                log.warning("model %s: its profile is not measured: %s", info.name, self._fault)
                return None
            sampler.add(cell, [round(median(self._times))], took)
        if not any(sampler.table(1)):
            return None
        return _measured(target.known.profile, sampler, lengths)

    def _wanted_cells(self, guessed: Sequence[int], at_once: Sequence[int]) -> list[Cell]:
        """As many sizes as the budget has room for, several times each; none of batches that take too long."""
        wanted: list[Cell] = []
        for sizes in coarser(len(guessed)):
            wanted = cells([size for size in sizes if guessed[size - 1] * _SHARE <= self._budget_ns], at_once)
            if _LEAST * sum(units * guessed[size - 1] for units, size in wanted) <= self._budget_ns:
                break
        return wanted

    async def _run(self, target: Target, cell: Cell, workers: list[int]) -> None:
        """One batch on each of as many workers, all begun together; leaves `_times` and `_fault`."""
        units, size = cell
        self._times, self._fault = [], ""
        self._ended = self._driver.loop.create_future()
        rows = len(target.spare) // len(self._driver.device.spec.workers)
        for place, worker in enumerate(workers[:units]):
            self._number -= 1
            self._running[self._number] = worker
            self.kept[worker] = []
            slots = target.spare[place * rows : place * rows + size]
            self._driver.device.push(worker, Job(self._number, target.executor, slots, size))
        await self._ended

    # told by the engine

    def ended(self, completion: Completion) -> None:
        """A unit has ended that the scheduler knows nothing of."""
        worker = self._running.pop(completion.outcome.unit_id, None)
        if worker is None:
            return
        for job in self.kept.pop(worker):
            self._driver.device.push(worker, job)
        if completion.ran is not None:
            self._times.append(completion.outcome.compute_ns)
        else:
            self._fault = completion.message
        if not self._running and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def moved(self) -> None:
        """A call has come or gone."""
        if self._driver.busy:
            self._idle_since = None
            self._disarm()
        elif self._idle_since is None:
            self._idle_since = self._driver.clock()
            self._arm()

    def _arm(self) -> None:
        if self._idle_since is not None and self._rest is not None and self._timer is None:
            wait = self._idle_since + self._need_ns - self._driver.clock()
            self._timer = self._driver.loop.call_later(max(0, wait) / 1e9, self._settle)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self) -> None:
        self._timer = None
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    async def _quiet(self, need_ns: int) -> None:
        """Until there has been no call for so long."""
        self.moved()
        while self._idle_since is None or self._driver.clock() < self._idle_since + need_ns:
            self._need_ns = need_ns
            self._rest = self._driver.loop.create_future()
            self._arm()
            await self._rest
            self._rest = None
            self.moved()  # a call may have come that no step has seen yet


def know(executor: Executor, max_batch: int, device: Device, cache: ProfileCache | None) -> tuple[Known, Key | None]:
    """Warm the model up; what is known of its times then, and where its profile is kept. Slow: not for the event loop.

    Raises ConfigError when the model raises or does not return what it declares.
    """
    model = executor.model
    quick = ModelProfile(warm_up(executor, max_batch).batch_ns, model.info.name)
    known = Known(replace(quick, extra={"lengths": lengths_of(model.info)}), "warm-up", _now())
    if cache is None:
        return known, None
    key = key_of(model, device)
    kept = cache.load(key, max_batch)
    if kept is not None:
        known = Known(kept, "cache", str(kept.extra.get("made", "")))
    return known, key


def is_whole(known: Known, device: Device) -> bool:
    """Measured, and for as many units at once as can be measured on this device."""
    spec = device.spec
    most = min(len(able(spec, known.profile.max_batch)), spec.max_running)
    return known.origin != "warm-up" and most <= max(known.profile.concurrency_ns, default=1)


def able(spec: DeviceSpec, rows: int) -> list[int]:
    """Workers that take a batch of so many rows: as many units at once can be measured."""
    return [worker for worker, one in enumerate(spec.workers) if one.capacity >= rows]


def set_apart(pool: Pool, rows: int) -> Slots:
    """The last `rows` slots, which the pool hands to nobody from now on. Before the first is taken."""
    pool.end -= rows
    return range(pool.end, pool.end + rows)


def _measured(guess: ModelProfile, sampler: Sampler, lengths: Mapping[str, int]) -> Known:
    made = _now()
    profile = sampler.profile(guess.batch_ns, model=guess.model, lengths=dict(lengths), made=made)
    return Known(profile, "measured", made)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
