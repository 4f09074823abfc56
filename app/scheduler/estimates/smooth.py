"""A smooth, rising curve through the estimated times of all sizes, from which a size departs as far as is significant.

The steps and their sources: docs/theory/estimates.md, to whose numbers the comments here refer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import NamedTuple

UNMEASURED = 0.1  # error of a size between measured ones: curves bend by about that much
ONCE = 0.25  # error of a size that was measured once, beside whatever ran then
_SIGNIFICANT = 2.0  # k: standard errors
_MEDIAN_SQUARE = 0.455  # of a normal variable, over its mean square
_NEIGHBOURS = 7  # sizes in a local line, at least
_SHARE = 3  # and at least a third of all
_ROUNDS = 3  # of robust weights
_FAR = 6.0  # median residuals beyond which a size has no weight (Cleveland's)
_LEAST_SPREAD = 0.01  # mean square distance of sizes, in rows, below which a line has no slope
_LEAST_FAR = 0.01  # of the curve: closer residuals never lose weight


class Estimate(NamedTuple):
    """The time of a batch of one size, and its standard error as a share of it."""

    ns: float
    error: float


def drawn(known: Mapping[int, Estimate]) -> dict[int, float]:
    """Nanoseconds by size: the smooth curve, plus the significant part of each size's distance from it (2).

    A single time shows no distance, because other work may have added to it (3). Where sizes are too few to tell a bump
    from the curve, such a one counts as at most as slow as a larger size.
    """
    found = {}
    if len(known) < _NEIGHBOURS:
        larger = inf
        for size in sorted(known, reverse=True):
            ns, error = known[size]
            found[size] = larger = ns if error < ONCE else min(ns, larger)
        return dict(sorted(found.items()))
    smooth = smoothed(known)
    off = {size: known[size].ns / line - 1 for size, line in smooth.items() if known[size].error < ONCE}
    usual = _jagged(off, known)
    for size, line in smooth.items():
        shown, square = off.get(size, 0.0), known[size].error ** 2
        if shown:
            shown *= max(1 - _SIGNIFICANT**2 * square / shown**2, usual / (usual + square))
        found[size] = line * (1 + shown)
    return found


def _jagged(off: Mapping[int, float], known: Mapping[int, Estimate]) -> float:
    """The usual square of a size's true distance from the curve: what distances have beyond their errors.

    The squares of these count twice: if they were taken for too small, noise would count as shape.
    """
    if len(off) < _NEIGHBOURS:
        return 0.0
    return max(0.0, median(one**2 / _MEDIAN_SQUARE - 2 * known[size].error ** 2 for size, one in off.items()))


def smoothed(known: Mapping[int, Estimate]) -> dict[int, float]:
    """The smooth curve at each known size (1)."""
    sizes = sorted(known)
    trust = {size: 1 / known[size].error ** 2 for size in sizes}
    for _ in range(_ROUNDS):
        smooth = {size: _line_at(size, sizes, known, trust) for size in sizes}
        off = {size: abs(known[size].ns / smooth[size] - 1) for size in sizes}
        far = _FAR * max(_LEAST_FAR, median(off.values()))
        # Errors as shares of the curve, not of the measured time: otherwise sizes measured too fast would weigh more.
        trust = {
            size: max(0.0, 1 - (one / far) ** 2) ** 2 / (known[size].error * smooth[size]) ** 2
            for size, one in off.items()
        }
    return dict(zip(sizes, _rising([_line_at(size, sizes, known, trust) for size in sizes]), strict=True))


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest values that never fall, by least squares: neighbours in falling order are averaged."""
    pools: list[tuple[float, int]] = []  # (mean, how many)
    for value in values:
        pool = value, 1
        while pools and pools[-1][0] > pool[0]:
            before, count = pools.pop()
            pool = (before * count + pool[0] * pool[1]) / (count + pool[1]), count + pool[1]
        pools.append(pool)
    return [value for value, count in pools for _ in range(count)]


def _line_at(size: int, sizes: Sequence[int], known: Mapping[int, Estimate], trust: Mapping[int, float]) -> float:
    """The line through the nearest sizes, at this one."""
    near = sorted(sizes, key=lambda one: abs(one - size))[: max(_NEIGHBOURS, len(sizes) // _SHARE)]
    reach = abs(near[-1] - size) + 1
    weights = [trust[one] * (1 - (abs(one - size) / reach) ** 3) ** 3 for one in near]
    total = sum(weights)
    if not total:
        return known[size].ns
    middle = sum(weight * one for weight, one in zip(weights, near, strict=True)) / total
    level = sum(weight * known[one].ns for weight, one in zip(weights, near, strict=True)) / total
    square = sum(weight * (one - middle) ** 2 for weight, one in zip(weights, near, strict=True))
    rise = sum(weight * (one - middle) * known[one].ns for weight, one in zip(weights, near, strict=True))
    # If hardly more than one size counts, there is no slope: rounding alone would make one.
    slope = max(0.0, rise / square) if square > _LEAST_SPREAD * total else 0.0
    return max(level + slope * (size - middle), level / 2)  # bounded, because a steep line could cross 0


def known_errors(known: Mapping[int, float], max_batch: int) -> tuple[float, ...]:
    """By size; one that was not measured is known no better than the nearest that was, nor than a curve bends."""

    def error(size: int) -> float:
        return known[size] if size in known else max(UNMEASURED, known[min(known, key=lambda one: abs(one - size))])

    return tuple(map(error, range(1, max_batch + 1)))
