"""What a batch costs beyond computing: giving it to a worker, and hearing of its end.

The profile says how much on a server that has nothing else to do. A busy one takes longer, and a machine has its moods,
so it is kept true online. Each observation moves it by a bounded step: what is followed is what most batches cost, and
a worker that the system left waiting for 10 ms is not a trend.
"""

from __future__ import annotations

_WEIGHT = 0.05  # of one observation: about the last 20 batches, as for the scale of batch times
_ROOM_NS = 100_000  # an observation counts as at most so far off, or as far as the present value where that is more
_RETURN = 0.1  # of the way back to the profile, for each window in which no batch ran


class Handover:
    """Nanoseconds that a batch costs beyond computing. `profiled` None: nothing, and nothing is learnt."""

    __slots__ = ("_learns", "_observed", "_profiled", "_value", "ns")

    def __init__(self, profiled: int | None) -> None:
        self.ns = profiled or 0
        self._profiled = self._value = float(self.ns)
        self._learns = profiled is not None
        self._observed = False

    @property
    def profiled_ns(self) -> int:
        return int(self._profiled)

    def observe(self, spent_ns: int) -> None:
        """A batch whose worker had nothing else cost so much beyond computing."""
        if not self._learns:
            return
        self._observed = True
        room = max(_ROOM_NS, self._value)
        error = max(-room, min(spent_ns - self._value, room))
        self._set(max(0.0, self._value + _WEIGHT * error))

    def tick(self) -> None:
        """A window has closed. One in which nothing ran moves it back towards the profile, see `latency`."""
        if self._learns and not self._observed:
            self._set(self._value + _RETURN * (self._profiled - self._value))
        self._observed = False

    def _set(self, value: float) -> None:
        self._value = value
        self.ns = int(value)
