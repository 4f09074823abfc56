"""What live batches say of each size: by what factor its time differs from the profile's, and how sure that is.

All sizes share the machine's mood, which is the scale of `latency`; what is left of a batch's time over its prediction
is evidence about its size alone. Each size keeps a running mean of that (Robbins and Monro, A Stochastic Approximation
Method, 1951), in which the profile counts as so many batches as its error is worth, and the last 256 batches at most.
One batch counts as at most half off: noise is heavy-tailed. Bounding makes all means alike a little low, so what
deviations have in common is taken out. Without that, factors and scale would drift apart without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from app.scheduler.estimates.curve import FLOOR

_MOST = 256  # batches of a size that count
_MOST_WORTH = 16.0  # and the profile of a size at most as so many
_ROOM = 0.5  # one batch is at most so far off, as a share of its prediction
_NOISE = 0.1  # of one batch, as a share of its time, before any has run
_WEIGHT = 0.01  # of one batch in what all sizes share: about the last 100
_OF_MEAN = 1.25  # standard deviations in a mean absolute deviation, of normal noise


class LiveTimes:
    """`factors` by size, less one: observed over profiled time. `seen`: batches of each size, up to a bound."""

    __slots__ = ("_centre", "_errors", "_noise", "_worth", "factors", "seen")

    def __init__(self, errors: Sequence[float]) -> None:
        self.factors = [1.0] * len(errors)
        self.seen = [0] * len(errors)
        self._errors = errors  # of the profile
        #: Batches that the profile counts as: few, since calls see what counts.
        self._worth = [min(_MOST_WORTH, (_NOISE / max(FLOOR, error)) ** 2) for error in errors]
        self._noise = _NOISE / _OF_MEAN  # mean absolute deviation
        self._centre = 0.0  # mean deviation

    def observe(self, size: int, off: float) -> None:
        """A batch took 1 + `off` times what was predicted for its size and for the machine's mood. O(1)."""
        if size > len(self.seen):
            return
        if not -_ROOM <= off <= _ROOM:
            off = _ROOM if off > 0 else -_ROOM
        self._centre += _WEIGHT * (off - self._centre)
        off -= self._centre
        self._noise += _WEIGHT * (abs(off) - self._noise)
        index = size - 1
        seen = self.seen[index]
        if seen < _MOST:
            seen += 1
            self.seen[index] = seen
        self.factors[index] *= 1 + off / (self._worth[index] + seen)

    def errors(self) -> tuple[float, ...]:
        """By size: the standard error of its time as a share. One batch alone says nothing."""
        noise = max(FLOOR, _OF_MEAN * self._noise)
        return tuple(
            sqrt(FLOOR**2 + 1 / (1 / max(FLOOR, error) ** 2 + max(0, seen - 1) / noise**2))
            for error, seen in zip(self._errors, self.seen, strict=True)
        )
