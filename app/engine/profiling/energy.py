"""The energy used since start, from the best available source, read at each scrape of the metrics.

    nvml            the GPU's own counter, through pynvml where that is installed
    powercap        a CPU's own counters (Linux); all packages, whatever else runs on them
    profile         the device's idle and busy power by a model's profile, times the idle and busy time
    busy_seconds    without any of these: seconds of work, as if the device drew 1 W

A counter that fails once is not read again; the next source starts from zero under its own name.
"""

from __future__ import annotations

import importlib
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

from app.observe.snapshot import Energy

log = logging.getLogger("starling.engine")

_POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"[\w-]+:\d+")  # a whole package; parts of it have another :number

#: Watts: idle, busy.
Watts = tuple[float, float]


class EnergyMeter:
    """Joules since construction. `counter`: the name of a source, and a function that returns its joules or raises."""

    def __init__(
        self, counter: tuple[str, Callable[[], float]] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counter = counter
        self._clock = clock
        self._began = clock()

    def read(self, busy_s: float, watts: Watts | None) -> Energy:
        """`busy_s`: seconds that all workers have spent on units. They share one device, so the elapsed time bounds it.

        Takes up to a millisecond: for a scrape, not for a call.
        """
        if self._counter is not None:
            name, joules = self._counter
            try:
                return Energy(name, joules())
            except Exception as exc:  # a file that can be read no more, a driver that went away
                log.warning("energy: %s is not used any more: %s: %s", name, type(exc).__name__, exc)
                self._counter = None
        passed = self._clock() - self._began
        busy = min(busy_s, passed)
        if watts is not None:
            idle, full = watts
            return Energy("profile", idle * (passed - busy) + full * busy)
        return Energy("busy_seconds", busy)


def find_meter(gpu: str | None = None) -> EnergyMeter:
    """A meter of this machine: of the GPU with this UUID, or else of the CPU."""
    name, joules = ("powercap", powercap()) if gpu is None else ("nvml", _nvml(gpu))
    return EnergyMeter(joules and (name, joules))


def _nvml(uuid: str) -> Callable[[], float] | None:
    """The GPU's counter, from zero; None without pynvml, or where the GPU has none (before Volta)."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        log.info("energy: pynvml is not installed, so the GPU's counter is not read")
        return None
    try:
        nvml.nvmlInit()
        # By UUID: NVML numbers all GPUs of the machine, CUDA those that are visible.
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        first = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as exc:  # NVML's own, and a TypeError of bindings that take the UUID as bytes
        log.warning("energy: the GPU's counter cannot be read: %s", exc)
        return None
    return lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - first) / 1e3


def powercap(root: Path = _POWERCAP) -> Callable[[], float] | None:
    """The counters of all packages, from zero; None: there are none, or only root may read them.

    Each wraps round at its own range: it is to be called at least once a minute. Raises OSError.
    """
    try:
        files = [zone / "energy_uj" for zone in sorted(root.iterdir()) if _PACKAGE.fullmatch(zone.name)]
        ranges = [int((file.parent / "max_energy_range_uj").read_text()) for file in files]
        last = [int(file.read_text()) for file in files]
    except (OSError, ValueError):
        return None
    total_uj = 0

    def joules() -> float:
        nonlocal total_uj
        for index, file in enumerate(files):
            value = int(file.read_text())
            total_uj += (value - last[index]) % (ranges[index] + 1)
            last[index] = value
        return total_uj / 1e6

    return joules if files else None
