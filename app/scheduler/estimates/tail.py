"""By how much units take longer than predicted: the factor that 99 % of them keep.

A unit's time has a distribution, from its inputs, the machine and the event loop. Who counts on the mean is late every
second time. The quantile is followed by stochastic approximation (Robbins and Monro, 1951): a unit beyond it raises it
by 99 steps, any other lowers it by one, so that it rests where one unit in a hundred is beyond it.
"""

from __future__ import annotations

_SHARE = 0.99  # of units
_STEP = 0.05  # so that five units in a row that take 1.25 times as long are followed


class Tail:
    """`factor`: observed over predicted time that 99 % of units do not exceed, at least 1."""

    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0

    def observe(self, took_ns: int, predicted_ns: int) -> None:
        """A unit has taken so long."""
        if took_ns > self.factor * predicted_ns:
            self.factor += _STEP * _SHARE
        else:
            self.factor = max(1.0, self.factor - _STEP * (1 - _SHARE))
