"""Helpers for experiments with live servers: the peak of a server, and the CPU time of other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from app.bench.peak import Try, find_peak
from app.bench.plan import Plan
from app.bench.run import in_loop
from app.bench.stats import Repeat
from loadtest.common.servers import MeasurementError, Server


def peak_rate(plan: Plan, slo_ms: float, try_s: float, say: Callable[[str], None]) -> float:
    """The largest rate whose 99th percentile stays within `slo_ms`; each rate is tried for `try_s` seconds."""

    def told(tried: Try) -> None:
        say(f"peak: {tried.rate:.0f}/s {tried.why or 'kept'}")

    rate = in_loop(find_peak(replace(plan, duration_s=try_s, repeats=1), slo_ms, told)).result.plan.rate
    assert rate is not None
    return rate


def right(name: str, repeat: Repeat) -> Repeat:
    """The run, if every answer is right. Raises MeasurementError with the name of who was asked."""
    for example in repeat.examples.values():
        raise MeasurementError(f"{name}: {example}")
    return repeat


class OtherProcesses:
    """Measures how many cores processes other than these servers and this one use (Linux only)."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self._began_s = time.perf_counter()
        self._before_s = self._used_s()

    def cores(self) -> float | None:
        """The average since the object was made; None if the platform does not report it."""
        now_s = self._used_s()
        if now_s is None or self._before_s is None:
            return None
        return max(0.0, now_s - self._before_s) / (time.perf_counter() - self._began_s)

    def _used_s(self) -> float | None:
        """CPU time of all processes except the servers and this one since the machine started."""
        used = [server.cpu_seconds() for server in self._servers]
        known = [seconds for seconds in used if seconds is not None]
        if len(known) < len(used):
            return None
        ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - sum(known) - time.process_time()
