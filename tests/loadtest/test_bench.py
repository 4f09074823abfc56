"""make bench: closed loops, the page, and what all programs here share."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from generator.scripted import http, sends, serving

from loadtest.bench import __main__ as bench
from loadtest.common.experiment import Experiment, Run
from loadtest.common.page import Data, Page
from loadtest.common.servers import Child, ServerError
from loadtest.generator import closed_loop, one_connection
from loadtest.generator.closed_loop import drive
from loadtest.generator.load import Load, LoadError, PreparedRequest

# The closed loop counts whole 200s within its seconds; the constant server answers each request once.


REQUEST = PreparedRequest("test", "/x", (("Content-Type", "text/plain"),), b"hello")


def load(port: int = 1, **changes: object) -> Load:
    return dataclasses.replace(Load(port, REQUEST, seconds=0.02, connections=2), **changes)


async def test_counts_right_answers_and_keeps_what_the_server_says() -> None:
    told = {"X_Batch_Size": 4, "Server_Timing": "queue;dur=0.5, compute;dur=1.5, total;dur=2.5"}
    async with serving(lambda connection, request: http(b"yes", **told)) as server:
        result = await drive(load(server.port, answer=b"yes", timed=3))
    assert result.failed == {}
    assert result.requests > 3 == len(result.timed)
    assert {(one.total_ms, one.queue_ms, one.compute_ms, one.batch) for one in result.timed} == {(2.5, 0.5, 1.5, 4)}
    assert all(one.latency_ms > 0 for one in result.timed)
    assert result.per_second == result.requests / 0.02


@pytest.mark.parametrize(
    ("answer", "failure"), [(http(b"yes", status=503), "status 503"), (http(b"no!"), "wrong answer")]
)
async def test_failures_are_told_apart(answer: bytes, failure: str) -> None:
    async with serving(lambda connection, request: answer) as server:
        result = await drive(load(server.port, answer=b"yes"))
    assert result.requests == 0
    assert list(result.failed) == [failure]


async def test_refusals_are_counted_by_their_status() -> None:
    """Of four requests one is answered and two are refused; the fourth fails, and is neither."""
    answers = itertools.cycle(
        [http(b"yes"), http(b"full", status=429), http(b"full", status=429), http(b"", status=500)]
    )
    async with serving(lambda connection, request: next(answers)) as server:
        result = await asyncio.to_thread(closed_loop.run, load(server.port, seconds=0.1, refusals=True))
    assert result.requests > 0
    assert abs(result.refused - 2 * result.requests) < 8
    assert abs(sum(result.failed.values()) - result.requests) < 8
    assert result.refused_per_second == result.refused / result.seconds


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http(b"full", status=429), "429"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "Content-Length"),
        (http(b"yes")[:-1], "ended after"),
    ],
)
async def test_one_connection_takes_nothing_but_whole_200s(answer: bytes, why: str) -> None:
    async with serving(sends(answer, close=True)) as server:
        with pytest.raises(LoadError, match=why):
            await asyncio.to_thread(one_connection.run, load(server.port, connections=1))


# Targets say what they mean, and a child is stopped.


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


# What all experiments share: options, figures kept as JSON, the page made of them, and nothing of it run twice.


TEXT = """\
# X

{% if seeds|length > 5 %}
Many.
{% endif %}

{{ head("seed", "of") }}
{% for seed in seeds %}
| {{ NAME }} | {{ seed }} |
{% endfor %}

{{ missed }}
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """An experiment, by what measures it and the targets that it misses."""
    (tmp_path / "x.template").write_text(TEXT)
    module = ModuleType("x")
    vars(module).update(NAME="a", __file__=str(tmp_path / "x.py"))
    monkeypatch.setitem(sys.modules, "x", module)

    def experiment(measure: Any, missed: Sequence[str] = (), **more: Any) -> Experiment:
        page = Page("x", "x", lambda data: missed)
        options = lambda parser: parser.add_argument("--seeds", type=int, default=2)  # noqa: E731
        return Experiment(page, "loadtest.x", "Text.", measure, options, **more)

    return experiment


def seeds(chosen: argparse.Namespace, run: Run) -> Data:
    return {"seeds": np.arange(chosen.seeds)}


def test_figures_are_kept_and_the_page_is_made_of_them(made: Any, tmp_path: Path) -> None:
    assert made(seeds).main(["--seeds", "3", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "x.json").read_text())
    assert data["seeds"] == [0, 1, 2]
    assert data["facts"]["command"] == "`python -m loadtest.x --seeds 3`"  # without this machine's folder
    assert data["facts"]["cores"]
    assert (tmp_path / "x.md").read_text() == (
        "# X\n\n| seed | of |\n| --- | --- |\n| a | 0 |\n| a | 1 |\n| a | 2 |\n\nAll targets are met.\n"
    )


def test_a_page_is_made_again_and_nothing_is_run(made: Any, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"facts": {}, "seeds": [7]}')

    def run_again(chosen: argparse.Namespace, run: Run) -> Data:
        raise AssertionError("measured")

    assert made(run_again).main(["--page", str(tmp_path / "old.json"), "--out", str(tmp_path)]) == 0
    assert "| a | 7 |" in (tmp_path / "x.md").read_text()
    assert made(run_again).main(["--page", str(tmp_path / "none.json"), "--out", str(tmp_path)]) == 1


def test_what_was_kept_before_a_fault_stays(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def half(chosen: argparse.Namespace, run: Run) -> Data:
        run.keep({"seeds": [1]})
        raise ServerError("the server ended")

    assert made(half).main(["--out", str(tmp_path)]) == 1
    assert "the server ended" in capsys.readouterr().err
    assert "| a | 1 |" in (tmp_path / "x.md").read_text()


def test_missed_targets_are_the_status(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = made(seeds, ["too few"])
    assert strict.main(["--out", str(tmp_path)]) == 1
    assert "too few" in capsys.readouterr().err
    assert (tmp_path / "x.json").exists()
    assert "Targets missed:\n\n- too few\n" in (tmp_path / "x.md").read_text()
