"""Random lengths of requests from a seed. They set the time of a batch, and the steps of a row in a cell.

    fixed:N, or N                      all of one length
    uniform:LOW:HIGH                   each length from LOW to HIGH equally often
    lognormal:MEDIAN:SIGMA:LOW:HIGH    the logarithm normal with deviation SIGMA; drawn again outside LOW to HIGH
    lognormal:MEAN:SD:MAX              the same by mean and standard deviation, from 1 to MAX
    column:N:FILE                      column N of a CSV file, in its order, and from its beginning again

The load generator uses these lengths, too. The i-th request has the same length however many are drawn at a time.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_MOST = 1 << 31
_DRAWN = 8192  # at a time
_SHARE = 0.001  # of a distribution that must lie within its bounds: what is outside is drawn again
_MEAN = 200_000  # lengths over which a mean is taken


class Lengths:
    """An endless stream of lengths. Raises ValueError for a bad spec, with the name of its option."""

    def __init__(self, spec: str, seed: list[int], option: str = "lengths") -> None:
        kind, *words = spec.split(":", 2 if spec.startswith("column:") else -1) if ":" in spec else ("fixed", spec)
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = []
        self._median, self._sigma = 0.0, 0.0
        self._column: NDArray[np.int64] | None = None
        if kind == "column" and len(words) == 2:
            self._column = _column(option, spec, *words)
            self.low, self.high = int(self._column.min()), int(self._column.max())
        elif kind == "fixed" and len(numbers) == 1:
            self.low = self.high = _whole(option, spec, numbers[0])
        elif kind == "uniform" and len(numbers) == 2:
            self.low, self.high = (_whole(option, spec, number) for number in numbers)
        elif kind == "lognormal" and len(numbers) == 4 and all(0 < number < _MOST for number in numbers[:2]):
            self._median, self._sigma = numbers[0], numbers[1]
            self.low, self.high = (_whole(option, spec, number) for number in numbers[2:])
        elif kind == "lognormal" and len(numbers) == 3 and all(0 < number < _MOST for number in numbers[:2]):
            variance = math.log1p((numbers[1] / numbers[0]) ** 2)
            self._median, self._sigma = numbers[0] / math.exp(variance / 2), math.sqrt(variance)
            self.low, self.high = 1, _whole(option, spec, numbers[2])
        else:
            raise ValueError(
                f"{option}: expected a number, uniform:LOW:HIGH, lognormal:MEAN:SD:MAX, "
                f"lognormal:MEDIAN:SIGMA:LOW:HIGH or column:N:FILE, got {spec!r}"
            )
        if (self._median and not self.low <= numbers[0] <= self.high) or self.low > self.high:
            raise ValueError(f"{option}: expected LOW up to HIGH, the median or mean between them, got {spec!r}")
        if self._median and not self._share() >= _SHARE:
            raise ValueError(
                f"{option}: expected LOW to HIGH to hold at least {_SHARE:.1%} of the lengths, got {spec!r}"
            )
        self._random = np.random.default_rng(seed)
        self._left = np.zeros(0, dtype=np.int64)

    def draw(self, count: int) -> NDArray[np.int64]:
        """The lengths of the next `count` requests."""
        parts = [self._left]
        while (have := sum(map(len, parts))) < count:
            parts.append(self._more())
        drawn = np.concatenate(parts) if have else self._left
        self._left = drawn[count:]
        return drawn[:count]

    def _share(self) -> float:
        """The share of a lognormal distribution that rounds to a length from `low` to `high`."""
        bounds = (math.log(self.low - 0.5), math.log(self.high + 0.5))
        below, upto = (math.erf((bound - math.log(self._median)) / self._sigma / math.sqrt(2)) for bound in bounds)
        return (upto - below) / 2

    def _more(self) -> NDArray[np.int64]:
        if self._column is not None:
            return np.tile(self._column, -(-_DRAWN // len(self._column)))
        if not self._median:
            return self._random.integers(self.low, self.high + 1, _DRAWN)
        drawn = np.rint(np.exp(self._random.normal(math.log(self._median), self._sigma, _DRAWN))).astype(np.int64)
        return drawn[(drawn >= self.low) & (drawn <= self.high)]


def mean(spec: str, option: str = "lengths") -> float:
    """The mean length. Raises ValueError for a bad spec."""
    return float(Lengths(spec, [0], option).draw(_MEAN).mean())


def _column(option: str, spec: str, number: str, path: str) -> NDArray[np.int64]:
    if not (number.isdecimal() and int(number)):
        raise ValueError(f"{option}: expected the number of a column, from 1 on, got {spec!r}")
    try:
        values = np.loadtxt(path, delimiter=",", usecols=int(number) - 1, ndmin=1)
    except (ValueError, IndexError) as exc:
        raise ValueError(f"{option}: {path}: {exc}") from None
    if not len(values):
        raise ValueError(f"{option}: {path}: expected lengths, got an empty file")
    return np.array([_whole(option, spec, value) for value in values.tolist()])


def _whole(option: str, spec: str, number: float) -> int:
    if not (number.is_integer() and 1 <= number < _MOST):
        raise ValueError(f"{option}: expected whole numbers from 1 on, got {spec!r}")
    return int(number)
