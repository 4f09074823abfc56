"""The CPU time of requests and their batches during some seconds of load, which `starling size --measure` measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
    def busy(self) -> float:
        """The share of time in which the front is busy, above 1 if helper threads work beside the loop."""
        return (self.loop_s + self.helpers_s) / self.seconds

    @property
    def batch_s(self) -> float:
        """Seconds that all batches took."""
        return sum(took for _, took in self.batches.values())

    @property
    def batch_count(self) -> float:
        return sum(count for count, _ in self.batches.values())

    def over(self, batch_ns: Sequence[int]) -> float:
        """The time of all batches over what a profile predicts. There must be some."""
        said = sum(count * batch_ns[min(size, len(batch_ns)) - 1] for size, (count, _) in self.batches.items())
        return self.batch_s * 1e9 / said
