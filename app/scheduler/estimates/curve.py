"""One curve of batch times with errors, learned from every batch that runs (docs/theory/estimates.md).

Warm-up, idle measurements and live batches are evidence of one form, `Curve.observe`. What a size takes, the speed of
the device now, how much units that run at once slow each other, and noise are told apart by what batches have in
common. `Curve` has the sizes, `Speed` what all sizes have in common; `Handover` is what a batch costs beside computing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, hypot, log, sqrt

from app.scheduler.estimates.lengths import time_at
from app.scheduler.estimates.profile import Profile
from app.scheduler.types import Outcome, Unit

# sizes
_FLOOR = 0.005  # smallest error: repeating does not average out everything
_SEEN = 1024  # batches of a size that count, at most
_FAR = 2.5  # standard deviations that one batch counts as off, at most
_IN_A_ROW, _APART = 3, 8  # batches of a size that are far off; batches of any size between: other work comes in bursts
_TAIL = 1.65  # standard deviations to the 95 % quantile
# speed
#: Variance of one batch, as shares of its time: bounds, and at first if the profile is not exact.
_LEAST_NOISE, _NOISE, _MOST_NOISE = 0.01**2, 0.1**2, 0.6**2
_BEFORE = 4  # batches that the first noise counts as
_COMMON = 0.02  # weight of one batch in the noise, at least
_NOTHING = 10.0  # variance of a size of which nothing is known
_OUTLIER = 16.0  # times the variance expected, as which one batch counts at most
_RECENT = 0.125  # and in `drift`: about the last eight count
_LONG = 1 / 256  # and in the mean square of that: if disturbances last, batches that follow each other are alike
_SIGNIFICANT = 3.0  # standard deviations of `drift` without a change of speed
_STEP = 0.002  # by how much the speed changes from one batch to the next, usually
#: Of the speed, at first: live batches of small models take several times as long as those of a warm-up, of all sizes
#: alike. Where batches follow each other, or the profile is exact, they are not so far off.
_DOUBT, STEADY = 1.0, 0.1
_BESIDE, _BESIDE_MEASURED = 0.25, 0.05  # of the slowdown by other units, at first: guessed, measured
_FORGOTTEN = 1e-4  # growth of the square of that for each window without units beside others
_CROWDED, _MOSTLY = 16, 0.7  # batches in a row that were beside others for so much of their time
_UNKNOWN = 0.06  # error of the slowdown above which a batch alone is worth what it costs
_RETURN = 0.1  # share of the way back to what was undisturbed for each window in which no batch ran
# hand-over
_HANDOVER_WEIGHT = 0.05  # of one observation: a mean over about the last 20 batches
_ROOM_NS = 100_000  # an observation counts as at most so far off, or as the current value if that is more


def learn(curves: Sequence[Curve], unit: Unit, outcome: Outcome, now: int) -> None:
    """A unit has ended well now. `curves`: of its program, by stage."""
    times = outcome.times or (outcome.compute_ns // outcome.steps,)
    forecast = unit.forecast
    behind = forecast.behind  # then it is unknown when its worker began it
    others = None if behind else forecast.others
    for curve, time in zip(curves[unit.stage :], times, strict=False):
        curve.observe(unit.size, time, forecast.running, forecast.length, others)
    if not behind:
        curves[unit.stage].handover.observe(now - unit.started - outcome.compute_ns)


class Curve:
    """Batch times of one stage, in nanoseconds. `profile`: what is known before, and its errors; () if it is exact.

    A batch takes what its size and length take, times the speed now, times the slowdown by other units, times noise.
    Their logarithms are estimated by a Kalman filter (R. Kalman, A New Approach to Linear Filtering and Prediction
    Problems, 1960) that neglects correlations between sizes. `most`: units at once. `doubt`: of the speed, at first.
    """

    __slots__ = (
        "_last", "_planned", "_surprised", "_tables", "_variance", "by_length", "handover", "lengths", "profile",
        "speed",
    )  # fmt: skip

    def __init__(self, profile: Profile, most: int = 1, doubt: float = _DOUBT) -> None:
        self.profile = profile
        #: By the number of units that run, less one.
        self._tables = [[*map(float, profile.times_of(units))] for units in range(1, most + 1) if profile.batch_ns]
        self.lengths = profile.by_length  # which rows are picked by
        self.by_length = [] if profile.guessed_lengths else [(at, [*map(float, ns)]) for at, ns in profile.by_length]
        self._variance = [max(_FLOOR, error) ** 2 for error in profile.errors]
        self._surprised = [0] * len(self._variance)  # batches in a row that were far off, negative: too fast
        self._last = [-_APART] * len(self._variance)  # when the last of them ran, in batches
        self.speed = Speed(profile, most, doubt)
        self.handover = Handover(profile.handover_ns)
        self._planned = 1.0  # observed over `batch_ns`, whatever the length

    @property
    def known(self) -> bool:
        return bool(self._tables)

    @property
    def uncertain(self) -> bool:
        """Whether the profile is not exact, so that batches correct it."""
        return bool(self._variance)

    @property
    def corrections(self) -> int:
        """Batches that have corrected it so far."""
        return self.speed.batches if self._variance else 0

    @property
    def batch_ns(self) -> tuple[int, ...]:
        """The undisturbed times of batches alone."""
        return tuple(map(round, self._tables[0])) if self._tables else ()

    @property
    def planned(self) -> float:
        """The scale for rows of unknown length."""
        return self._planned if self.by_length else self.speed.scale

    # predictions

    def predict(self, size: int, running: int = 1, length: int = 0, lead_ns: int = 0) -> int:
        """Nanoseconds for a batch of `size` while `running` units run, itself included; 0 if nothing is known.

        Beyond the table the time per row of its last entry is used; beyond the most units measured, their table.
        `length`: of the longest row; 0 if unknown: then `batch_ns` is used. The hand-over is included, except the part
        that passes while the worker ends its last unit (`lead_ns`).
        """
        if not self._tables:
            return 0
        scale = self._planned if self.by_length and not length else self.speed.scale
        return int(self._undisturbed(size, running, length) * scale) + max(0, self.handover.ns - lead_ns)

    def compute(self, size: int, running: int = 1, length: int = 0) -> int:
        """As `predict`, without the hand-over."""
        return self.predict(size, running, length, self.handover.ns)

    @property
    def quantile(self) -> float:
        """What 95 % of batches keep, over their prediction: noise counts as log-normal. At most 2: stalls are rare."""
        return min(2.0, exp(_TAIL * sqrt(self.speed.noise - _LEAST_NOISE)))

    def error(self, size: int) -> float:
        """The standard error of the undisturbed time of a size, as a share of it."""
        if not self._variance:
            return 0.0
        return sqrt(self._variance[min(size, len(self._variance)) - 1] + _FLOOR**2)

    def slowdown(self, size: int, running: int, lead_ns: int = 0) -> float:
        """Present over undisturbed time for which a batch of `size` keeps its worker from the next one, of any rows."""
        now, profiled = (max(0, ns - lead_ns) for ns in (self.handover.ns, self.handover.profiled_ns))
        if not (now or profiled) or not self._tables:
            return self.planned
        compute_ns = self._undisturbed(size, running, 0)
        return (compute_ns * self.planned + now) / (compute_ns + profiled)

    def _undisturbed(self, size: int, running: int, length: int) -> float:
        tables = self._tables
        table = tables[0] if running == 1 else tables[min(running, len(tables)) - 1]
        time = table[size - 1] if size <= len(table) else table[-1] * size / len(table)
        if running > 1:
            time *= self._slower(running)
        if not (length and self.by_length):
            return time
        alone = tables[0][min(size, len(tables[0])) - 1]
        slower = time / alone * min(1.0, len(table) / size)
        return time_at(self.by_length, size, length) * slower  # other units slow any length alike

    # evidence

    def observe(
        self, size: int, ns: int, running: int = 1, length: int = 0, others: float | None = None, trust: float = 1.0
    ) -> None:
        """A batch of `size` took `ns`. O(1).

        `running`: units that ran when it began, itself included. `others`: the mean number of other units while it ran,
        if known. `trust`: by how many ordinary batches this one counts.
        """
        if not self._tables or ns <= 0:
            return
        speed = self.speed
        base, beside, most = self._undisturbed(size, running, length), running - 1.0, len(self._tables)
        if not base:
            return
        if others is not None and most > 1 and self._variance:
            base, beside = self._undisturbed(size, 1, length) * self._beside(size, others), others
        off = log(ns / (base * speed.scale))
        if off < 0 and not speed.batches:
            speed.begins_fast()
        share = min(1.0, beside / (most - 1)) if beside and most > 1 else 0.0
        variance = self._variance[size - 1] if size <= len(self._variance) else 0.0
        total = variance + speed.variance(share) + speed.noise / trust
        far = _FAR * sqrt(total)
        counted = max(-far, min(off, far))
        if variance:
            self._learn(size, counted, variance, total)
            if self._surprised[size - 1] or counted != off:
                self._find_wrong(size - 1, off, surprise=counted != off)
        speed.observe(counted, share, total)
        if self.by_length:
            ratio = ns / (self._undisturbed(size, running, 0) * self._planned)
            self._planned *= 1 + 0.05 * (min(ratio, 4.0) - 1)

    def _learn(self, size: int, off: float, variance: float, total: float) -> None:
        """Move a size by its part of what a batch was off."""
        index = size - 1
        gain = variance / total
        factor = exp(gain * off)
        for table in self._tables:
            table[index] *= factor
        for _, table in self.by_length:
            table[index] *= factor
        self._variance[index] = max(variance * (1 - gain), self.speed.noise / _SEEN)

    def _find_wrong(self, index: int, off: float, *, surprise: bool) -> None:
        """Batches of a size in a row that are far off, and apart, are no noise: what was known of it is wrong."""
        row = self._surprised[index]
        if surprise and self.speed.changing:
            return
        if not surprise:
            row = 0
        elif self.speed.batches - self._last[index] >= _APART:
            row = max(1, row + 1) if off > 0 else min(-1, row - 1)
            self._last[index] = self.speed.batches
        if row in (_IN_A_ROW, -_IN_A_ROW):
            self._variance[index] += off * off
            row = 0
        self._surprised[index] = row

    def _beside(self, size: int, others: float) -> float:
        """The slowdown by so many other units."""
        few = int(others)
        alone, fewer, more = (self._undisturbed(size, units, 0) for units in (1, 1 + few, 2 + few))
        # Its speed is the mean over the times in which `few` others ran and in which one more did.
        share = others - few
        return 1 / (alone * ((1 - share) / fewer + share / more))

    def _slower(self, running: int) -> float:
        """What units slow one another beyond the profile."""
        most = len(self._tables)
        return self.speed.slower if running >= most else self.speed.slower ** ((running - 1) / (most - 1))

    def tick(self) -> None:
        """A window has closed. What was not seen in it is less certain, and moves back towards the profile.

        Otherwise a speed so low that every call is refused would never be corrected.
        """
        if not self.speed.tick():
            self._planned += 0.1 * (1 - self._planned)
        self.handover.tick()

    # what is known

    def errors(self) -> tuple[float, ...]:
        """By size, see `error`; () if the profile is exact."""
        return tuple(sqrt(one + _FLOOR**2) for one in self._variance)

    def learned(self, *, beside: bool = True) -> Profile:
        """The profile with what has been learned: undisturbed times, and their errors.

        `beside`: with that of the slowdown by other units, which grows while none run at once.
        """
        if not self._variance:
            return self.profile
        alone, *together = self._tables
        errors = self.errors()
        if together and beside:
            errors = tuple(hypot(error, self.speed.beside_error) for error in errors)
        return replace(
            self.profile,
            batch_ns=_whole(alone),
            concurrency_ns={
                units: _whole(ns * self._slower(units) for ns in table) for units, table in enumerate(together, 2)
            },
            by_length=tuple((at, _whole(table)) for at, table in self.by_length) or self.profile.by_length,
            errors=errors,
        )


def _whole(times: Iterable[float]) -> tuple[int, ...]:
    return tuple(max(1, round(ns)) for ns in times)


class Speed:
    """A Kalman filter with two states, logarithms: a batch alone, and beside others as often as can be.

    A batch that was beside others for part of its time shows the sum of the first and that share of the second. So if
    shares differ both are known, and if not, `beside_error` says so. `most`: units at once. `drift`: what the last
    batches were off on average; if that is significant the speed is `changing`, and is followed in a few batches.
    `scale`: what a batch alone takes now over its undisturbed time. `slower`: by how much more than the profile says
    units that run at once slow each other.
    """

    __slots__ = (
        "_alone", "_beside", "_both", "_company", "_of_alone", "_of_beside", "_seen", "_tried", "_usual", "batches",
        "changing", "drift", "noise", "scale", "slower",
    )  # fmt: skip

    def __init__(self, profile: Profile, most: int, doubt: float) -> None:
        self.scale = self.slower = 1.0
        self.noise = _NOISE if profile.errors else _LEAST_NOISE  # variance of one batch
        self.drift = 0.0
        self._usual = self.noise * _RECENT / (2 - _RECENT)  # mean square of `drift`
        self.changing = False
        self._alone = self._beside = 0.0
        self._of_alone, self._both = (doubt if profile.errors else STEADY) ** 2, 0.0  # covariances
        beside = _BESIDE_MEASURED if profile.concurrency_ns else _BESIDE
        self._of_beside = beside**2 if profile.errors and most > 1 else 0.0
        self.batches = self._company = 0
        self._seen = self._tried = False

    @property
    def beside_error(self) -> float:
        return sqrt(self._of_beside)

    @property
    def crowded(self) -> bool:
        """Whether all recent batches ran beside others, so that their speed alone is unknown: one should run alone."""
        return self._company >= _CROWDED and self._of_beside > _UNKNOWN**2

    def variance(self, share: float) -> float:
        """Of the estimate of a batch that is beside others for this share of its time."""
        return self._of_alone + share * (2 * self._both + share * self._of_beside)

    def begins_fast(self) -> None:
        """The first batch is fast. Other work only adds: its size was measured too slow; hardly a fast device."""
        self._of_alone = min(self._of_alone, STEADY**2)

    def observe(self, counted: float, share: float, total: float) -> None:
        """A batch was off by what it counts as; `total`: the variance that was expected of that."""
        self._seen = True
        self.batches += 1
        weight = max(_COMMON, 1 / (_BEFORE + self.batches))
        if total < _NOTHING:  # the first batch of a size of which nothing is known shows no noise
            more = counted * counted - total
            # Only its part of the variance can be too large: a size that is uncertain, but right, is no lack of noise.
            noise = self.noise + weight * (more if more > 0 else more * self.noise / total)
            self.noise = min(max(noise, _LEAST_NOISE), _MOST_NOISE)
        first, second = self._of_alone + share * self._both, self._both + share * self._of_beside
        self._alone += first / total * counted
        self._of_alone -= first * first / total
        self.scale = exp(self._alone)
        self._tried = self._tried or share > 0
        self._company = self._company + 1 if share > _MOSTLY else 0
        if self._of_beside:
            self._beside += second / total * counted
            self._both -= first * second / total
            self._of_beside -= second * second / total
            self.slower = exp(self._beside)
        self.drift += _RECENT * (counted - self.drift)
        square = self.drift**2
        changed = square - _SIGNIFICANT**2 * max(self._usual, total * _RECENT / (2 - _RECENT))
        self._usual += _LONG * (min(square, _OUTLIER * self._usual) - self._usual)
        self.changing = changed > 0
        self._of_alone += _STEP**2 + max(0.0, changed)

    def tick(self) -> bool:
        """A window has closed. Returns whether a batch ran in it."""
        seen = self._seen
        if not seen:
            self._alone -= _RETURN * self._alone
            self.scale = exp(self._alone)
        if not self._tried and self._of_beside:
            self._of_beside += _FORGOTTEN
        self._seen = self._tried = False
        return seen


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
        self._value = max(0.0, self._value + _HANDOVER_WEIGHT * error)
        self.ns = int(self._value)

    def tick(self) -> None:
        """A window has closed. If nothing ran in it, the value moves back towards the profile, as the speed does."""
        if self._learns and not self._observed:
            self._value += _RETURN * (self._profiled - self._value)
            self.ns = int(self._value)
        self._observed = False
