"""Predicts batch times: the measured table, times one scale learnt online, plus the hand-over.

There is one scale for all sizes, because it follows the speed of the machine; the remaining deviation of a size slowly
corrects its own entry (`LiveTimes`). Times at a length, and beside other units, have tables of their own if these were
measured. Why: docs/theory/estimates.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from app.scheduler.estimates.curve import FLOOR
from app.scheduler.estimates.lengths import time_at
from app.scheduler.estimates.shared_slowdown import SharedSlowdown
from app.scheduler.types import Profile

_WEIGHT = 0.05  # of one observation in the scale or the hand-over: a mean over about the last 20 batches
_OUTLIER = 4.0  # an observation counts as at most so many times the prediction: a page fault is not a trend
_RETURN = 0.1  # share of the way back to the profile for each window in which no batch ran
_ROOM_NS = 100_000  # an observed hand-over counts as at most so far off, or as the current value if that is more

# of `LiveTimes`
_SEEN = 256  # batches of a size that count, at most
_MOST_WORTH = 16.0  # batches that the profile of a size counts as, at most
_OFF = 0.5  # one batch counts as at most so far off, as a share of its prediction
_NOISE = 0.1  # noise of one batch, as a share of its time, before any has run
_COMMON = 0.01  # weight of one batch in the means over all sizes: about the last 100 count
_OF_MEAN = 1.25  # standard deviations in a mean absolute deviation, of normal noise


class Latency:
    """Predicts the batch times of one stage, in nanoseconds, from its profile and from observed batches."""

    __slots__ = ("_observed", "_planned", "_tables", "by_length", "handover", "lengths", "live", "scale")

    def __init__(self, profile: Profile) -> None:
        #: By the number of units that run, less one.
        self._tables = (profile.batch_ns, *profile.concurrency_ns) if profile.batch_ns else ()
        self.lengths = profile.by_length  # which rows are picked by
        self.by_length = () if profile.guessed_lengths else profile.by_length
        self.handover = Handover(profile.handover_ns)
        self.live = LiveTimes(profile.errors) if profile.errors else None
        self.scale = 1.0
        self._planned = 1.0  # observed over `batch_ns`, whatever the length
        self._observed = False

    @property
    def batch_ns(self) -> tuple[int, ...]:
        """The profile's times of batches alone."""
        return self._tables[0] if self._tables else ()

    @property
    def known(self) -> bool:
        return bool(self._tables)

    @property
    def planned(self) -> float:
        """The scale for rows of unknown length."""
        return self._planned if self.by_length else self.scale

    @property
    def slowdown_scale(self) -> float:
        """How much units that run at once slow one another, relative to the profile."""
        return self.live.shared.factor if self.live is not None else 1.0

    def predict(self, size: int, running: int = 1, length: int = 0, lead_ns: int = 0) -> int:
        """Nanoseconds for a batch of `size` while `running` units run, itself included; 0 if nothing is known.

        Beyond the table the time per row of its last entry is used; beyond the most units measured, their table.
        `length`: of the longest row; 0 if unknown: then `batch_ns` is used. The hand-over is included, except the part
        that passes while the worker ends its last unit (`lead_ns`).
        """
        if not self._tables:
            return 0
        scale = self._planned if self.by_length and not length else self.scale
        return int(self._profiled(size, running, length) * scale) + max(0, self.handover.ns - lead_ns)

    def compute(self, size: int, running: int = 1, length: int = 0) -> int:
        """As `predict`, without the hand-over."""
        return self.predict(size, running, length, self.handover.ns)

    def slowdown(self, size: int, running: int, lead_ns: int = 0) -> float:
        """Observed over profiled time for which a batch of `size` keeps its worker from the next one, of any rows."""
        now, profiled = (max(0, ns - lead_ns) for ns in (self.handover.ns, self.handover.profiled_ns))
        if not (now or profiled) or not self._tables:
            return self.planned
        compute_ns = self._profiled(size, running, 0)
        return (compute_ns * self.planned + now) / (compute_ns + profiled)

    def observe(
        self, size: int, compute_ns: int, running: int = 1, length: int = 0, others: float | None = None
    ) -> None:
        """A batch of `size` took `compute_ns`: move the scale towards that.

        `running`: units that ran when it began, itself included. `others`: the mean number of other units while it ran,
        if known.
        """
        if not self._tables or compute_ns <= 0:
            return
        if others is None or self.live is None:
            base = self._profiled(size, running, length)
        else:
            base = self._shared(self.live.shared, size, compute_ns, length, others)
        if base <= 0:
            return
        self._observed = True
        ratio = compute_ns / base
        if self.live is not None:
            self.live.observe(size, ratio / self.scale - 1)
        self.scale = _moved(self.scale, ratio)
        if self.by_length:
            self._planned = _moved(self._planned, compute_ns / self._profiled(size, running, 0))

    def tick(self) -> None:
        """A window has closed. One in which nothing ran moves the scale back towards the profile.

        Otherwise a scale so high that every call is refused would never be corrected.
        """
        if not self._observed:
            self.scale += _RETURN * (1.0 - self.scale)
            self._planned += _RETURN * (1.0 - self._planned)
        self._observed = False
        self.handover.tick()
        if self.live is not None:
            self.live.shared.tick()

    def _shared(self, shared: SharedSlowdown, size: int, compute_ns: int, length: int, others: float) -> float:
        """The time of a batch beside so many others, by the profile and the shared slowdown learnt before.

        Then learns from this batch's time.
        """
        few = int(others)
        alone, fewer, more = (self._profiled(size, units, length) for units in (1, 1 + few, 2 + few))
        if min(alone, fewer, more) <= 0:
            return 0
        # Its speed is the mean over the times in which `few` others ran and in which one more did.
        share = others - few
        speed = alone * ((1 - share) / fewer + share / more)
        lone = max(0.0, 1 - others)
        shared.observe(lone, (speed - lone) * shared.factor, alone / compute_ns)
        return alone / speed

    def _profiled(self, size: int, running: int, length: int) -> float:
        tables = self._tables
        table = tables[0] if running == 1 else tables[min(running, len(tables)) - 1]
        time = table[size - 1] if size <= len(table) else table[-1] * size / len(table)
        factor = 1.0
        if self.live is not None:
            factors = self.live.factors
            factor = factors[size - 1] if size <= len(factors) else factors[-1]
            if running > 1:
                factor *= self.live.shared.factor
        if not (length and self.by_length):
            return time * factor
        alone = tables[0][min(size, len(tables[0])) - 1]
        slower = table[min(size, len(table)) - 1] / alone if alone else 1.0  # other units slow any length alike
        return time_at(self.by_length, size, length) * slower * factor


