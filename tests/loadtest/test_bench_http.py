"""Targets say what they mean, and a child is stopped."""

from __future__ import annotations

import sys

from loadtest.bench import __main__ as bench
from loadtest.common.servers import Child


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
