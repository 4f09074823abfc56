"""Measures models while the server is idle: the profile that a freshly loaded model has only guessed at in warm-up.

Rules
    1. A batch is measured by the worker that serves, between calls: a model never runs where it would not otherwise.
    2. A batch is measured only when no unit has been there for several times as long as it takes, so that few calls
       meet one. A call that does waits for the batch at hand, at most; one that would take too long is never measured.
    3. What a batch costs beyond computing is measured with it: measured batches are handed over as live ones are.
    4. Rows to measure with have slots of their own, which no call is ever given.
    5. A model in stages runs whole: each visit says what each stage took, and nothing is kept between them.
    6. The scheduler hears of it once, at the end, as of any other input (`reprofile`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Any, Protocol

from app.contract import SampleRow
from app.engine.device import Executor, Ran
from app.engine.pool import Slots
from app.engine.profiling.cache import Key, Known, Origin, ProfileCache
from app.engine.profiling.first_rows import check_later, time_rows
from app.engine.profiling.measured_device import Measured, MeasuredDevice
from app.engine.profiling.room import SHARE, Room
from app.engine.profiling.sampler import Cell, Sampler, levels
from app.engine.profiling.warmup import write_rows
from app.models.checks.samples import longest, short_lengths, stretched
from app.observe.metrics import ModelStats
from app.scheduler.estimates.curve import ONCE
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")

_QUIET_NS = 50_000_000  # without a call: shorter gaps are those between the calls of one busy client
_PATIENCE = 4  # times a batch's own time without a call, before it is measured: another is not so likely to come then


class _GoneError(RuntimeError):
    """The model has been unloaded, or the device is dead."""


class Target(Protocol):
    """A served model, as far as it is measured."""

    executor: Executor
    known: Known
    key: Key | None
    spare: Slots  # of its pool, for measuring: as many rows for each worker
    rows: Sequence[SampleRow]  # to measure with
    untried: bool  # it has not run in any batch but those of its calls
    stats: ModelStats  # counts its batches


class IdleProfiler:
    """Used on the event loop. `adopt` is told of each model that has been measured."""

    def __init__(
        self,
        device: MeasuredDevice,
        cache: ProfileCache | None,
        budget_s: float,
        clock: Callable[[], int],
        adopt: Callable[[Any, Known], None],
    ) -> None:
        self._device = device
        self._cache = cache
        self._budget_ns = int(budget_s * 1e9)
        self._clock = clock
        self._adopt = adopt
        self._wanted: deque[Target] = deque()
        self._begun = False
        self._task: asyncio.Task[None] | None = None

    @property
    def spare(self) -> int:
        """Batches of spare slots that a model to be measured needs."""
        return len(self._device.spec.workers) if self._budget_ns else 0

    def want(self, target: Target) -> None:
        """Measure this model when there is time. Does nothing without a budget."""
        if self._budget_ns:
            self._wanted.append(target)
            self._go_on()

    def begin(self) -> None:
        """Start measuring: models that are still loading would disturb what is measured."""
        self._begun = True
        self._go_on()

    async def forget(self, target: Target) -> None:
        """The model is going: measure it no further, and return when no unit of it runs."""
        if target in self._wanted:
            self._wanted.remove(target)
        await self._device.unmeasured()

    async def close(self) -> None:
        """Stop measuring. A unit that runs is not waited for."""
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _go_on(self) -> None:
        if self._begun and self._wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="profile")
            self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            log.error("measuring profiles has failed", exc_info=task.exception())

    async def _work(self) -> None:
        while self._wanted:
            target = self._wanted[0]  # it stays there, so that `forget` finds it
            before = replace(target.stats.profiled)
            log.info(
                "model %s: measuring it while there are no calls, for at most %.3g s of batches (--profile-budget-s)",
                target.executor.model.info.name, self._budget_ns / 1e9,
            )  # fmt: skip
            known = await self._try(target) if target.untried else None
            if known is None or not is_whole(target, self._device.spec):
                timed = has_times(target.known, self._device.spec)
                known = await (self._measure_rest(target) if timed else self._measure(target)) or known
            spent = target.stats.profiled
            log.info(
                "model %s: measuring has ended: %d batches, which took %.3g s",
                target.executor.model.info.name, spent.count - before.count, (spent.ns - before.ns) / 1e9,
            )  # fmt: skip
            if not self._wanted or self._wanted[0] is not target:
                continue
            self._wanted.popleft()
            if known is not None:
                self._adopt(target, known)
                if self._cache is not None and target.key is not None:
                    await asyncio.to_thread(self._cache.store, target.key, known.profile)

    async def _try(self, target: Target) -> Known | None:
        """Time a few sizes of a model that could not be warmed up, and check whether its rows are independent."""
        model = target.executor.model
        target.untried = False
        run = partial(self._run, target)
        try:
            if not has_times(target.known, self._device.spec):
                times = await time_rows(target.rows[0], target.known.profile.max_batch, self._budget_ns // SHARE, run)
                lengths = {"lengths": longest(target.rows)}
                profile = ModelProfile(times, model.info.name, extra=lengths, errors=(ONCE,) * len(times))
                target.known = Known(profile, Origin.WARM_UP, now_utc())
            if model.row_check != "off":
                await check_later(model, target.rows, run)
        except _GoneError:
            return None
        except RuntimeError as exc:
            log.warning("model %s: its first rows cannot be run again: %s", model.info.name, exc)
            return None
        return target.known

    async def _run(self, target: Target, rows: Sequence[SampleRow], size: int) -> Ran:
        """Run rows as a batch of `size` when no call is there. Raises RuntimeError when the model fails."""
        device, executor, slots = self._device, target.executor, target.spare[:size]
        batch = [*rows, *[rows[-1]] * (size - len(rows))]
        await asyncio.to_thread(write_rows, executor.pool, slots, batch)
        device.arrive(executor, slots)
        await device.quiet(_QUIET_NS)
        if device.dead() is not None or target not in self._wanted:
            raise _GoneError
        ((completion, _),) = await self._timed(target, [(able(device.spec, size)[0], slots)])
        if completion.ran is None:
            raise RuntimeError(completion.message)
        return completion.ran

    async def _timed(self, target: Target, batches: Sequence[tuple[int, Slots]]) -> list[Measured]:
        """Run batches at once, and count them as what they are."""
        measured = await self._device.measure(target.executor, batches)
        for one in measured:
            target.stats.profiled.add(one.completion.outcome.compute_ns)
        return measured

    async def _measure(self, target: Target) -> Known | None:
        """The model's profile, or None if it was not to be had."""
        guess = target.known.profile
        most = min(len(able(self._device.spec, guess.max_batch)), self._device.spec.max_running)
        own, wanted = self._lengths(target)
        sampler = self._room(target).sampler(levels(most), wanted)
        handovers = await self._visit(target, sampler)
        await self._forget_rows(target)
        if handovers is None or not any(sampler.table(1)):
            return None
        made = now_utc()
        keys: dict[str, Any] = {"model": guess.model, "lengths": longest(target.rows), "made": made}
        if handovers:
            keys["handover_ms"] = max(0.0, median(handovers) / 1e6)
        cell = target.executor.steps is not None
        return Known(sampler.profile(guess, own, cell=cell, **keys), Origin.MEASURED, made)

    async def _measure_rest(self, target: Target) -> Known | None:
        """What is known of the model, and what it lacks: the hand-over, other lengths. None if they were not to be had.

        For profiles that were kept before these were measured: they hold more than would be measured here.
        """
        known = target.known
        own, wanted = self._lengths(target) if not has_lengths(target) else (0, [])
        sampler = self._room(target).rest(wanted)
        handovers = await self._visit(target, sampler)
        await self._forget_rows(target)
        if not handovers:
            return None
        profile = replace(known.profile, handover_ns=max(0, round(median(handovers))))
        if own and sampler.table(1):
            profile = replace(profile, by_length=sampler.profile(known.profile, own).by_length)
        return replace(known, profile=profile)

    async def _visit(self, target: Target, sampler: Sampler) -> list[int] | None:
        """Time the sampler's cells until they are settled or the budget is spent.

        Returns what batches that ran alone cost beyond computing, in ns; None if the model is gone or fails. One that
        fails at another length than its rows have is not timed there.
        """
        device, info, room = self._device, target.executor.model.info, self._room(target)
        workers = able(device.spec, target.known.profile.max_batch)
        handovers: list[int] = []
        spent, laid_out = 0, -1
        while spent < self._budget_ns and (cell := sampler.next()) is not None:
            expected = room.expected(cell)
            if cell.length and not room.fits(expected := max(expected, sampler.expected(cell))):
                sampler.drop(cell)
                continue
            if cell.length != laid_out:
                await asyncio.to_thread(_lay_out, target, cell.length)
                device.arrive(target.executor, target.spare)
                laid_out = cell.length
            await device.quiet(max(_QUIET_NS, _PATIENCE * expected))
            if device.dead() is not None or target not in self._wanted:
                return None
            begin = self._clock()
            measured = await self._timed(target, self._batches(target, cell, workers))
            took = self._clock() - begin
            spent += took
            if fault := next((one.completion.message for one in measured if one.completion.ran is None), ""):
                if cell.length:
                    sampler.drop(cell)
                    continue
                log.warning("model %s: its profile is not measured: %s", info.name, fault)
                return None
            if cell.units == 1:
                handovers.append(measured[0].handover_ns)
            computed = round(median(one.completion.outcome.compute_ns for one in measured))
            sampler.add(cell, [computed], took, _by_stage(measured))
        return handovers

    async def _forget_rows(self, target: Target) -> None:
        """The rows that were measured with are written anew where others follow: until then they need no memory."""
        spare = target.spare
        if spare:
            await asyncio.to_thread(target.executor.pool.forget, range(spare[0], spare[-1] + 1))

    def _room(self, target: Target) -> Room:
        return Room(target.known.profile, longest(target.rows), self._budget_ns)

    def _lengths(self, target: Target) -> tuple[int, list[Cell]]:
        """As `Room.lengths`. A model that runs step by step needs no others: a step takes as long at any."""
        if target.executor.steps is None:
            return self._room(target).lengths(target.executor.model.info.client_inputs)
        return self._room(target).own, []

    def _batches(self, target: Target, cell: Cell, workers: Sequence[int]) -> list[tuple[int, Slots]]:
        """One batch for each of as many workers, of spare slots of its own."""
        units, size, _ = cell
        rows = len(target.spare) // len(self._device.spec.workers)
        return [(worker, target.spare[i * rows : i * rows + size]) for i, worker in enumerate(workers[:units])]


