"""A running quantile: used for how late timers fire.

Planning with the mean would be too late half of the time. The quantile is tracked by stochastic approximation (Robbins
and Monro, 1951). For the 95 % quantile, an observation above the value raises it by 19 steps and any other lowers it by
one, so it settles where one in twenty is above.
"""

from __future__ import annotations


class RunningQuantile:
    """`value`: not exceeded by `share` of the observations, and kept between `least` and `most`.

    The upper bound keeps a rare stall from counting as normal.
    """

    __slots__ = ("_down", "_least", "_most", "_up", "value")

    def __init__(self, share: float, least: float, most: float, step: float) -> None:
        """`step`: about how much one observation above the value raises it."""
        self.value = self._least = least
        self._most = most
        self._up, self._down = step * share, step * (1 - share)

    def observe(self, seen: float) -> None:
        if seen > self.value:
            self.value = min(self._most, self.value + self._up)
        else:
            self.value = max(self._least, self.value - self._down)
