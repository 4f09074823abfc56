"""What batches of some sizes have shown, carried over to others.

Errors of neighbours are alike: a warm-up's times are drawn through those of all sizes. If the sizes that run were
measured too slow, that counts as a fast device, and all larger ones seem faster than they are until they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

from app.scheduler.estimates.profile import Profile

_OWN = 0.5  # share of a size's variance that it has by itself: kernels are made for some sizes
_FAR = 3.0  # standard deviations beyond which a move is the size's own
_UNSEEN = 1e-9  # share of its variance that a size has lost if it has not run


def carried(now: Profile, before: Profile) -> Profile:
    """`now`, whose sizes have moved each by itself since `before`, with the moves that their neighbours make likely.

    A move has a part of its own and one in common with neighbours, a Gauss-Markov process along the logarithm of the
    size: it correlates by the ratio of two sizes. How well a size is known stays as it is. O(sizes).
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
    factors = [
        exp(likely + gain * (own - likely) - move)
        for likely, own, gain, move in zip(_in_common(shown, noise), shown, gains, moves, strict=True)
    ]

    def moved(times: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(1, round(ns * factor)) for ns, factor in zip(times, factors, strict=True))

    return replace(
        now,
        batch_ns=moved(now.batch_ns),
        concurrency_ns={units: moved(times) for units, times in now.concurrency_ns.items()},
        by_length=tuple((length, moved(times)) for length, times in now.by_length),
    )


def _in_common(shown: Sequence[float], noise: Sequence[float]) -> list[float]:
    """The expected common part of each size's move, by a Kalman filter and smoother (H. Rauch, F. Tung, C. Striebel,
    Maximum Likelihood Estimates of Linear Dynamic Systems, 1965). `shown` has this variance of `noise`, as a share.
    """
    before: list[tuple[float, float]] = []  # mean and variance: from smaller sizes
    after: list[tuple[float, float]] = []  # and from its own batches
    mean, variance = 0.0, 1 - _OWN
    for size, (own, other) in enumerate(zip(shown, noise, strict=True), 1):
        like = (size - 1) / size
        mean, variance = like * mean, like**2 * variance + (1 - like**2) * (1 - _OWN)
        before.append((mean, variance))
        gain = variance / (variance + _OWN + other)
        mean, variance = mean + gain * (own - mean), variance * (1 - gain)
        after.append((mean, variance))
    found = [mean]
    for size in range(len(after) - 1, 0, -1):  # and from larger ones
        (mean, variance), (expected, uncertain) = after[size - 1], before[size]
        found.append(mean + variance * size / (size + 1) / uncertain * (found[-1] - expected))
    return found[::-1]
