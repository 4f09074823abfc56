"""How long a batch will take: the measured table times one scale that is kept true online.

The table keeps the curve's shape, which is neither linear nor monotone on real hardware (three rows can take longer
than four); the scale follows the machine's mood. One scale for all sizes, because traffic visits only a few sizes and a
table updated size by size would mix moods.
"""

from __future__ import annotations

from collections.abc import Sequence

from .types import Profile

_WEIGHT = 0.05  # of one observation in the scale: about the last 20 batches
_OUTLIER = 4.0  # an observation counts at most so many times the prediction: a page fault is not a trend


class Latency:
    """Predicts batch times in nanoseconds from a profile and what was observed."""

    __slots__ = ("_table", "scale")

    def __init__(self, profile: Profile) -> None:
        self._table: Sequence[int] = profile.batch_ns
        self.scale = 1.0

    @property
    def known(self) -> bool:
        return bool(self._table)

    def predict(self, size: int) -> int:
        """Nanoseconds for a batch of `size`; 0 where nothing is known. Beyond the table: the last entry's slope."""
        return int(self._profiled(size) * self.scale) if self._table else 0

    def observe(self, size: int, compute_ns: int) -> None:
        """Move the scale towards what a batch of `size` took."""
        if not self._table or compute_ns <= 0:
            return
        base = self._profiled(size)
        if base <= 0:
            return
        ratio = min(compute_ns / base, self.scale * _OUTLIER)
        self.scale += _WEIGHT * (ratio - self.scale)

    def _profiled(self, size: int) -> float:
        table = self._table
        return table[size - 1] if size <= len(table) else table[-1] * size / len(table)
