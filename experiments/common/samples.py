"""Statistics of independent runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values; 0 for one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
