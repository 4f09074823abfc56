"""The words in device memory by which a worker's graphs know whether to go on: its guard.

Each captured stage asks first, and does nothing once its unit has been recalled. Two streams write, each words of its
own, so no order of theirs loses a recall or stops a unit that was not meant: what is compared are numbers of units,
which no scheduler uses twice, and nothing is ever taken back.
"""

from __future__ import annotations

import torch

from app.engine.devices.streams.runtime import Runtime

_NOBODY, _NEVER = -2, -3  # no unit has such a number


class Words:
    """Of one worker, which runs one unit at a time. All but `recall` is for work on that worker's stream."""

    def __init__(self, runtime: Runtime) -> None:
        words = runtime.empty((3,), torch.int64)
        self._recalled, self._running, self.made = words[0], words[1], words[2]
        self._go = runtime.empty((), torch.bool)

    def clear(self) -> None:
        """Before the first unit."""
        self._recalled.fill_(_NEVER)
        self.begin()

    def begin(self) -> None:
        """A unit begins. Its first stage or step runs in any case: the core knows of no unit that made none."""
        self._running.fill_(_NOBODY)
        self.made.zero_()

    def go_on(self, unit: int) -> None:
        """From here on the unit can be recalled."""
        self._running.fill_(unit)

    def ask(self) -> torch.Tensor:
        """A bool on the device: what comes next is to run."""
        torch.ne(self._recalled, self._running, out=self._go)
        return self._go

    def recall(self, unit: int) -> None:
        """On a stream of its own. Whoever asks from now on for this unit is told no."""
        self._recalled.fill_(unit)
