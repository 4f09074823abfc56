"""Times of sizes that were only looked at, from the sizes around them that were timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import median

from app.scheduler.estimates.fields import interpolate

LOOKS = 3  # at a size, at least: one that met something else is then outvoted
_MOST_LOOKS = 8
_KNOWN_TO = 0.03  # standard deviation that the median of looks is to have
_QUARTILES = 1.349  # standard deviations between the quartiles of a normal distribution
_HALF_WITHIN = 0.6745  # standard deviations from 0, within which half of normal values are
_OF_MEDIAN = 1.35  # variance of the median of n normal times, times n over that of one, for n from 3 to 8


def spread_of(times: Iterable[int]) -> float:
    """Distance between the quartiles as a share of the median."""
    ordered = sorted(times)
    return (ordered[3 * (len(ordered) - 1) // 4] - ordered[(len(ordered) - 1) // 4]) / median(ordered)


def noise_of(timed: Iterable[Sequence[int]]) -> float:
    """Standard deviation of one time, as a share of it; 0 where nothing was timed often enough."""
    return median([spread_of(times) for times in timed if len(times) >= 4] or [0.0]) / _QUARTILES


def looks_for(noise: float) -> int:
    """How often to look at a size, where one time varies so much."""
    return min(_MOST_LOOKS, max(LOOKS, ceil(_OF_MEDIAN * (noise / _KNOWN_TO) ** 2)))


def drawn(looks: Mapping[int, Sequence[int]], firm: Mapping[int, int], noise: float) -> dict[int, int]:
    """Nanoseconds by size, of sizes that were only looked at: between the line through their neighbours and the median
    of their looks.

    How near to the looks is the part of the variance between looks and line that is not the looks' own (`noise`): all
    the way on a quiet machine, not at all where the curve is a line or looks say nothing. That weight has the least
    mean square error (Stein's shrinkage).
    """
    if not looks:
        return {}
    sizes = sorted(looks)
    lines = interpolate(firm, sizes)
    off = [median(looks[size]) / line - 1 for size, line in zip(sizes, lines, strict=True)]
    own = _OF_MEDIAN * noise**2 / median(map(len, looks.values()))
    whole = (median(map(abs, off)) / _HALF_WITHIN) ** 2  # the square of one look that met something else says nothing
    weight = max(0.0, 1 - own / whole) if whole else 0.0
    return {size: round(line * (1 + weight * one)) for size, line, one in zip(sizes, lines, off, strict=True)}
