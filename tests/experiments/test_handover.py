"""The figures of `experiments.costs.handover` are of the batches that ended while a load was on."""

from __future__ import annotations

import numpy as np

from experiments.costs.handover import HEADINGS, row, within

BATCHES = np.array([[10, 1, 1, 1], [20, 3_000, 1_000, 4], [30, 5_000, 1_000, 8], [40, 9, 9, 9]], np.int64)


def test_batches_within_windows() -> None:
    assert within(BATCHES, [(10, 11), (20, 40)])[:, 0].tolist() == [10, 20, 30]
    assert within(BATCHES, []).shape == (0, 4)


def test_a_row_has_medians_in_microseconds() -> None:
    told = row(8, "as-it-is", within(BATCHES, [(20, 40)]))
    assert told == ["8", "as-it-is", "2", "6.0", "4", "5", "1", "1", "5", "5"]
    assert len(told) == len(HEADINGS)
