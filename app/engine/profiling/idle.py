"""Measures a model's profile while the server is idle.

The workers that serve measure, between calls: after an idle time of several times that of the batch, so that a call
that comes waits for one batch at most. Measured batches are pushed as live ones are, on slots of their own. The
scheduler gets the profile once, at the end (`reprofile`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from app.engine.device import Device
from app.engine.executor import TRIED_TOKENS
from app.engine.pool import Slots
from app.engine.profiling.measuring import MeasuredBatch, Measuring
from app.engine.profiling.profiled_model import Origin, ProfiledModel, now_utc, workers_for
from app.engine.profiling.warmup import lay_out
from app.models.checks.samples import longest, most_length
from app.scheduler.estimates.evidence import IDLE, Evidence, Point, UnitTime
from app.scheduler.estimates.profile import Profile

_QUIET_NS = 50_000_000  # without a call: one busy client leaves shorter gaps between its calls
#: Times a batch's own time without a call, before it is measured: so a call is unlikely to coincide, and measuring
#: takes at most a twenty-first of a worker's time.
_PATIENCE = 20
_PASSES = 2  # over all lengths, for which the budget must suffice: more lengths are better than a finer median
_LARGEST_SHARE = 10  # a batch that takes more than this part of the budget keeps its time from warm-up
_LEAST = 3  # batches of a point, at least; live batches correct the times later
_MOST = 20
_TOLERANCE = 0.02


class IdleMeasurement:
    """The measurement of one model that serves and has rows. All batches together may take `budget_ns`.

    Used on the event loop.
    """

    def __init__(self, model: ProfiledModel, device: Device, measuring: Measuring, budget_ns: int) -> None:
        self._model = model
        self._device = device
        self._measuring = measuring
        self._budget_ns = budget_ns
        self._lengths = longest(model.rows)
        #: The rows' own length; 0 if lengths are fixed.
        self._own = max((max(1, length) for length in self._lengths.values()), default=0)

    async def measure(self) -> None:
        """Time the sampler's points until they are settled or the budget is spent; then set the model's profile.

        A length at which a batch fails is skipped, unless it is the rows' own. Raises RuntimeError when the model
        fails otherwise, or the device is dead.
        """
        model = self._model
        lengths = self._lengths_to_time()
        sizes = self._sizes_to_time(self._budget_ns // (2 if lengths else 1))
        sampler = Sampler(model.profile, sizes)
        handovers: list[int] = []
        # Sizes first, because batches are formed by their times; the rest of the budget is for all unsettled points.
        spent = await self._time(sampler, handovers, self._budget_ns // 2)
        sampler.want(lengths)
        await self._time(sampler, handovers, self._budget_ns - spent)
        if not handovers:
            return
        measured = sampler.evidence.profile(
            self._own,
            cell=model.executor.steps is not None,
            written=TRIED_TOKENS // 2 if model.executor.model.writes else 0,
            lengths=self._lengths, made=now_utc(), push_depth=self._device.spec.push_depth,
        )  # fmt: skip
        handover_ns = max(0, round(median(handovers)))
        model.profile = replace(measured, model=model.profile.model, handover_ns=handover_ns)
        model.origin = Origin.MEASURED

    async def _time(self, sampler: Sampler, handovers: list[int], budget_ns: int) -> int:
        """Time points until they are settled or batches have taken `budget_ns`. Returns what they took."""
        model = self._model
        spent, laid_out = 0, -1
        while spent < budget_ns and (point := sampler.next()) is not None:
            expected = self._expected(point)
            if point.length and not self._fits(expected := max(expected, sampler.evidence.expected(point))):
                sampler.drop(point)
                continue
            if point.length != laid_out:
                await asyncio.to_thread(lay_out, model.executor, model.spare, model.rows, point.length)
                self._device.arrive(model.executor, model.spare)
                laid_out = point.length
            try:
                measured = await self._run(self._batches(point), expected)
                timed = [one.timed for one in measured]
            except RuntimeError:
                if not point.length or self._device.dead() is not None:
                    raise
                sampler.drop(point)
                continue
            spent += max(one.took_ns for one in measured)
            if point.units == 1:
                handovers.append(measured[0].handover_ns)
            sampler.add(point, timed)
        return spent

    async def _run(self, batches: Sequence[tuple[int, Slots]], expected_ns: int) -> list[MeasuredBatch]:
        """Run batches at once when there is no call, and count them as profiled batches."""
        model = self._model
        await self._measuring.quiet(max(_QUIET_NS, _PATIENCE * expected_ns))
        if (why := self._device.dead()) is not None:
            raise RuntimeError(why)
        measured = await self._measuring.measure(model.executor, batches)
        for one in measured:
            model.stats.profiled.observe(one.completion.outcome.compute_ns / 1e9)
        return measured

    def _batches(self, point: Point) -> list[tuple[int, Slots]]:
        """One batch for each of the point's units: worker and spare slots."""
        spec, model = self._device.spec, self._model
        rows = len(model.spare) // len(spec.workers)
        workers = workers_for(spec, model.profile.max_batch)[: point.units]
        return [(worker, model.spare[i * rows : i * rows + point.size]) for i, worker in enumerate(workers)]

    # which points

    def _fits(self, batch_ns: int) -> bool:
        """Whether a batch of so many nanoseconds may be measured at all."""
        return batch_ns * _LARGEST_SHARE <= self._budget_ns

    def _expected(self, point: Point) -> int:
        """Nanoseconds of a point's batches: from warm-up, in proportion to the length for longer rows."""
        own = self._own or 1
        return self._model.profile.batch_ns[point.size - 1] * point.units * max(own, point.length) // own

    def _sizes_to_time(self, budget_ns: int) -> list[Point]:
        """Points of as many sizes as the budget allows, alone and several at once."""
        largest, spec = self._model.profile.max_batch, self._device.spec
        at_once = concurrency_levels(min(len(workers_for(spec, largest)), spec.max_running))
        return self._first_that_fits([points(sizes, at_once) for sizes in size_sets(largest)], _LEAST, budget_ns)

    def _lengths_to_time(self) -> list[Point]:
        """Points of a few sizes at as many other lengths as half of the budget allows.

        None for a model that runs by its cell, whose steps take the same time at any length; but decoders have some.
        """
        executor, own = self._model.executor, self._own
        most = most_length(executor.model.info.client_inputs, own)
        if not most or (executor.steps is not None and not executor.model.writes):
            return []
        *_, sizes = size_sets(self._model.profile.max_batch)
        choices = [points(sizes, lengths=lengths) for lengths in length_sets(most, own)]
        return self._first_that_fits(choices, _PASSES, self._budget_ns // 2)

    def _first_that_fits(self, choices: Sequence[list[Point]], times: int, budget_ns: int) -> list[Point]:
        """The first of these sets that fits `times` visits into the budget, or the last; without batches that take too
        long."""
        wanted: list[Point] = []
        for some in choices:
            wanted = [point for point in some if self._fits(self._expected(point) // point.units)]
            if times * sum(map(self._expected, wanted)) <= budget_ns:
                break
        return wanted


# which point is next, and what points there are


class Sampler:
    """Points to time, and the evidence that has come of it. `prior`: what is known before.

    A point is settled when its error is within `_TOLERANCE` after at least _LEAST batches, or after `_MOST`. In the
    first pass points are visited in the order given, which must go from small to large at each length, so that the time
    of each batch can be predicted from a smaller one.
    """

    def __init__(self, prior: Profile, wanted: Iterable[Point]) -> None:
        self.evidence = Evidence(prior)
        self._open = dict.fromkeys(wanted)

    def want(self, points: Iterable[Point]) -> None:
        """Time these points as well."""
        self._open |= dict.fromkeys(points)

    def add(self, point: Point, timed: Sequence[UnitTime]) -> None:
        """Batches of this point, as many as run at once there, have taken so long."""
        evidence = self.evidence
        evidence.add(point, UnitTime.median(timed), IDLE)
        count = evidence.counts[point]
        if (count >= _LEAST and evidence.error(point) <= _TOLERANCE) or count >= _MOST:
            del self._open[point]

    def next(self) -> Point | None:
        """The next point, None when all are settled."""
        known = self.evidence
        return min(self._open, key=lambda point: (point in known.counts, -known.error(point)), default=None)

    def drop(self, point: Point) -> None:
        """Skip this point and all larger batches of its group."""
        self._open = {one: None for one in self._open if one.group != point.group or one.size < point.size}


def points(sizes: Iterable[int], levels: Iterable[int] = (), lengths: Iterable[int] = (0,)) -> list[Point]:
    """Points of each size alone, and with each number of units at once, at each length; 0: the rows' own."""
    return [Point(units, size, length) for units in (1, *levels) for length in lengths for size in sizes]


def size_sets(max_batch: int) -> list[list[int]]:
    """Sets of sizes to measure, from the finest to the coarsest: all, two an octave, one an octave."""
    octaves = {1 << power for power in range(max_batch.bit_length())}
    halves = {3 * size // 2 for size in octaves if size > 1 and 3 * size // 2 <= max_batch}
    return [list(range(1, max_batch + 1)), sorted(octaves | halves | {max_batch}), sorted(octaves | {max_batch})]


def length_sets(longest: int, own: int) -> list[list[int]]:
    """Sets of lengths to measure besides the rows' `own`, the finest first: halves, quarters, the longest.

    They go down to a sixteenth of the longest: shorter rows take about as long as that.
    """
    halves = [max(1, longest >> power) for power in (4, 3, 2, 1, 0)]
    return [sorted({*some} - {own}) for some in (halves, halves[::2], halves[-1:])]


def concurrency_levels(most: int) -> list[int]:
    """Numbers of units at once to measure: `most`, and powers of two below it. Those between are interpolated."""
    doubled = [1 << power for power in range(1, most.bit_length()) if 1 << power < most]
    return [*doubled, most] if most > 1 else []
