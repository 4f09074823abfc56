"""LoadGen's samples reach a server as rows, each is reported once whatever is answered, and its summary is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench.scripted import METADATA, Scripted, http, serving

from loadtest.loadgen import __main__ as loadgen
from loadtest.loadgen import scenarios
from loadtest.loadgen.scenarios import Scenario
from loadtest.loadgen.system import Library, Sample, System

SUMMARY = """================================================
MLPerf Results Summary
================================================
Scenario : Offline
Samples per second: 16989.9
Result is : VALID
  Min duration satisfied : Yes

50.00 percentile latency (ns)   : 2000000
90.00 percentile latency (ns)   : 3000000
99.00 percentile latency (ns)   : 4500000
samples_per_query : 66000
"""
SCENARIO = Scenario("Offline", 1.0, 8.0, 2, 3, 50.0)


def rows_of(request: bytes) -> int:
    head, _, body = request.partition(b"\r\n\r\n")
    (length,) = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"inference-header")]
    (tensor,) = json.loads(body[: int(length)])["inputs"]
    assert len(body) - int(length) == 4 * 2 * tensor["shape"][0]
    return int(tensor["shape"][0])


def answered(connection: Scripted, request: bytes) -> bytes:
    """Right, with a value for each row."""
    rows = rows_of(request)
    tensor = {"name": "y", "datatype": "FP32", "shape": [rows, 1], "parameters": {"binary_data_size": 4 * rows}}
    head = json.dumps({"outputs": [tensor]}).encode()
    return http(head + bytes(4 * rows), Inference_Header_Content_Length=len(head))


def refused(connection: Scripted, request: bytes) -> bytes:
    return http({"error": "full"}, 429)


def wrong(connection: Scripted, request: bytes) -> bytes:
    return http({"outputs": []})


async def sent(script: Any, samples: Sequence[Sample]) -> tuple[System, list[int], list[int]]:
    """A query that has been answered: its system, the samples reported, and the rows of each request."""
    done: list[int] = []
    async with serving(script) as server:
        system = System(
            f"127.0.0.1:{server.port}", Library(METADATA, 5), lambda part: done.extend(one.id for one in part),
            connections=2, rows=3,
        )  # fmt: skip
        system.issue(samples)
        await asyncio.to_thread(system.close)
        return system, sorted(done), sorted(map(rows_of, server.requests))


async def test_a_query_is_cut_into_requests_and_each_sample_is_reported_once() -> None:
    system, done, rows = await sent(answered, [Sample(10 + n, n % 5) for n in range(8)])
    assert done == list(range(10, 18))
    assert rows == [2, 3, 3]
    assert (system.requests, dict(system.faults)) == (3, {})


@pytest.mark.parametrize(("script", "fault"), [(refused, "status 429"), (wrong, "WrongAnswer: ")])
async def test_what_failed_is_counted_and_reported_all_the_same(script: Any, fault: str) -> None:
    system, done, _ = await sent(script, [Sample(n, n) for n in range(4)])
    assert done == [0, 1, 2, 3]
    assert sum(system.faults.values()) == 2
    assert all(kind.startswith(fault) for kind in system.faults)


class Generator:
    """Stands for LoadGen's module: issues one query of 7 samples and writes a summary."""

    def __init__(self, summary: str = SUMMARY) -> None:
        self.summary = summary
        self.TestSettings = SimpleNamespace
        self.TestScenario = SimpleNamespace(Offline="offline")
        self.TestMode = SimpleNamespace(PerformanceOnly="performance")
        self.settings: Any = None
        self.done: list[int] = []
        self.destroyed = 0

    def LogSettings(self) -> Any:  # noqa: N802
        return SimpleNamespace(log_output=SimpleNamespace())

    def ConstructSUT(self, issue: Any, flush: Any) -> Any:  # noqa: N802
        return issue

    def ConstructQSL(self, total: int, performance: int, load: Any, unload: Any) -> int:  # noqa: N802
        return total

    def DestroySUT(self, sut: Any) -> None:  # noqa: N802
        self.destroyed += 1

    DestroyQSL = DestroySUT

    def QuerySampleResponse(self, ident: int, data: int, size: int) -> int:  # noqa: N802
        return ident

    def QuerySamplesComplete(self, responses: list[int]) -> None:  # noqa: N802
        self.done += responses

    def StartTestWithLogSettings(self, sut: Any, qsl: int, settings: Any, logs: Any) -> None:  # noqa: N802
        self.settings = settings
        sut([SimpleNamespace(id=number, index=number % qsl) for number in range(7)])
        (Path(logs.log_output.outdir) / "mlperf_log_summary.txt").write_text(self.summary, encoding="utf-8")


async def test_a_scenario_is_played() -> None:
    generator = Generator()
    async with serving(answered) as server:
        found = await asyncio.to_thread(
            scenarios.play, generator, SCENARIO, f"127.0.0.1:{server.port}", Library(METADATA, 5)
        )
    assert sorted(generator.done) == list(range(7))
    assert (generator.settings.scenario, generator.settings.min_duration_ms) == ("offline", 1000)
    assert generator.settings.offline_expected_qps == 8.0
    assert (found["Result is"], found["requests"], generator.destroyed) == ("VALID", 3, 2)
    assert scenarios.samples_per_second(found) == 16989.9
    figures = {"facts": {}, "settings": {"seconds": 1, "rows": 3, "connections": 2, "latency_ms": 50, "at_once": 4}}
    text = loadgen.PAGE.text({**figures, "models": {"m": {"Offline": found}}})
    assert "| `m` | Offline | valid | 16,990 | 3 | 2.00 | 3.00 | 4.50 |" in text
    invalid = {"models": {"m": {"Offline": {**found, "Result is": "INVALID"}}}}
    assert loadgen.missed(invalid) == ["m, Offline: invalid"]
