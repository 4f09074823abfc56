"""All that is measured and solved for the models of one engine: warm-up, the idle profiler, control tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from app.contract import ModelInfo
from app.engine.devices.base import Device, Executor
from app.engine.profiling.cache import Key, ProfileCache, key_of
from app.engine.profiling.idle import IdleProfiler, Known, Origin, Target, is_whole, now_utc
from app.engine.profiling.measured_device import MeasuredDevice
from app.engine.profiling.tables import TableSolver
from app.engine.profiling.warmup import lengths_of, warm_up
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal.tables import ControlTables


class Measured(Target, Protocol):
    """A served model, as far as it is measured and solved for."""

    info: ModelInfo
    program: int


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
        self._on_profile: Callable[[Any, Known], None]
        self._on_tables: Callable[[Any, ControlTables], None]
        self._idle = IdleProfiler(self.device, cache, budget_s, clock, self._adopt)
        self._tables = TableSolver(device.spec.max_running, cache.folder if cache else None, self._solved)

    def bind(self, on_profile: Callable[[Any, Known], None], on_tables: Callable[[Any, ControlTables], None]) -> None:
        """`on_profile` hears of each model that has been measured, `on_tables` of tables that have been solved."""
        self._on_profile, self._on_tables = on_profile, on_tables

    @property
    def spare(self) -> int:
        """Batches of slots that each model needs beside those of its calls."""
        return self._idle.spare

    def learn(self, executor: Executor, max_batch: int) -> tuple[Known, Key | None]:
        """Warm the model up; its batch times as known then, and where its profile is kept. Blocks.

        Raises ConfigError when the model raises or does not return what it declares.
        """
        info = executor.model.info
        quick = ModelProfile(warm_up(self.device, executor, max_batch).batch_ns, info.name)
        known = Known(replace(quick, extra={"lengths": lengths_of(info)}), Origin.WARM_UP, now_utc())
        if self._cache is None:
            return known, None
        key = key_of(executor.model, self.device)
        kept = self._cache.load(key, max_batch)
        return (known if kept is None else Known(kept, Origin.CACHE, str(kept.extra.get("made", "")))), key

    def opened(self, served: Measured, key: Key | None, spare_rows: int) -> None:
        """The model serves: solve its tables, and measure it when there is time. Before its first call."""
        self._tables.want(served)
        if spare_rows and not is_whole(served.known, self.device.spec):
            served.key, served.spare = key, served.executor.pool.set_apart(spare_rows)
            self._idle.want(served)

    def begin(self) -> None:
        """Every model has been loaded: start measuring."""
        self._idle.begin()

    async def forget(self, served: Measured) -> None:
        """The model is going. Returns when no unit of a measurement runs."""
        await self._idle.forget(served)

    async def close(self) -> None:
        await self._idle.close()
        await self._tables.close()

    def _adopt(self, served: Measured, known: Known) -> None:
        self._on_profile(served, known)
        self._tables.want(served)

    def _solved(self, served: Measured, tables: ControlTables) -> None:
        self._on_tables(served, tables)
