"""LoadGen's scenarios: their settings, a run of one, and what LoadGen says of it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.common.servers import MeasurementError
from loadtest.loadgen.system import Library, Sample, System

_LEAST_LATENCY_NS = 100_000  # LoadGen makes as many queries before a run as could be answered one after another
_LINE = re.compile(r"^ *([^:\n]+?) *: *(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Scenario:
    """One run, of the name that LoadGen has for it. `rate`: samples a second that are expected; Server asks for them.

    `connections` that send at once, each requests of at most `rows` rows. `latency_ms`: Server's bound at 99 %.
    """

    name: str
    seconds: float
    rate: float
    connections: int
    rows: int
    latency_ms: float

    def settings(self, loadgen: Any) -> Any:
        """As LoadGen has them."""
        settings = loadgen.TestSettings()
        settings.scenario = getattr(loadgen.TestScenario, self.name)
        settings.mode = loadgen.TestMode.PerformanceOnly
        settings.min_duration_ms = round(self.seconds * 1000)
        settings.max_duration_ms = 3 * settings.min_duration_ms
        settings.min_query_count = 1
        settings.single_stream_expected_latency_ns = settings.multi_stream_expected_latency_ns = _LEAST_LATENCY_NS
        settings.offline_expected_qps = self.rate  # Offline issues as many samples at once as this takes its time for
        settings.server_target_qps = self.rate
        settings.server_target_latency_ns = round(self.latency_ms * 1e6)
        return settings


def play(loadgen: Any, scenario: Scenario, address: str, library: Library) -> dict[str, Any]:
    """Run a scenario; LoadGen's summary by name, with `requests` sent. Raises MeasurementError for wrong answers."""

    def complete(samples: Sequence[Sample]) -> None:
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

    system = System(address, library, complete, connections=scenario.connections, rows=scenario.rows)
    sut = loadgen.ConstructSUT(
        lambda samples: system.issue([Sample(sample.id, sample.index) for sample in samples]), lambda: None
    )
    qsl = loadgen.ConstructQSL(library.count, library.count, lambda indices: None, lambda indices: None)
    with tempfile.TemporaryDirectory(prefix="starling-loadgen-") as folder:
        logs = loadgen.LogSettings()
        logs.log_output.outdir = folder
        logs.log_output.copy_summary_to_stdout = False
        try:
            loadgen.StartTestWithLogSettings(sut, qsl, scenario.settings(loadgen), logs)
        finally:
            system.close()
            loadgen.DestroyQSL(qsl)
            loadgen.DestroySUT(sut)
        found = summary((Path(folder) / "mlperf_log_summary.txt").read_text(encoding="utf-8"))
    if system.faults:
        told = "; ".join(f"{count} x {fault}" for fault, count in system.faults.most_common(3))
        raise MeasurementError(f"{scenario.name}: {sum(system.faults.values())} of {system.requests} failed: {told}")
    return {**found, "requests": system.requests}


def summary(text: str) -> dict[str, Any]:
    """What LoadGen's summary says, by its own names; numbers as numbers. Raises MeasurementError without a result."""
    found = {name: _number(value) for name, value in _LINE.findall(text)}
    if "Result is" not in found:
        raise MeasurementError("LoadGen's summary has no result")
    return found


def samples_per_second(found: dict[str, Any]) -> float:
    """Of any scenario: each has a name of its own for it, and MultiStream says how long a query takes."""
    for name in ("Samples per second", "Completed samples per second", "QPS w/ loadgen overhead"):
        if name in found:
            return float(found[name])
    return float(found["samples_per_query"]) * 1e9 / float(found["Mean latency (ns)"])


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
