"""Measures models while the server is idle: the profile that a freshly loaded model has only guessed at in warm-up.

Rules
    1. A batch is measured by the worker that serves, between calls: a model never runs where it would not otherwise.
    2. A batch is measured only when no unit has been there for several times as long as it takes, so that few calls
       meet one. A call that does waits for the batch at hand, at most; one that would take too long is never measured.
    3. What a batch costs beyond computing is measured with it: measured batches are handed over as live ones are.
    4. Rows to measure with have slots of their own, which no call is ever given.
    5. A model in stages runs whole: each visit gives the time of each stage, and nothing is kept between them.
    6. The scheduler gets the profile once, at the end, as an input (`reprofile`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from app.contract import SampleRow
from app.engine.device import TRIED_TOKENS, Device, Ran
from app.engine.pool import Slots
from app.engine.profiling.cache import ProfileCache
from app.engine.profiling.first_rows import check_later, time_rows
from app.engine.profiling.measuring import Measured, Measuring, median_of
from app.engine.profiling.profiled_model import Origin, ProfiledModel, now_utc, workers_for
from app.engine.profiling.sampler import LARGEST_SHARE, Cell, IdleBudget, Sampler, levels
from app.engine.profiling.warmup import lay_out, write_rows
from app.models.checks.samples import longest
from app.scheduler.estimates.curve import ONCE
from app.scheduler.estimates.profile import ModelProfile

log = logging.getLogger("starling.engine")

_QUIET_NS = 50_000_000  # without a call: shorter gaps are those between the calls of one busy client
_PATIENCE = 4  # times a batch's own time without a call, before it is measured: another is not so likely to come then


class _GoneError(RuntimeError):
    """The model has been unloaded, or the device is dead."""


class IdleProfiler:
    """Used on the event loop. `adopt` is called with each model that has been measured."""

    def __init__(
        self,
        device: Device,
        measuring: Measuring,
        cache: ProfileCache | None,
        budget_s: float,
        clock: Callable[[], int],
        adopt: Callable[[ProfiledModel], None],
    ) -> None:
        self._device = device
        self._measuring = measuring
        self._cache = cache
        self._budget_ns = int(budget_s * 1e9)
        self._clock = clock
        self._adopt = adopt
        self._wanted: deque[ProfiledModel] = deque()
        self._begun = False
        self._task: asyncio.Task[None] | None = None

    @property
    def spare(self) -> int:
        """Batches of spare slots that a model to be measured needs."""
        return len(self._device.spec.workers) if self._budget_ns else 0

    def want(self, model: ProfiledModel) -> None:
        """Measure this model when there is time. Does nothing without a budget."""
        if self._budget_ns:
            self._wanted.append(model)
            self._work_if_wanted()

    def begin(self) -> None:
        """Start measuring: models that are still loading would disturb what is measured."""
        self._begun = True
        self._work_if_wanted()

    async def forget(self, model: ProfiledModel) -> None:
        """The model is going: measure it no further, and return when no unit of it runs."""
        if model in self._wanted:
            self._wanted.remove(model)
        await self._measuring.unmeasured()

    async def close(self) -> None:
        """Stop measuring. A unit that runs is not waited for."""
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _work_if_wanted(self) -> None:
        if self._begun and self._wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="profile")
            self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            log.error("measuring profiles has failed", exc_info=task.exception())

    async def _work(self) -> None:
        while self._wanted:
            model = self._wanted[0]  # it stays there, so that `forget` finds it
            before = replace(model.stats.profiled)
            log.info(
                "model %s: measuring it while there are no calls, for at most %.3g s of batches (--profile-budget-s)",
                model.name, self._budget_ns / 1e9,
            )  # fmt: skip
            tried = model.untried and await self._try(model)
            measured = (not tried or not model.has_times(self._device.spec)) and await self._measure(model)
            spent = model.stats.profiled
            log.info(
                "model %s: measuring has ended: %d batches, which took %.3g s",
                model.name, spent.count - before.count, (spent.ns - before.ns) / 1e9,
            )  # fmt: skip
            if not self._wanted or self._wanted[0] is not model:
                continue
            self._wanted.popleft()
            if tried or measured:
                self._adopt(model)
                if self._cache is not None and model.key is not None:
                    await asyncio.to_thread(self._cache.store, model.key, model.profile)

    # Each of the following returns whether the model's profile is better for it.

    async def _try(self, model: ProfiledModel) -> bool:
        """Time a few sizes of a model that could not be warmed up, and check whether its rows are independent."""
        placed = model.executor.model
        model.untried = False
        run = partial(self._run, model)
        try:
            if not model.has_times(self._device.spec):
                most_ns = self._budget_ns // LARGEST_SHARE
                times = await time_rows(model.rows[0], model.profile.max_batch, most_ns, run)
                extra = {"lengths": longest(model.rows), "made": now_utc()}
                model.profile = ModelProfile(times, model.name, extra=extra, errors=(ONCE,) * len(times))
                model.origin = Origin.WARM_UP
            if placed.row_check != "off":
                await check_later(placed, model.rows, run)
        except _GoneError:
            return False
        except RuntimeError as exc:
            log.warning("model %s: its first rows cannot be run again: %s", model.name, exc)
            return False
        return True

    async def _run(self, model: ProfiledModel, rows: Sequence[SampleRow], size: int) -> Ran:
        """Run rows as a batch of `size` when no call is there. Raises RuntimeError when the model fails."""
        device, executor, slots = self._device, model.executor, model.spare[:size]
        batch = [*rows, *[rows[-1]] * (size - len(rows))]
        await asyncio.to_thread(write_rows, executor.pool, slots, batch)
        device.arrive(executor, slots)
        await self._measuring.quiet(_QUIET_NS)
        if device.dead() is not None or model not in self._wanted:
            raise _GoneError
        ((completion, _),) = await self._timed(model, [(workers_for(device.spec, size)[0], slots)])
        if completion.ran is None:
            raise RuntimeError(completion.message)
        return completion.ran

    async def _timed(self, model: ProfiledModel, batches: Sequence[tuple[int, Slots]]) -> list[Measured]:
        """Run batches at once, and count them as what they are."""
        measured = await self._measuring.measure(model.executor, batches)
        for one in measured:
            model.stats.profiled.add(one.completion.outcome.compute_ns)
        return measured

    async def _measure(self, model: ProfiledModel) -> bool:
        """Measure the whole profile."""
        guess = model.profile
        most = min(len(workers_for(self._device.spec, guess.max_batch)), self._device.spec.max_running)
        own, lengths = self._lengths(model)
        sampler = self._budget(model).sampler(levels(most), lengths)
        handovers = await self._visit(model, sampler)
        if not handovers:
            await self._release_rows(model)
            return False
        keys: dict[str, Any] = {
            "model": guess.model, "lengths": longest(model.rows), "made": now_utc(),
            "handover_ms": max(0.0, median(handovers) / 1e6),
        }  # fmt: skip
        written = TRIED_TOKENS // 2 if model.executor.model.writes else 0
        found = sampler.profile(guess, own, cell=model.executor.steps is not None, written=written, **keys)
        await self._release_rows(model)
        model.profile = found
        model.origin = Origin.MEASURED
        return True

    async def _visit(self, model: ProfiledModel, sampler: Sampler) -> list[int]:
        """Time the sampler's cells until they are settled or the budget is spent.

        Returns what batches that ran alone cost beyond computing, in ns; nothing if the model is gone or fails. One
        that fails at another length than its rows have is not timed there.
        """
        device, budget = self._device, self._budget(model)
        workers = workers_for(device.spec, model.profile.max_batch)
        handovers: list[int] = []
        spent, laid_out = 0, -1
        while spent < self._budget_ns and (cell := sampler.next()) is not None:
            expected = budget.expected(cell)
            if cell.length and not budget.fits(expected := max(expected, sampler.expected(cell))):
                sampler.drop(cell)
                continue
            if cell.length != laid_out:
                await asyncio.to_thread(lay_out, model.executor, model.spare, model.rows, cell.length)
                device.arrive(model.executor, model.spare)
                laid_out = cell.length
            await self._measuring.quiet(max(_QUIET_NS, _PATIENCE * expected))
            if device.dead() is not None or model not in self._wanted:
                return []
            begin = self._clock()
            measured = await self._timed(model, self._batches(model, cell, workers))
            took = self._clock() - begin
            spent += took
            if fault := next((one.completion.message for one in measured if one.completion.ran is None), ""):
                if cell.length:
                    sampler.drop(cell)
                    continue
                log.warning("model %s: its profile is not measured: %s", model.name, fault)
                return []
            if cell.units == 1:
                handovers.append(measured[0].handover_ns)
            timed = median_of([one.timed for one in measured])
            sampler.add(cell, [timed.ns], took, [timed.by_stage] if timed.by_stage else ())
        return handovers

    async def _release_rows(self, model: ProfiledModel) -> None:
        """The rows that were measured with are written anew where others follow: until then they need no memory."""
        spare = model.spare
        if spare:
            await asyncio.to_thread(model.executor.pool.forget, range(spare[0], spare[-1] + 1))

    def _budget(self, model: ProfiledModel) -> IdleBudget:
        return IdleBudget(model.profile, longest(model.rows), self._budget_ns)

    def _lengths(self, model: ProfiledModel) -> tuple[int, list[Cell]]:
        """As `IdleBudget.lengths`. The steps of a cell take as long at any, but for those of a model that writes."""
        if model.executor.steps is None or model.executor.model.writes:
            return self._budget(model).lengths(model.executor.model.info.client_inputs)
        return self._budget(model).own, []

    def _batches(self, model: ProfiledModel, cell: Cell, workers: Sequence[int]) -> list[tuple[int, Slots]]:
        """One batch for each of as many workers, of spare slots of its own."""
        units, size, _ = cell
        rows = len(model.spare) // len(self._device.spec.workers)
        return [(worker, model.spare[i * rows : i * rows + size]) for i, worker in enumerate(workers[:units])]
