"""The energy that serving has cost since start, from the best source there is, read when somebody scrapes.

    nvml            the GPU's own counter, through pynvml where that is installed
    powercap        a CPU's own counters (Linux); all packages, whatever else runs on them
    profile         the power that a model's profile says the device draws idle and busy, times the time it was
    busy_seconds    nothing is known: seconds of work, as if the device drew 1 W

A source that fails once is not asked again; the next one goes on from zero under its own name.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable

from app.engine.profiling import powercap
from app.metrics import Energy

log = logging.getLogger("starling.engine")

#: Watts: idle, busy.
Watts = tuple[float, float]


class EnergyMeter:
    """Joules since it was made. `sources` are tried in order: a name, and what gives joules since start or raises."""

    def __init__(
        self, sources: list[tuple[str, Callable[[], float]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = list(sources)
        self._clock = clock
        self._began = clock()

    def read(self, busy_s: float, watts: Watts | None) -> Energy:
        """`busy_s`: seconds that workers have spent on units, together; they are one device, so no more than the time.

        A few microseconds to a millisecond: for a scrape, not for a call.
        """
        while self._sources:
            name, joules = self._sources[0]
            try:
                return Energy(name, joules())
            except Exception as exc:  # a file that can be read no more, a driver that went away
                log.warning("energy: %s is not used any more: %s: %s", name, type(exc).__name__, exc)
                del self._sources[0]
        passed = self._clock() - self._began
        busy = min(busy_s, passed)
        if watts is not None:
            idle, full = watts
            return Energy("profile", idle * (passed - busy) + full * busy)
        return Energy("busy_seconds", busy)


def find_meter(gpu: str | None = None) -> EnergyMeter:
    """A meter of this machine: of the GPU with this UUID, or else of the CPU."""
    sources: list[tuple[str, Callable[[], float]]] = []
    if gpu is not None:
        joules = _nvml(gpu)
        if joules is not None:
            sources.append(("nvml", joules))
    else:
        counter = powercap.find()
        if counter is not None:
            sources.append(("powercap", counter.joules))
    return EnergyMeter(sources)


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
