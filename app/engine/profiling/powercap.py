"""The energy that a CPU's own counters report (Linux powercap), where the machine has them and lets us read them."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"[\w-]+:\d+")  # a whole package; parts of it have another :number


class EnergyCounter:
    """Joules of all packages since the counter was made. Each counter wraps round at its own range."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._ranges = [int((file.parent / "max_energy_range_uj").read_text()) for file in files]
        self._last = [int(file.read_text()) for file in files]
        self._total_uj = 0

    def joules(self) -> float:
        """Call it at least once a minute, or a counter may wrap round unseen. Raises OSError."""
        for index, file in enumerate(self._files):
            value = int(file.read_text())
            self._total_uj += (value - self._last[index]) % (self._ranges[index] + 1)
            self._last[index] = value
        return self._total_uj / 1e6


def find(root: Path = _ROOT) -> EnergyCounter | None:
    """The counter of this machine, or None: there is none, or only root may read it."""
    try:
        zones = sorted(zone for zone in root.iterdir() if _PACKAGE.fullmatch(zone.name))
        counter = EnergyCounter([zone / "energy_uj" for zone in zones]) if zones else None
    except (OSError, ValueError):
        return None
    return counter
