"""Profiling of an engine's models: warm-up, measurements while idle, control tables, slowdowns of pairs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from traceback import clear_frames

from app.engine.device import Device
from app.engine.executor import Executor
from app.engine.profiling.cache import ProfileCache, key_of
from app.engine.profiling.idle import IdleMeasurement
from app.engine.profiling.measuring import Measuring
from app.engine.profiling.profiled_model import Origin, ProfiledModel, first_profile, guess
from app.engine.profiling.tables import Due, Solver
from app.engine.profiling.warmup import run_on, warm_up
from app.models.checks.trial import Unfit, check_independence, network_warning
from app.observe.metrics import ModelStats
from app.scheduler.estimates.pairs import Paired, PairSlowdowns, slowdowns
from app.scheduler.estimates.profile import Profile
from app.scheduler.policies import policy_class
from app.scheduler.scheduler import Scheduler

log = logging.getLogger("starling.engine")

_UNSURE = 0.05  # error of batch times above which the log says that they are not well known


class Profiling:
    """Owned by the engine. `measuring` runs batches between the engine's.

    `budget_s`: the time that measuring a model may take after `begin`; 0 measures nothing. `cache`: where profiles are
    kept, None: nowhere.
    """

    def __init__(
        self,
        device: Device,
        cache: ProfileCache | None = None,
        budget_s: float = 0.0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.device = device
        self.measuring = Measuring(device, clock)
        self._cache = cache
        self._clock = clock
        self._budget_ns = int(budget_s * 1e9)
        self._models: dict[int, ProfiledModel] = {}  # that serve, by program
        self._pairs: PairSlowdowns = {}
        self._to_measure = WorkQueue("measuring its profile has failed")
        self._to_solve = WorkQueue("its tables are not solved, batches are formed as by no_wait")
        self._to_solve.begun.set()
        self._solver = Solver()

    def bind(self, scheduler: Scheduler, step_soon: Callable[[], None]) -> None:
        """Measured profiles, solved tables and slowdowns of pairs are inputs of this scheduler, each followed by a call
        of `step_soon`.
        """
        self._scheduler, self._step_soon = scheduler, step_soon

    @property
    def spare(self) -> int:
        """How many batches of slots each model needs for measuring, beside those of its calls."""
        return len(self.device.spec.workers) if self._budget_ns else 0

    # before a model serves

    def learn(self, executor: Executor) -> ProfiledModel:
        """Warm the model up, check whether its rows are independent, and look for a cached profile. Blocks.

        Raises ConfigError when it does not return what it declares, raises at some sizes only or on a sample, or when
        its rows depend on their batch. One that raises on every made-up row has `unfit`.
        """
        try:
            model = self._warm_up(executor)
        except Unfit as exc:
            model = self._guess(executor, exc)
        if self._cache is None:
            return model
        model.key = key_of(executor.model, self.device)
        model.pairs = self._cache.load_pairs(model.key)
        kept = self._cache.load(model.key, model.profile.max_batch)
        if kept is not None and len(kept.stages) == len(model.profile.stages):  # files may be edited
            model.profile, model.origin = kept, Origin.CACHE
        return model

    def _warm_up(self, executor: Executor) -> ProfiledModel:
        placed = executor.model
        profile, rows = warm_up(self.device, executor)
        at_once = self.device.spec.max_running > 1
        dependence = check_independence(placed, run_on(self.device, executor), at_once=at_once)
        for warning in (dependence, network_warning(placed)):
            if warning is not None:
                log.warning("model %s: %s", placed.info.name, warning)
        # Not from `rows`: these may become rows of clients, and with a front clients send others.
        example = rows[0] if placed.front is None else placed.front.example
        return ProfiledModel(executor, profile, Origin.WARM_UP, rows, example=example)

    def _guess(self, executor: Executor, unfit: Unfit) -> ProfiledModel:
        info = executor.model.info
        if unfit.__cause__ is not None:
            clear_frames(unfit.__cause__.__traceback__)  # keeps the lines for the log, frees the tensors
        profile = first_profile(executor, guess(info.batching.max_batch))
        return ProfiledModel(executor, profile, Origin.GUESS, unfit=unfit)

    # while it serves

    def opened(self, model: ProfiledModel, program: int, stats: ModelStats, spare_rows: int) -> None:
        """The model serves: solve its tables, and measure it when the server is idle. Called before its first call."""
        model.program, model.stats, model.curves = program, stats, self._scheduler.states[program].estimates.latency
        model.due = Due(self.device.spec.max_running)
        self._models[program] = model
        self._update_pairs()
        self._want_tables(model)
        if not spare_rows:
            return
        model.spare = model.executor.pool.set_apart(spare_rows)
        if model.rows and not model.has_times(self.device.spec):
            self._to_measure.want(model, partial(self._measure, model))

    def begin(self) -> None:
        """All models have been loaded: start measuring. A load would disturb measurements."""
        self._to_measure.begun.set()

    async def measure_alone(self, model: ProfiledModel) -> None:
        """Measure the model, also one with a cached profile, in a process that gets no calls. Returns at the end.

        The model's origin says whether that has succeeded; a failure of the model is logged.
        """
        self.measuring.alone = True
        model.origin = Origin.WARM_UP
        await self._measure(model)

    async def forget(self, model: ProfiledModel) -> None:
        """The model is being unloaded. Returns when no measured unit runs."""
        self._models.pop(model.program, None)
        self._update_pairs()
        await self._to_solve.forget(model)
        await self._to_measure.forget(model)
        await self.measuring.unmeasured()
        measured = model.origin in (Origin.CACHE, Origin.MEASURED)
        learned = any(curve.corrections for curve in model.curves)
        if measured and learned and self._cache is not None and model.key is not None:
            await asyncio.to_thread(self._cache.store, model.key, model.learned(beside=False))
        model.curves = ()

    async def close(self) -> None:
        await self._to_measure.forget()
        await self._to_solve.forget()
        await self._solver.close()

    def review(self) -> None:
        """Solve a model's tables again if live batches have corrected its curves, and some time has passed.

        Called at each tick; cheap. Does nothing while tables of the model are being solved.
        """
        for model in self._models.values():
            try:
                if self._solves(model) and model not in self._to_solve and model.due.again(model.curves, self._clock()):
                    self._want_tables(model, model.learned())
            except Exception:  # the tables stay unchanged, and the monitor continues
                log.exception("model %s: its live batch times could not be reviewed", model.name)

    async def _measure(self, model: ProfiledModel) -> None:
        """Measure the model and give the scheduler its profile."""
        before, known = model.stats.profiled.as_dict(), model.profile
        log.info(
            "model %s: measuring it while there are no calls, for at most %.3g s of batches (--profile-budget-s)",
            model.name, self._budget_ns / 1e9,
        )  # fmt: skip
        try:
            await IdleMeasurement(model, self.device, self.measuring, self._budget_ns).measure()
        except RuntimeError as exc:
            log.warning("model %s: its profile is not measured: %s", model.name, exc)
        spent = model.stats.profiled.as_dict()
        log.info(
            "model %s: measuring has ended: %d batches, which took %.3g s",
            model.name, spent["count"] - before["count"], (spent["ns"] - before["ns"]) / 1e9,
        )  # fmt: skip
        if model.profile is known:
            return
        self._measured(model)
        if self._cache is not None and model.key is not None:
            await asyncio.to_thread(self._cache.store, model.key, model.profile)

    def _measured(self, model: ProfiledModel) -> None:
        """The model has a profile that was measured."""
        for stage, profile in enumerate(model.stage_profiles):
            self._scheduler.reprofile(model.program, profile, self._clock(), stage)
        self._step_soon()
        times, error = model.profile.batch_ns, median(model.profile.errors or (0.0,))
        log.info(
            "model %s: measured: a row %.3g ms, %d rows %.3g ms, known to %.1f %%%s",
            model.name, times[0] / 1e6, len(times), times[-1] / 1e6, 100 * error,
            "; batches of calls will tell more" if error > _UNSURE else "",
        )  # fmt: skip
        self._want_tables(model)

    def _want_tables(self, model: ProfiledModel, corrected: Profile | None = None) -> None:
        """Solve the tables that say when to begin a batch and how large, with times as corrected by live batches.

        Until then, and while nothing is known well, all rows that wait are served.
        """
        errors = (corrected or model.profile).errors
        if self._solves(model) and model.due.begin(model.curves, errors, self._clock()):
            self._to_solve.want(model, partial(self._solve, model, corrected))

    def _solves(self, model: ProfiledModel) -> bool:
        """Whether the model's policy uses tables. A model that runs by its cell needs none."""
        return model.executor.steps is None and policy_class(model.executor.model.info.batching.policy).uses_tables

    async def _solve(self, model: ProfiledModel, corrected: Profile | None) -> None:
        profile, spec = model.profile, self.device.spec
        tables = await self._solver.solve(corrected or profile, workers=spec.max_running, lead_ns=spec.lead_ns)
        if model.profile is profile:  # else it was measured meanwhile, and its tables are solved again
            self._scheduler.control(model.program, tables, self._clock())
            self._step_soon()

    # pairs of models

    def _update_pairs(self) -> None:
        """A program was loaded or unloaded: look up how much the programs that serve slow one another."""
        paired = {
            program: Paired(key.model, key.architecture, model.executor.model.info.batching.max_batch, model.pairs)
            for program, model in self._models.items()
            if (key := model.key) is not None
        }
        pairs = slowdowns(paired)
        if pairs == self._pairs:
            return
        self._pairs = pairs
        for program in paired:
            slowed: dict[str, float] = {}  # beside a model that serves in several versions: the worst of them
            for other, known in paired.items():
                if (slower := pairs.get((program, other))) is not None:
                    slowed[known.model] = max(slower, slowed.get(known.model, 0.0))
            self._models[program].slowdowns = slowed
        self._scheduler.pair(pairs, self._clock())
        self._step_soon()


class WorkQueue:
    """Runs coroutines one at a time, in the order of `want`, each in a task. Errors are logged with the text `failed`.

    Used on the event loop.
    """

    def __init__(self, failed: str) -> None:
        self.begun = asyncio.Event()  # no work starts before it is set
        self.tasks: dict[asyncio.Task[None], ProfiledModel] = {}
        self._failed = failed
        self._turn = asyncio.Lock()

    def __contains__(self, model: ProfiledModel) -> bool:
        """Whether the model is being worked on, or waits for its turn."""
        return any(one is model for one in self.tasks.values())

    def want(self, model: ProfiledModel, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(model, work))
        self.tasks[task] = model
        task.add_done_callback(self.tasks.pop)

    async def forget(self, model: ProfiledModel | None = None) -> None:
        """Cancel all work on the model; None: on all models. Returns when no task refers to it any more."""
        tasks = [task for task, one in self.tasks.items() if model is None or one is model]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, model: ProfiledModel, work: Callable[[], Awaitable[None]]) -> None:
        await self.begun.wait()
        async with self._turn:
            try:
                await work()
            except Exception:
                log.exception("model %s: %s", model.name, self._failed)
