"""Figures keep their rounds, targets say what they mean, and what the tools print is read back."""

from __future__ import annotations

import sys

import pytest

from experiments.costs import profile
from loadtest.bench import http_page, wrk
from loadtest.bench.figures import Figure, Target
from loadtest.bench.load import LoadError
from loadtest.common.servers import Child


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(0.55, aim=0.7), 0.54, "NO"),
        (Target(0.55, aim=0.7), 0.55, "yes"),
        (Target(0.55, aim=0.7), 0.7, "yes, and the aim"),
        (Target(5, at_most=True), 5.0, "yes"),
        (Target(5, at_most=True), 5.1, "NO"),
        (None, 1.0, ""),
    ],
)
def test_targets(target: Target | None, value: float, met: str) -> None:
    assert http_page.met(Figure("x", "ratio", (value, 0.0, 9.0), target).to_dict()) == met


def test_wrk_output() -> None:
    failed = '"failed":{"connect":0,"read":2,"write":0,"status":10,"timeout":0}'
    line = f'RESULT {{"requests":100,"refused":40,"us":2000000,"p50_us":1500,"p90_us":2000,"p99_us":3000,{failed}}}'
    result = wrk.parse(f"Running 2s test\n{line}\n")
    assert (result.requests, result.per_second, result.p50_ms) == (100, 50.0, 1.5)
    assert (result.refused, result.refused_per_second) == (40, 20.0)
    assert result.failed == {"read": 2, "status": 10}
    with pytest.raises(LoadError, match="no such host"):
        wrk.parse("", "no such host")


def test_profile_separates_threads() -> None:
    raw = (
        "thread (11): MainThread;main (a.py:1);loop (b.py:2) 60\n"
        "thread (11): MainThread;main (a.py:1);loop (b.py:9);loop (b.py:2) 20\n"
        "thread (11): MainThread;main (a.py:1) 20\n"
        "thread (0x7F): worker;run (w.py:5) 30\n"
        "not a line of py-spy\n"
    )
    main, worker = profile.parse(raw)
    assert (main.name, main.samples, worker.name, worker.samples) == ("MainThread", 100, "worker", 30)
    assert main.top() == [("loop (b.py)", 0.8, 0.8), ("main (a.py)", 0.2, 1.0)]


def test_a_child_is_stopped_and_its_words_kept() -> None:
    with Child([sys.executable, "-c", "print('bad setting'); raise SystemExit(2)"]) as child:
        assert child.process.wait(30) == 2
        assert child.last_output() == "bad setting"
    assert child.process.returncode == 2
    with Child([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        assert child.process.poll() is None
    assert child.process.returncode is not None
