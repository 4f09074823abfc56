"""The HTTP front of one replica: what each request costs it before it is admitted."""

from __future__ import annotations

import numpy as np

from .arrivals import Instants


class Front:
    """Handles one request after the other, as an event loop does, each in `cost_ns`. Without a cost it is not there.

    All of a request's cost, for reading it and for writing its answer, passes before it is admitted.
    """

    def __init__(self, cost_ns: int) -> None:
        self._cost_ns = cost_ns
        self._free = 0  # when the last request has been handled

    def through(self, arrived: Instants) -> tuple[list[int], list[int] | None]:
        """When the requests of the next chunk are handled, and how long before that each arrived."""
        if not self._cost_ns:
            return arrived.tolist(), None
        # Request i is handled at max over j <= i of (the arrival of j, or the end of those before) + (i - j + 1) costs.
        costs = self._cost_ns * np.arange(1, len(arrived) + 1, dtype=np.int64)
        begun = np.maximum(arrived, self._free)
        handled = np.maximum.accumulate(begun - costs + self._cost_ns) + costs
        self._free = int(handled[-1])
        return handled.tolist(), (handled - arrived).tolist()
