"""What a batch costs beyond computing."""

from __future__ import annotations

_WEIGHT = 0.05  # of one observation: a mean over about the last 20 batches
_RETURN = 0.1  # share of the way back to the profile for each window in which no batch ran
_ROOM_NS = 100_000  # an observation counts as at most so far off, or as the current value if that is more


class Handover:
    """Nanoseconds that a batch costs beyond computing: to hand it to a worker, and to report its end.

    The profile has the value of an idle server. A busy server takes longer, and speeds change, so it is learnt online.
    Each observation moves it by a bounded step, so it follows what most batches cost: a worker that the system once
    left waiting for 10 ms is not a trend. `profiled` None: it costs nothing, and nothing is learnt.
    """

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
        """A batch on an otherwise idle worker took `spent_ns` beyond computing."""
        if not self._learns:
            return
        self._observed = True
        error = spent_ns - self._value
        if not -_ROOM_NS <= error <= _ROOM_NS:
            room = max(_ROOM_NS, self._value)
            error = max(-room, min(error, room))
        self._value = max(0.0, self._value + _WEIGHT * error)
        self.ns = int(self._value)

    def tick(self) -> None:
        """A window has closed. If nothing ran in it, the value moves back towards the profile, as in `Latency`."""
        if self._learns and not self._observed:
            self._value += _RETURN * (self._profiled - self._value)
            self.ns = int(self._value)
        self._observed = False