def _moved(scale: float, ratio: float) -> float:
    """A scale after one more observation."""
    return scale + _WEIGHT * (min(ratio, scale * _OUTLIER) - scale)


class Handover:
    """Nanoseconds that a batch costs beyond computing: to hand it to a worker, and to report its end.

    The profile has the value of an idle server. A busy server takes longer, and speeds change, so it is learnt online.
    Each observation moves it by a bounded step, so it follows what most batches cost: a worker that the system once
    left waiting for 10 ms is not a trend. `profiled` None: it costs nothing, and nothing is learnt.
    """

    __slots__ = ("_learns", "_observed", "_profiled", "_value", "ns")

    def __init__(self, profiled: int | None) -> None:
        self.ns = profiled or 0
        self._profiled = self._value = float(self.ns)
        self._learns = profiled is not None
        self._observed = False

    @property
    def profiled_ns(self) -> int:
        return int(self._profiled)

    def observe(self, spent_ns: int) -> None:
        """A batch on an otherwise idle worker took `spent_ns` beyond computing."""
        if not self._learns:
            return
        self._observed = True
        error = spent_ns - self._value
        if not -_ROOM_NS <= error <= _ROOM_NS:
            room = max(_ROOM_NS, self._value)
            error = max(-room, min(error, room))
        self._value = max(0.0, self._value + _WEIGHT * error)
        self.ns = int(self._value)

    def tick(self) -> None:
        """A window has closed. If nothing ran in it, the value moves back towards the profile, as in `Latency`."""
        if self._learns and not self._observed:
            self._value += _RETURN * (self._profiled - self._value)
            self.ns = int(self._value)
        self._observed = False


class LiveTimes:
    """Corrections of single sizes, learnt from live batches, and their errors.

    All sizes share the speed of the machine, which is the scale. The rest of a batch's deviation from its prediction is
    evidence about its size. Each size keeps a running mean of that (Robbins and Monro, A Stochastic Approximation
    Method, 1951). In it the profile counts as a number of batches that follows from its error, and at most 256 batches
    count. One batch counts as at most half off, because noise is heavy-tailed. That bound lowers all means a little, so
    the deviation common to all sizes is subtracted; otherwise factors and scale would drift apart without end.

    `factors[size - 1]`: observed over profiled time. `seen`: batches of each size, up to the bound. `shared`: the
    correction for units that run at once.
    """

    __slots__ = ("_centre", "_errors", "_noise", "_worth", "factors", "seen", "shared")

    def __init__(self, errors: Sequence[float]) -> None:
        self.factors = [1.0] * len(errors)
        self.seen = [0] * len(errors)
        self.shared = SharedSlowdown()
        self._errors = errors  # of the profile
        #: Batches that the profile counts as. Few, because live batches show what calls experience.
        self._worth = [min(_MOST_WORTH, (_NOISE / max(FLOOR, error)) ** 2) for error in errors]
        self._noise = _NOISE / _OF_MEAN  # mean absolute deviation
        self._centre = 0.0  # mean deviation

    def observe(self, size: int, off: float) -> None:
        """A batch took 1 + `off` times its prediction, scale included. O(1)."""
        if size > len(self.seen):
            return
        if not -_OFF <= off <= _OFF:
            off = _OFF if off > 0 else -_OFF
        self._centre += _COMMON * (off - self._centre)
        off -= self._centre
        self._noise += _COMMON * (abs(off) - self._noise)
        index = size - 1
        seen = self.seen[index]
        if seen < _SEEN:
            seen += 1
            self.seen[index] = seen
        self.factors[index] *= 1 + off / (self._worth[index] + seen)

    @property
    def spread(self) -> float:
        """The standard deviation of a batch's time, as a share of it."""
        return _OF_MEAN * self._noise

    def errors(self) -> tuple[float, ...]:
        """By size: the standard error of its time as a share of it. A single batch does not count."""
        noise = max(FLOOR, self.spread)
        return tuple(
            sqrt(FLOOR**2 + 1 / (1 / max(FLOOR, error) ** 2 + max(0, seen - 1) / noise**2))
            for error, seen in zip(self._errors, self.seen, strict=True)
        )
