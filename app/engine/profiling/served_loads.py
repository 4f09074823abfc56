"""Measures what requests cost this process beside their batches, while models serve, for `starling size`.

Counters and the CPU times of threads are read every few seconds, so that a request costs nothing more. A window counts
if only one model got requests, of one row each, and their rate was about the same in the windows before and after: else
the cost cannot be attributed. There must be one worker, because batches that run at once slow one another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from app.engine.profiling.profiled_model import Origin, ProfiledModel
from app.scheduler.estimates.front_load import FrontLoad

_WINDOW_NS = 5_000_000_000
_FEWEST = 50  # requests of a window: fewer cost less than the loop's other work
_OTHERS = 0.02  # the share of requests that may fail, or have several rows
_ALIKE = 1.5  # the largest of three rates over the least, at most
_EARLIER = 0.8  # the weight of earlier windows of a rate for each new one: about the last five count
_STEPS = 2  # rates that are kept apart, for each doubling

#: Nanoseconds of CPU that the event loop's thread and the helper threads have used; None where that is not known.
ThreadTimes = Callable[[], tuple[int, int] | None]


class _Counts(NamedTuple):
    """Of one model."""

    answered: int
    failed: int
    rows: int
    profiled: int
    batches: dict[int, tuple[int, int]]  # by size: how many, and their nanoseconds


class _Moment(NamedTuple):
    now: int
    threads: tuple[int, int]
    models: dict[int, _Counts]  # by program


class ServedLoads:
    """Adds to the `loads` of models, by rate. Used on the event loop."""

    def __init__(self, threads: ThreadTimes) -> None:
        self._threads = threads
        self._before: _Moment | None = None
        self._windows: deque[tuple[ProfiledModel, FrontLoad]] = deque(maxlen=3)

    def tick(self, models: Collection[ProfiledModel], now: int) -> None:
        """Read the counters and keep what requests have cost. Called every few seconds."""
        before = self._before
        if before is not None and now - before.now < _WINDOW_NS:
            return
        threads = self._threads()
        if threads is None:
            return
        self._before = moment = _Moment(now, threads, {model.program: _counts(model) for model in models})
        window = None if before is None else _window(models, before, moment)
        if window is None:
            self._windows.clear()
            return
        self._windows.append(window)
        rates = [load.rate for model, load in self._windows if model is window[0]]
        if len(rates) == self._windows.maxlen and max(rates) <= _ALIKE * min(rates):
            _learn(*self._windows[1])


def _counts(model: ProfiledModel) -> _Counts:
    stats = model.stats
    batches = {
        size: (parts.count, parts.input_ns + parts.infer_ns + parts.output_ns)
        for size, parts in stats.whole.by_size().items()
    }
    return _Counts(stats.parts.count, stats.failure.count, stats.rows_answered, stats.profiled.count, batches)


def _window(models: Collection[ProfiledModel], before: _Moment, now: _Moment) -> tuple[ProfiledModel, FrontLoad] | None:
    """The only model that had requests, and what these cost; None if the window does not count."""
    if before.models.keys() != now.models.keys():
        return None
    used = [model for model in models if before.models[model.program] != now.models[model.program]]
    if len(used) != 1 or used[0].origin not in (Origin.CACHE, Origin.MEASURED) or used[0].executor.steps is not None:
        return None
    then, counts = before.models[used[0].program], now.models[used[0].program]
    requests = counts.answered - then.answered
    others = max(counts.failed - then.failed, counts.rows - then.rows - requests)
    if requests < _FEWEST or others > _OTHERS * requests or counts.profiled != then.profiled:
        return None
    batches = {}
    for size, (count, ns) in counts.batches.items():
        count_then, ns_then = then.batches.get(size, (0, 0))
        if count > count_then:
            batches[size] = (count - count_then, (ns - ns_then) / 1e9)
    if not batches:
        return None
    loop_s, helpers_s = ((end - begin) / 1e9 for begin, end in zip(before.threads, now.threads, strict=True))
    load = FrontLoad((now.now - before.now) / 1e9, requests, loop_s, helpers_s, batches, used[0].spread)
    return used[0], load


def _learn(model: ProfiledModel, load: FrontLoad) -> None:
    rate = round(_STEPS * math.log2(load.rate))
    earlier = model.loads.get(rate)
    model.loads[rate] = load if earlier is None else load.after(earlier, _EARLIER)