def _lay_out(target: Target, length: int) -> None:
    """Write rows of this length into the slots to measure with; 0: the rows as they are. Not for the event loop."""
    inputs, rows = target.executor.model.info.client_inputs, target.rows
    if length:
        rows = [stretched(inputs, row, short_lengths(inputs, length)) for row in rows]
    write_rows(target.executor.pool, target.spare, rows)


def _by_stage(measured: Sequence[Measured]) -> list[tuple[int, ...]]:
    """What the stages took, the median of units that ran at once; nothing for a model of one piece."""
    units = [one.completion.ran.by_stage_ns for one in measured if one.completion.ran is not None]
    times = tuple(round(median(times)) for times in zip(*units, strict=True))
    return [times] if times else []


def is_whole(target: Target, spec: DeviceSpec) -> bool:
    """All that can be measured on this device is known."""
    return has_times(target.known, spec) and target.known.profile.handover_ns is not None and has_lengths(target)


def has_lengths(target: Target) -> bool:
    """Batch times are known by length, where rows differ in it."""
    return bool(target.known.profile.by_length) or not target.executor.pool.lengths


def has_times(known: Known, spec: DeviceSpec) -> bool:
    """Batch times are measured, and for as many units at once as can be measured on this device."""
    most = min(len(able(spec, known.profile.max_batch)), spec.max_running)
    return known.origin not in (Origin.GUESS, Origin.WARM_UP, Origin.STALE) and most <= max(
        known.profile.concurrency_ns, default=1
    )


def able(spec: DeviceSpec, rows: int) -> list[int]:
    """Workers that take a batch of so many rows: as many units at once can be measured."""
    return [worker for worker, one in enumerate(spec.workers) if one.capacity >= rows]


def now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
