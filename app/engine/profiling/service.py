"""All that is measured and solved for the models of one engine: warm-up, the idle profiler, control tables, pairs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from traceback import clear_frames

from app.engine.device import Device, Executor
from app.engine.profiling.cache import ProfileCache, key_of
from app.engine.profiling.first_rows import FirstRows
from app.engine.profiling.idle import IdleProfiler
from app.engine.profiling.measuring import Measuring
from app.engine.profiling.profiled_model import Origin, ProfiledModel, now_utc
from app.engine.profiling.review import Review
from app.engine.profiling.served_loads import ServedLoads, ThreadTimes
from app.engine.profiling.tables import TableSolver
from app.engine.profiling.warmup import run_on, warm_up
from app.models.checks.samples import longest
from app.models.checks.trial import Unfit, check_independence, nan_warning
from app.observe.metrics import ModelStats
from app.scheduler.estimates.curve import ONCE
from app.scheduler.estimates.latency import LiveTimes
from app.scheduler.estimates.pairs import Paired, PairSlowdowns, slowdowns
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal.tables import ControlTables

log = logging.getLogger("starling.engine")

# Batch times of a model that could not be tried. Low, so that no call is refused because of them; the scheduler's scale
# moves them to what batches take.
_GUESS_NS, _GUESS_ROW_NS = 1_000_000, 100_000
_GUESS_ERROR = 1.0  # of each size: the first batches of calls say what it takes


class Profiling:
    """Owned by the engine. `measuring` runs batches beside the engine's.

    `budget_s` is the time that measuring a model may take once `begin` was called; 0 measures nothing. `cache`: where
    profiles and tables are kept, None: nowhere. `threads`: CPU times of the threads that serve HTTP.
    """

    def __init__(
        self,
        device: Device,
        cache: ProfileCache | None = None,
        budget_s: float = 0.0,
        clock: Callable[[], int] = time.monotonic_ns,
        threads: ThreadTimes = lambda: None,
    ) -> None:
        self.device = device
        self.measuring = Measuring(device, clock)
        self._cache = cache
        self._clock = clock
        self._on_profile: Callable[[ProfiledModel], None]
        self._on_tables: Callable[[ProfiledModel, ControlTables], None]
        self._on_pairs: Callable[[PairSlowdowns], None]
        self._models: dict[int, ProfiledModel] = {}  # that serve, by program
        self._reviews: dict[int, Review] = {}  # by program
        self._pairs: PairSlowdowns = {}
        self._idle = IdleProfiler(device, self.measuring, cache, budget_s, clock, self._measured)
        self._served_loads = ServedLoads(threads) if len(device.spec.workers) == 1 else None
        self._tables = TableSolver(device.spec, cache.folder if cache else None, self._solved)

    def bind(
        self,
        on_profile: Callable[[ProfiledModel], None],
        on_tables: Callable[[ProfiledModel, ControlTables], None],
        on_pairs: Callable[[PairSlowdowns], None],
    ) -> None:
        """`on_profile` is called when a model has been measured, `on_tables` when its tables have been solved.

        `on_pairs`: with how much programs slow one another, when one comes or goes for which pairs were measured.
        """
        self._on_profile, self._on_tables, self._on_pairs = on_profile, on_tables, on_pairs

    @property
    def spare(self) -> int:
        """Batches of slots that each model needs beside those of its calls."""
        return self._idle.spare

    # before a model serves

    def learn(self, executor: Executor) -> ProfiledModel:
        """Warm the model up, check whether its rows are independent, and look for a kept profile. Blocks.

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
        same = kept is not None and len(kept.stages) == len(model.profile.stages)  # files may be edited
        if kept is not None and (same or model.origin is Origin.GUESS):
            model.profile, model.origin = kept, Origin.CACHE
        return model

    def _warm_up(self, executor: Executor) -> ProfiledModel:
        placed = executor.model
        quick = warm_up(self.device, executor, placed.info.batching.max_batch)
        dependent = check_independence(placed, run_on(self.device, executor))
        for warning in (*quick.warnings, dependent, nan_warning(placed)):
            if warning is not None:
                log.warning("model %s: %s", placed.info.name, warning)
        profile = ModelProfile(
            quick.profile.batch_ns,
            placed.info.name,
            extra={"lengths": longest(quick.rows), "made": now_utc()},
            stages=tuple(map(ModelProfile, quick.stages)),
            errors=(ONCE,) * len(quick.profile.batch_ns),
        )
        model = ProfiledModel(executor, profile, Origin.WARM_UP, quick.rows)
        # Never a row of a caller's, as `rows` may become; behind a front they are not what clients send.
        model.example = quick.rows[0] if placed.front is None else placed.front.example
        return model

    def _guess(self, executor: Executor, unfit: Unfit) -> ProfiledModel:
        placed = executor.model
        if unfit.__cause__ is not None:
            clear_frames(unfit.__cause__.__traceback__)  # its lines are kept for the log, but no tensors
        sizes = range(1, placed.info.batching.max_batch + 1)
        times = tuple(_GUESS_NS + size * _GUESS_ROW_NS for size in sizes)
        errors = (_GUESS_ERROR,) * len(times)
        profile = ModelProfile(times, placed.info.name, extra={"made": now_utc()}, errors=errors)
        return ProfiledModel(executor, profile, Origin.GUESS, unfit=unfit)

    # while it serves

    def opened(self, model: ProfiledModel, program: int, stats: ModelStats, spare_rows: int) -> None:
        """The model serves: solve its tables, and measure it when there is time. Before its first call."""
        model.program, model.stats = program, stats
        self._models[program] = model
        self._update_pairs()
        self._solve(model)
        if not spare_rows:
            return
        model.spare = model.executor.pool.set_apart(spare_rows)
        if not model.rows:
            model.untried = True
            model.on_rows = partial(self._rows_ran, model, FirstRows())
        elif not model.has_times(self.device.spec):
            self._idle.want(model)

    def _rows_ran(self, model: ProfiledModel, first: FirstRows, slots: Sequence[int]) -> None:
        if first.add(model.executor.pool, slots):
            model.on_rows = None
            model.rows = tuple(first.rows)
            self._idle.want(model)

    def begin(self) -> None:
        """Every model has been loaded: start measuring."""
        self._idle.begin()

    async def forget(self, model: ProfiledModel) -> None:
        """The model is going. Returns when no unit of a measurement runs."""
        self._models.pop(model.program, None)
        self._update_pairs()
        model.on_rows = None  # its last calls are no reason to measure it
        self._reviews.pop(model.program, None)
        self._tables.forget(model)
        await self._idle.forget(model)
        if model.loads and model.key is not None and self._cache is not None:
            loads = [load for _, load in sorted(model.loads.items())]
            await asyncio.to_thread(self._cache.store_loads, model.key, loads, now_utc())

    async def close(self) -> None:
        await self._idle.close()
        await self._tables.close()

    def tick(self, now: int) -> None:
        """Count what requests have cost. Called now and then; cheap."""
        if self._served_loads is not None:
            self._served_loads.tick(self._models.values(), now)

    def review(self, model: ProfiledModel, live: Sequence[LiveTimes]) -> None:
        """Compare the profile with the times of live batches at each stage. Called now and then; cheap.

        Tables are solved again if the curve has moved by more than its error; a profile from the cache that live
        batches contradict is measured again. While tables of the model are being solved, nothing is asked for: solving
        takes seconds, and models take turns.
        """
        model.spread = max((one.spread for one in live), default=0.0)
        review = self._reviews.get(model.program)
        if review is None or not live or model.executor.steps is not None or self._tables.solves(model):
            return
        corrected = review.corrected(live, self._clock())
        if corrected is None:
            return
        self._tables.want(model, corrected)
        if model.origin is Origin.CACHE and model.rows and model.spare and review.contradicted(live):
            log.info("model %s: its kept profile is not what calls see, it is measured again", model.name)
            model.origin = Origin.STALE
            self._idle.want(model)

    def _measured(self, model: ProfiledModel) -> None:
        self._on_profile(model)
        self._solve(model)

    def _solve(self, model: ProfiledModel) -> None:
        """Tables say when to begin a batch and how large; rows of a cell join at each step, by its time alone.

        A model of unknown batch times has none until live batches have told them: see `review`.
        """
        self._reviews[model.program] = Review(model.profile, self._clock(), self.device.spec.max_running)
        if model.executor.steps is None and model.origin is not Origin.GUESS:
            self._tables.want(model)

    def _solved(self, model: ProfiledModel, tables: ControlTables) -> None:
        self._on_tables(model, tables)

    # pairs of models

    def _update_pairs(self) -> None:
        """A program has come or is going: who is slowed by whom, of those that serve and have a key for pairs."""
        paired = {
            program: Paired(
                model.key.model, model.key.architecture, model.executor.model.info.batching.max_batch, model.pairs
            )
            for program, model in self._models.items()
            if model.key is not None
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
        self._on_pairs(pairs)
