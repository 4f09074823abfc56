"""Cases make figures of what their loads found: here of made-up loads, with no server."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.bench import cases
from loadtest.bench.figures import Figure
from loadtest.bench.load import Request, Result
from loadtest.bench.session import Measured, Plan
from loadtest.common.servers import Server

METADATA = {"name": "echo", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}
Answer = Callable[[Any, Request], Result]


def result(requests: int = 100, refused: int = 0, p50_ms: float = 1.0, p99_ms: float = 2.0) -> Result:
    """That of one second."""
    return Result(requests, 1.0, p50_ms, p99_ms, p99_ms, refused=refused)


class Loads:
    """A session whose loads end at once, with the results that `answer` makes up for a server and a request."""

    def __init__(self, answer: Answer, shared: Any) -> None:
        self.plan = Plan(rounds=2)
        self.answer = answer
        self.server = shared

    def starling(self) -> Any:
        return self.server

    def request(self, model: str, make: Callable[[dict[str, object]], Request]) -> Request:
        return make({**METADATA, "name": model})

    def load(self, server: Any, request: Request, seconds: float | None = None, refusals: bool = False) -> Measured:
        return Measured(self.answer(server, request), 50.0)

    def alone(self, server: Any, request: Request, seconds: float | None = None) -> Result:
        return self.answer(server, request)

    def checked(self, server: Any, request: Request) -> None:
        """Every answer is right."""

    def warm_up(self, server: Any, *requests: Request) -> None:
        """Nothing gets warm."""


def fake_server(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        process=SimpleNamespace(pid=1),
        wait_ready=lambda *_: 0.0,
        metadata=lambda model: {**METADATA, "name": model},
    )


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[[cases.Case, Answer], dict[str, Figure]]:
    """Run a case over made-up loads of two servers, `ours` and `bare`; returns its figures by name."""

    def run(case: cases.Case, answer: Answer) -> dict[str, Figure]:
        ours, bare = fake_server("ours"), fake_server("bare")
        monkeypatch.setattr(cases, "starling", lambda *_: nullcontext(ours))
        monkeypatch.setattr(cases, "bare_echo", lambda: nullcontext(bare))
        monkeypatch.setattr(cases, "answer_of", lambda *_: ({}, b""))
        monkeypatch.setattr(cases.bodies, "check", lambda *_: None)
        session: Any = Loads(answer, ours)
        return {figure.what: figure for figure in case(session)}

    return run


def test_echo_is_compared_with_the_bare_echo_of_the_same_body(measure: Any) -> None:
    rates = {("ours", "echo JSON"): 90, ("bare", "echo JSON"): 100, ("ours", "echo binary"): 70}
    figures = measure(cases.echo, lambda server, request: result(rates.get((server.name, request.name), 140)))
    json, binary = (figures[f"echo against bare ASGI echo, V2 {wire}"] for wire in ("JSON", "binary"))
    assert (json.rounds, json.met, json.target.aim) == ((0.9, 0.9), True, 1.0)
    assert (binary.rounds, binary.met) == ((0.5, 0.5), False)


def test_latency_of_one_connection_has_two_targets(measure: Any) -> None:
    times = {"ours": result(p50_ms=0.15, p99_ms=0.9), "bare": result(p50_ms=0.1)}
    figures = measure(cases.latency, lambda server, _: times[server.name])
    ratio, tail = (figures[name] for name in figures if figures[name].target is not None)
    assert (ratio.what, ratio.rounds[0], ratio.met) == (
        "echo against bare ASGI echo, one connection: p50", pytest.approx(1.5), True,
    )  # fmt: skip
    assert (tail.what, tail.median, tail.met) == ("echo, V2 JSON, one connection: p99", 0.9, True)


def test_refusals_count_429s_alone(measure: Any) -> None:
    loads = {"ours": result(10, refused=990), "bare": result(1100)}
    figures = measure(cases.refusals, lambda server, _: loads[server.name])
    refused = figures["sleep, its queue full: refused with 429"]
    assert (refused.rounds, refused.note) == ((990.0, 990.0), "99.0% of all requests, the others were answered")
    ratio = figures["refusals against bare ASGI echo"]
    assert (ratio.rounds, ratio.met) == ((0.9, 0.9), True)


def test_memory_is_what_the_requests_added(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough requests are sent, of each model in turn, and only what comes after the warm-up counts."""
    resident = itertools.cycle([300.0, 306.5])
    monkeypatch.setattr(cases, "resident_mib", lambda pid: next(resident))
    sent: list[str] = []

    def answer(server: Server, request: Request) -> Result:
        sent.append(request.name)
        return result(40_000)

    figures = measure(cases.memory, answer)
    added = figures["demo: what these requests added"]
    assert (added.rounds, added.unit, added.met) == ((6.5, 6.5), "MiB", True)
    assert figures["demo, after a warm-up: resident memory"].median == 300
    assert sent == ["echo JSON", "digits JSON", "echo JSON"] * 2
