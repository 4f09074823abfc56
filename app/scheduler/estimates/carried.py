"""What batches of some sizes have shown, carried over to others.

Errors of neighbours are alike: a warm-up's times are drawn through those of all sizes. If the sizes that run were
measured too slow, that counts as a fast device, and all larger ones seem faster than they are until they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, sqrt

from app.scheduler.estimates.profile import Profile

_OWN = 0.5  # share of a size's variance that it has by itself: kernels are made for some sizes
_FAR = 3.0  # standard deviations beyond which a move is the size's own
_UNSEEN = 1e-12  # share of its variance that a size has lost if it has not run


def carried(now: Profile, before: Profile) -> Profile:
    """`now`, whose sizes have moved each by itself since `before`, with the moves that their neighbours make likely.

    A move has a part of its own and one in common with neighbours, a Gauss-Markov process along the logarithm of the
    size: it correlates by the ratio of two sizes. Sizes that have not run are known better, too. O(sizes).
    """
    moves = [log(later / first) for later, first in zip(now.batch_ns, before.batch_ns, strict=True)]
    shown, noise, gains = [], [], []
    for move, error, first in zip(moves, now.errors, before.errors, strict=True):
        if abs(move) > _FAR * first:
            lost, gain = _UNSEEN, 1.0
            shown.append(move)
        else:
            lost = max(_UNSEEN, 1 - (error / max(error, first)) ** 2)
            gain = _OWN / (_OWN + 1 / lost - 1)
            shown.append(move / lost)
        noise.append(1 / lost - 1)
        gains.append(gain)
    factors, errors = [], []
    for (likely, share), own, gain, move, error, first in zip(
        _in_common(shown, noise), shown, gains, moves, now.errors, before.errors, strict=True
    ):
        factors.append(exp(likely + gain * (own - likely) - move))
        left = (1 - gain) ** 2 * share + _OWN * (1 - gain)
        errors.append(min(error, first * sqrt(left)) if gain < 1 else error)

    def moved(times: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(1, round(ns * factor)) for ns, factor in zip(times, factors, strict=True))

    return replace(
        now,
        batch_ns=moved(now.batch_ns),
        concurrency_ns={units: moved(times) for units, times in now.concurrency_ns.items()},
        by_length=tuple((length, moved(times)) for length, times in now.by_length),
        errors=tuple(errors),
    )


def _in_common(shown: Sequence[float], noise: Sequence[float]) -> list[tuple[float, float]]:
    """Mean and variance of the common part of each size's move, by a Kalman filter and smoother (H. Rauch, F. Tung,
    C. Striebel, Maximum Likelihood Estimates of Linear Dynamic Systems, 1965). `shown` has this variance of `noise`, as
    a share.
    """
    before: list[tuple[float, float]] = []  # from smaller sizes
    after: list[tuple[float, float]] = []  # and from its own batches
    mean, variance = 0.0, 1 - _OWN
    for size, (own, other) in enumerate(zip(shown, noise, strict=True), 1):
        like = (size - 1) / size
        mean, variance = like * mean, like**2 * variance + (1 - like**2) * (1 - _OWN)
        before.append((mean, variance))
        gain = variance / (variance + _OWN + other)
        mean, variance = mean + gain * (own - mean), variance * (1 - gain)
        after.append((mean, variance))
    found = [(mean, variance)]
    for size in range(len(after) - 1, 0, -1):  # and from larger ones
        (mean, variance), (expected, uncertain) = after[size - 1], before[size]
        gain = variance * size / (size + 1) / uncertain
        larger, known = found[-1]
        found.append((mean + gain * (larger - expected), variance + gain**2 * (known - uncertain)))
    return found[::-1]
