"""The CPU time of requests and their batches during some seconds of load.

`starling size --measure` measures it with a server of its own; a running server measures itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.scheduler.estimates.fields import fault

_COUNTED = ("seconds", "requests", "loop_s", "helpers_s")


@dataclass(frozen=True, slots=True)
class FrontLoad:
    """Requests of one row each. `loop_s`, `helpers_s`: CPU seconds of the event loop and of all helper threads.

    `batches`: by size, their number and total seconds. `spread`: the standard deviation of a batch's time as a share of
    it.
    """

    seconds: float
    requests: float
    loop_s: float
    helpers_s: float
    batches: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    spread: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds

    @property
    def batch_count(self) -> float:
        return sum(count for count, _ in self.batches.values())

    def over(self, batch_ns: Sequence[int]) -> float:
        """The time of all batches over what a profile predicts. There must be some."""
        said = sum(count * batch_ns[min(size, len(batch_ns)) - 1] for size, (count, _) in self.batches.items())
        return sum(took for _, took in self.batches.values()) * 1e9 / said

    def after(self, earlier: FrontLoad, weight: float) -> FrontLoad:
        """Both loads added up, the earlier one multiplied by `weight`."""
        sums = {name: getattr(self, name) + weight * getattr(earlier, name) for name in _COUNTED}
        none = (0.0, 0.0)
        batches = {}
        for size in sorted(self.batches.keys() | earlier.batches.keys()):
            now, before = self.batches.get(size, none), earlier.batches.get(size, none)
            batches[size] = (now[0] + weight * before[0], now[1] + weight * before[1])
        return FrontLoad(**sums, batches=batches, spread=self.spread)

    def to_dict(self) -> dict[str, Any]:
        figures = {name: round(getattr(self, name), 6) for name in (*_COUNTED, "spread")}
        batches = {str(size): [round(count, 3), round(took, 6)] for size, (count, took) in self.batches.items()}
        return {**figures, "batches": batches}

    @classmethod
    def parse(cls, given: Any) -> FrontLoad:
        """The inverse of `to_dict`. Raises ValueError for anything else: files may have been edited."""
        try:
            batches = {int(size): (float(count), float(took)) for size, (count, took) in given["batches"].items()}
            figures = {name: float(given[name]) for name in (*_COUNTED, "spread")}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise fault("front", "loads as a server writes them", given) from None
        if not (figures["seconds"] > 0 < figures["requests"] and batches and min(batches) > 0):
            raise fault("front", "loads with requests and batches", given)
        return cls(**figures, batches=batches)
