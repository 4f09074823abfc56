"""How long a batch will take: the measured table times one scale that is kept true online, and the hand-over.

The table keeps the curve's shape, which is neither linear nor monotone on real hardware (three rows can take longer
than four); the scale follows the machine's mood. One scale for all sizes, because traffic visits only a few sizes and a
table updated size by size would mix moods. What a size takes beyond that corrects its own entry, slowly, where the
profile has errors (`LiveTimes`). Units that run at once have tables of their own where they were measured.
The scale is that of computing alone: the hand-over is the same for all sizes, and has its own moods.

Where times depend on the longest row, a batch whose rows are known is predicted by its length. What is
planned for any rows (`batch_ns`) has a scale of its own, which also follows how long the rows are that arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from app.scheduler.estimates.curve import FLOOR
from app.scheduler.estimates.lengths import time_at
from app.scheduler.estimates.shared_slowdown import SharedSlowdown
from app.scheduler.types import Profile

_WEIGHT = 0.05  # of one observation in the scale or the hand-over: about the last 20 batches
_OUTLIER = 4.0  # an observation counts at most so many times the prediction: a page fault is not a trend
_RETURN = 0.1  # of the way back to the profile, for each window in which no batch ran
_ROOM_NS = 100_000  # a hand-over counts as at most so far off, or as far as the present value where that is more

# of `LiveTimes`
_SEEN = 256  # batches of a size that count
_MOST_WORTH = 16.0  # and the profile of a size at most as so many
_OFF = 0.5  # one batch is at most so far off, as a share of its prediction
_NOISE = 0.1  # of one batch, as a share of its time, before any has run
_COMMON = 0.01  # of one batch in what all sizes share: about the last 100
_OF_MEAN = 1.25  # standard deviations in a mean absolute deviation, of normal noise


class Latency:
    """Predicts batch times in nanoseconds from a profile and what was observed."""

    __slots__ = ("_observed", "_planned", "_tables", "by_length", "handover", "live", "scale")

    def __init__(self, profile: Profile) -> None:
        #: By the number of units that run, less one.
        self._tables = (profile.batch_ns, *profile.concurrency_ns) if profile.batch_ns else ()
        self.by_length = profile.by_length
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
        """The scale of what is planned for rows of any length."""
        return self._planned if self.by_length else self.scale

    @property
    def slowdown_scale(self) -> float:
        """How much units at once slow one another, over what the profile says of that."""
        return self.live.shared.factor if self.live is not None else 1.0

    def predict(self, size: int, running: int = 1, length: int = 0, lead_ns: int = 0) -> int:
        """Nanoseconds for a batch of `size` while so many units run, itself included; 0 where nothing is known.

        Beyond the table: the last entry's share per row. Beyond the most units measured: as that many. `length`: of the
        longest row; 0 where it is not known, which is planned for as `batch_ns` says. The hand-over is part of it, but
        for what of it passes while the worker ends its last unit: `lead_ns`.
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
        """Move the scale towards what a batch of `size` took.

        `running`: units at work when it began, itself included; `others`: those beside it until it ended, on average,
        where that is known.
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

        Otherwise a scale that rose far enough for every call to be refused would never be corrected.
        """
        if not self._observed:
            self.scale += _RETURN * (1.0 - self.scale)
            self._planned += _RETURN * (1.0 - self._planned)
        self._observed = False
        self.handover.tick()
        if self.live is not None:
            self.live.shared.tick()

    def _shared(self, shared: SharedSlowdown, size: int, compute_ns: int, length: int, others: float) -> float:
        """What a batch takes beside so many others, by the profile and what was learnt before of others' effect."""
        few = int(others)
        alone, fewer, more = (self._profiled(size, units, length) for units in (1, 1 + few, 2 + few))
        if min(alone, fewer, more) <= 0:
            return 0
        # Its speed is a mean over time, in which so many others ran or one more.
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
    """Nanoseconds that a batch costs beyond computing: to give it to a worker, and to learn that it has ended.

    The profile says how much on a server that has nothing else to do. A busy one takes longer, and a machine has its
    moods, so it is kept true online. Each observation moves it by a bounded step: what is followed is what most batches
    cost, and a worker that the system left waiting for 10 ms is not a trend. `profiled` None: it costs nothing, and
    nothing is learnt.
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
        """A batch whose worker had nothing else cost so much beyond computing."""
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
        """A window has closed. One in which nothing ran moves it back towards the profile, as `Latency.tick`."""
        if self._learns and not self._observed:
            self._value += _RETURN * (self._profiled - self._value)
            self.ns = int(self._value)
        self._observed = False


class LiveTimes:
    """What live batches say of each size: by what factor its time differs from the profile's, and how sure that is.

    All sizes share the machine's mood, which is the scale; what is left of a batch's time over its prediction is
    evidence about its size alone. Each size keeps a running mean of that (Robbins and Monro, A Stochastic Approximation
    Method, 1951), in which the profile counts as so many batches as its error is worth, and the last 256 batches at
    most. One batch counts as at most half off: noise is heavy-tailed. Bounding makes all means alike a little low, so
    what deviations have in common is taken out. Without that, factors and scale would drift apart without end.

    `factors` by size, less one: observed over profiled time. `seen`: batches of each size, up to a bound. `shared`:
    the same for what units on other workers do to each other.
    """

    __slots__ = ("_centre", "_errors", "_noise", "_worth", "factors", "seen", "shared")

    def __init__(self, errors: Sequence[float]) -> None:
        self.factors = [1.0] * len(errors)
        self.seen = [0] * len(errors)
        self.shared = SharedSlowdown()
        self._errors = errors  # of the profile
        #: Batches that the profile counts as: few, since calls see what counts.
        self._worth = [min(_MOST_WORTH, (_NOISE / max(FLOOR, error)) ** 2) for error in errors]
        self._noise = _NOISE / _OF_MEAN  # mean absolute deviation
        self._centre = 0.0  # mean deviation

    def observe(self, size: int, off: float) -> None:
        """A batch took 1 + `off` times what was predicted for its size and for the machine's mood. O(1)."""
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
        """By size: the standard error of its time as a share. One batch alone says nothing."""
        noise = max(FLOOR, self.spread)
        return tuple(
            sqrt(FLOOR**2 + 1 / (1 / max(FLOOR, error) ** 2 + max(0, seen - 1) / noise**2))
            for error, seen in zip(self._errors, self.seen, strict=True)
        )
