"""Figures keep their rounds, targets say what they mean, and what the tools print is read back."""

from __future__ import annotations

import sys

import pytest

from loadtest.bench import __main__ as bench
from loadtest.bench.figures import Figure, Target
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
    assert bench.met(Figure("x", "ratio", (value, 0.0, 9.0), target).to_dict()) == met


def test_a_run_of_some_cases_leaves_the_committed_page_alone() -> None:
    assert bench.EXPERIMENT.parse([]).out == bench.DOCS
    for options in (["echo"], ["--rounds", "3"], ["--server", "python -m app"]):
        assert bench.EXPERIMENT.parse(options).out == bench.ROOT / "out" / "bench"


def test_a_child_is_stopped_and_its_words_kept() -> None:
    with Child([sys.executable, "-c", "print('bad setting'); raise SystemExit(2)"]) as child:
        assert child.process.wait(30) == 2
        assert child.last_output() == "bad setting"
    assert child.process.returncode == 2
    with Child([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        assert child.process.poll() is None
    assert child.process.returncode is not None
