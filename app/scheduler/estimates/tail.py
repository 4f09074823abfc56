"""A value that a share of observations do not exceed: of the times of units over predictions, and of late timers.

A unit's time has a distribution, from its inputs, the machine and the event loop. Who counts on the mean is late every
second time. The quantile is followed by stochastic approximation (Robbins and Monro, 1951): for a share of 0.95 an
observation beyond it raises it by 19 steps, any other lowers it by one, so that it rests where one in twenty is beyond.
"""

from __future__ import annotations


class Tail:
    """`value`: what `share` of observations do not exceed, from `least` to `most`, since stalls are no tail."""

    __slots__ = ("_down", "_least", "_most", "_up", "value")

    def __init__(self, share: float, least: float, most: float, step: float) -> None:
        """`step`: by so much, nearly, one observation beyond the value raises it."""
        self.value = self._least = least
        self._most = most
        self._up, self._down = step * share, step * (1 - share)

    def observe(self, seen: float) -> None:
        if seen > self.value:
            self.value = min(self._most, self.value + self._up)
        else:
            self.value = max(self._least, self.value - self._down)
