"""How fast the device is now, how much units that run at once slow each other there, and what a hand-over costs."""

from __future__ import annotations

from math import exp, sqrt

from app.scheduler.estimates.profile import Profile

#: Variance of one batch, as shares of its time: bounds, and at first if the profile is not exact.
LEAST_NOISE, _NOISE, _MOST_NOISE = 0.01**2, 0.1**2, 0.6**2
_BEFORE = 4  # batches that the first noise counts as
_COMMON = 0.02  # weight of one batch in the noise, at least
_NOTHING = 10.0  # variance of a size of which nothing is known
_OUTLIER = 16.0  # times the variance expected, as which one batch counts at most
_RECENT = 0.125  # and in `drift`: about the last eight count
_LONG = 1 / 256  # and in the mean square of that: if disturbances last, batches that follow each other are alike
_SIGNIFICANT = 3.0  # standard deviations of `drift` without a change of speed
_STEP = 0.002  # by how much the speed changes from one batch to the next, usually
_DOUBT = 0.1  # of the speed, at first
_BESIDE, _BESIDE_MEASURED = 0.25, 0.05  # of the slowdown by other units, at first: guessed, measured
_FORGOTTEN = 1e-4  # growth of the square of that for each window without units beside others
_CROWDED, _MOSTLY = 16, 0.7  # batches in a row that were beside others for so much of their time
_UNKNOWN = 0.06  # error of the slowdown above which a batch alone is worth what it costs
_RETURN = 0.1  # share of the way back to what was undisturbed for each window in which no batch ran
_HANDOVER_WEIGHT = 0.05  # of one observation: a mean over about the last 20 batches
_ROOM_NS = 100_000  # an observation counts as at most so far off, or as the current value if that is more


class Speed:
    """A Kalman filter with two states, logarithms: a batch alone, and beside others as often as can be.

    A batch that was beside others for part of its time shows the sum of the first and that share of the second. So if
    shares differ both are known, and if not, `beside_error` says so. `most`: units at once. `drift`: what the last
    batches were off on average; if that is significant the speed is `changing`, and is followed in a few batches.
    """

    __slots__ = (
        "_alone", "_beside", "_both", "_company", "_of_alone", "_of_beside", "_seen", "_tried", "_usual", "batches",
        "changing", "drift", "noise", "scale", "slower",
    )  # fmt: skip

    def __init__(self, profile: Profile, most: int) -> None:
        self.scale = self.slower = 1.0
        self.noise = _NOISE if profile.errors else LEAST_NOISE  # variance of one batch
        self.drift = 0.0
        self._usual = self.noise * _RECENT / (2 - _RECENT)  # mean square of `drift`
        self.changing = False
        self._alone = self._beside = 0.0
        self._of_alone, self._both = _DOUBT**2, 0.0  # covariances
        doubt = _BESIDE_MEASURED if profile.concurrency_ns else _BESIDE
        self._of_beside = doubt**2 if profile.errors and most > 1 else 0.0
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

    def observe(self, counted: float, share: float, total: float) -> None:
        """A batch was off by what it counts as; `total`: the variance that was expected of that."""
        self._seen = True
        self.batches += 1
        weight = max(_COMMON, 1 / (_BEFORE + self.batches))
        if total < _NOTHING:  # the first batch of a size of which nothing is known shows no noise
            more = counted * counted - total
            # Only its part of the variance can be too large: a size that is uncertain, but right, is no lack of noise.
            noise = self.noise + weight * (more if more > 0 else more * self.noise / total)
            self.noise = min(max(noise, LEAST_NOISE), _MOST_NOISE)
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
