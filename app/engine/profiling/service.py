"""All that is measured and solved for the models of one engine: warm-up, the idle profiler, control tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from app.contract import ModelInfo, SampleRow
from app.engine.device import Device, Executor
from app.engine.profiling.cache import Key, Known, Origin, ProfileCache, key_of
from app.engine.profiling.first_rows import FirstRows
from app.engine.profiling.idle import IdleProfiler, Target, is_whole, now_utc
from app.engine.profiling.measured_device import MeasuredDevice
from app.engine.profiling.pair_cache import PairCache
from app.engine.profiling.review import Review
from app.engine.profiling.tables import TableSolver
from app.engine.profiling.warmup import run_on, warm_up
from app.models.checks.samples import longest
from app.models.checks.trial import Unfit, check_independence, nan_warning, unfit_warning
from app.scheduler.estimates.curve import ONCE
from app.scheduler.estimates.live import LiveTimes
from app.scheduler.estimates.pair_slowdowns import Paired, slowdowns
from app.scheduler.estimates.pairs import Pair
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.forming.classes import Pairs
from app.scheduler.optimal.tables import ControlTables

log = logging.getLogger("starling.engine")

# Batch times of a model that could not be tried. Low, so that no call is refused because of them; the scheduler's scale
# moves them to what batches take.
_GUESS_NS, _GUESS_ROW_NS = 1_000_000, 100_000


class Measured(Target, Protocol):
    """A served model, as far as it is measured and solved for."""

    info: ModelInfo
    program: int
    example: SampleRow | None
    on_rows: Callable[[Sequence[int]], None] | None  # hears of the slots of rows that have run without a fault
    beside: Mapping[str, float]  # by model: by what fraction its units are slowed beside that one's


class Learned(NamedTuple):
    """What is known of a model before it serves: batch times, where its profile is kept, rows to measure with.

    No rows: it raised on those that were made up. `pairs`: what it was measured beside.
    """

    known: Known
    key: Key | None
    rows: tuple[SampleRow, ...]
    pairs: tuple[Pair, ...] = ()


class Profiling:
    """Owned by the engine. `device` is what the engine must use, so that measuring can go on beside it.

    `budget_s` is the time that measuring a model may take once `begin` was called; 0 measures nothing. `cache`: where
    profiles and tables are kept, None: nowhere.
    """

    def __init__(
        self,
        device: Device,
        cache: ProfileCache | None = None,
        budget_s: float = 0.0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.device = MeasuredDevice(device, clock)
        self._cache = cache
        self._pairs = PairCache(cache.folder) if cache else None
        self._paired: dict[int, tuple[Measured, Paired]] = {}  # by program
        self._on_profile: Callable[[Any, Known], None]
        self._on_tables: Callable[[Any, ControlTables], None]
        self._on_beside: Callable[[Pairs], None]
        self._beside: Pairs = {}
        self._clock = clock
        self._reviews: dict[int, Review] = {}  # by program
        self._idle = IdleProfiler(self.device, cache, budget_s, clock, self._adopt)
        self._tables = TableSolver(device.spec, cache.folder if cache else None, self._solved)

    def bind(
        self,
        on_profile: Callable[[Any, Known], None],
        on_tables: Callable[[Any, ControlTables], None],
        on_beside: Callable[[Pairs], None],
    ) -> None:
        """`on_profile` hears of each model that has been measured, `on_tables` of tables that have been solved.

        `on_beside` of how much programs slow one another, when one comes or goes for which pairs were measured.
        """
        self._on_profile, self._on_tables, self._on_beside = on_profile, on_tables, on_beside

    @property
    def spare(self) -> int:
        """Batches of slots that each model needs beside those of its calls."""
        return self._idle.spare

    def learn(self, executor: Executor, max_batch: int) -> Learned:
        """Warm the model up, and check whether its rows are independent. Blocks.

        Raises ConfigError when it does not return what it declares, raises at some sizes only or on a sample, or when
        its rows depend on their batch. A model that raises on made-up rows is only warned about.
        """
        model = executor.model
        try:
            known, rows, warnings = self._try(executor, max_batch)
        except Unfit as exc:
            guess = tuple(_GUESS_NS + size * _GUESS_ROW_NS for size in range(1, max_batch + 1))
            known, rows = Known(ModelProfile(guess, model.info.name), Origin.GUESS, now_utc()), ()
            later = "until real rows have come" if self.spare else "with --profile-budget-s 0"
            if not model.profile:
                later = "with profile = false in model.toml"
            warnings = (unfit_warning(str(exc), later),)
        for warning in warnings:
            log.warning("model %s: %s", model.info.name, warning)
        if self._cache is None:
            return Learned(known, None, rows)
        key = key_of(model, self.device)
        pairs = self._pairs.load(key) if self._pairs else ()
        kept = self._cache.load(key, max_batch)
        same = kept is not None and len(kept.stages) == len(known.profile.stages)  # files may be edited
        if kept is not None and (same or known.origin is Origin.GUESS):
            known = Known(kept, Origin.CACHE, str(kept.extra.get("made", "")))
        return Learned(known, key, rows, pairs)

    def _try(self, executor: Executor, max_batch: int) -> tuple[Known, tuple[SampleRow, ...], tuple[str, ...]]:
        quick = warm_up(self.device, executor, max_batch)
        rows, warnings = quick.rows, quick.warnings
        dependent = check_independence(executor.model, run_on(self.device, executor))
        extra: dict[str, Any] = {"lengths": longest(rows)}
        stages = tuple(map(ModelProfile, quick.stages))
        errors = (ONCE,) * max_batch
        profile = ModelProfile(
            quick.profile.batch_ns, executor.model.info.name, extra=extra, stages=stages, errors=errors
        )
        found = [warning for warning in (dependent, nan_warning(executor.model)) if warning is not None]
        return Known(profile, Origin.WARM_UP, now_utc()), rows, (*warnings, *found)

    def opened(self, served: Measured, learned: Learned, spare_rows: int) -> None:
        """The model serves: solve its tables, and measure it when there is time. Before its first call."""
        served.key, served.rows = learned.key, learned.rows
        # Never a row of a caller's, as `rows` may become; behind a front they are not what clients send.
        front = served.executor.model.front
        served.example = None if not learned.rows else learned.rows[0] if front is None else front.example
        if learned.key is not None:
            info, key = served.info, learned.key
            paired = Paired(key.model, key.architecture, info.batching.max_batch, learned.pairs)
            self._paired[served.program] = served, paired
            self._pair()
        if served.known.origin is not Origin.GUESS:
            self._solve(served)
        if not spare_rows:
            return
        served.spare = served.executor.pool.set_apart(spare_rows)
        if learned.rows and is_whole(served, self.device.spec):
            return
        if learned.rows:
            self._idle.want(served)
        else:
            served.untried = True
            served.on_rows = partial(self._rows_ran, served, FirstRows())

    def _rows_ran(self, served: Measured, first: FirstRows, slots: Sequence[int]) -> None:
        if first.add(served.executor.pool, slots):
            served.on_rows = None
            served.rows = tuple(first.rows)
            self._idle.want(served)

    def begin(self) -> None:
        """Every model has been loaded: start measuring."""
        self._idle.begin()

    async def forget(self, served: Measured) -> None:
        """The model is going. Returns when no unit of a measurement runs."""
        if self._paired.pop(served.program, None) is not None:
            self._pair()
        served.on_rows = None  # its last calls are no reason to measure it
        self._reviews.pop(served.program, None)
        self._tables.forget(served)
        await self._idle.forget(served)

    async def close(self) -> None:
        await self._idle.close()
        await self._tables.close()

    def _pair(self) -> None:
        """A program has come or is going: make the table of those that are there."""
        beside = slowdowns({program: paired for program, (_, paired) in self._paired.items()})
        if beside == self._beside:
            return
        self._beside = beside
        for program, (served, _) in self._paired.items():
            served.beside = self._by_model(beside, program)
        self._on_beside(beside)

    def _by_model(self, beside: Pairs, program: int) -> dict[str, float]:
        """By what a program is slowed beside each model; of one that serves in several versions the worst of them."""
        found: dict[str, float] = {}
        for other, (_, paired) in self._paired.items():
            if (slower := beside.get((program, other))) is not None:
                found[paired.model] = max(slower, found.get(paired.model, 0.0))
        return found

    def _adopt(self, served: Measured, known: Known) -> None:
        self._on_profile(served, known)
        self._solve(served)

    def _solve(self, served: Measured) -> None:
        """Tables say when to begin a batch and how large; rows of a cell join at each step, by its time alone."""
        self._reviews[served.program] = Review(served.known.profile, self._clock())
        if served.executor.steps is None:
            self._tables.want(served)

    def review(self, served: Measured, live: Sequence[LiveTimes]) -> None:
        """What live batches say of each stage's times: solve tables again where the curve has moved by more than its
        error, and measure a profile from the cache again that they contradict. Called now and then; cheap. While tables
        of the model are being solved, nothing is asked for: solving takes seconds, and models take turns.
        """
        review = self._reviews.get(served.program)
        if review is None or not live or served.executor.steps is not None or self._tables.solves(served):
            return
        corrected = review.corrected(live, self._clock())
        if corrected is None:
            return
        self._tables.want(served, corrected)
        if served.known.origin is Origin.CACHE and served.rows and served.spare and review.contradicted(live):
            log.info("model %s: its kept profile is not what calls see, it is measured again", served.info.name)
            served.known = replace(served.known, origin=Origin.STALE)
            self._idle.want(served)

    def _solved(self, served: Measured, tables: ControlTables) -> None:
        self._on_tables(served, tables)
