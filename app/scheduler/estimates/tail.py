"""A value that 95 % of observations do not exceed: of the times of units over predictions, and of late timers.

A unit's time has a distribution, from its inputs, the machine and the event loop. Who counts on the mean is late every
second time. The quantile is followed by stochastic approximation (Robbins and Monro, 1951): an observation beyond it
raises it by 19 steps, any other lowers it by one, so that it rests where one in twenty is beyond it. Rows of such a
unit are not all late. A higher share leaves so much time unused where times vary much that more rows are lost
(`python -m experiments.many.deadlines`, batch times gamma:0.3: 94 % of calls in time, 81 % if 99 % of units keep it).
"""

from __future__ import annotations

_SHARE = 0.95  # of observations


class Tail:
    """`value`: what 95 % of observations do not exceed, from `least` to `most`: a machine that stalls has no tail."""

    __slots__ = ("_least", "_most", "_step", "value")

    def __init__(self, least: float, most: float, step: float) -> None:
        """`step`: by so much, nearly, one observation beyond the value raises it."""
        self.value = self._least = least
        self._most = most
        self._step = step

    def observe(self, seen: float) -> None:
        if seen > self.value:
            self.value = min(self._most, self.value + self._step * _SHARE)
        else:
            self.value = max(self._least, self.value - self._step * (1 - _SHARE))
