"""The command: what it prints where, its exit status, and what it says of a bad option. Nothing is sent anywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from background import ended
from generator.made import repeat, result
from typer.testing import Result

from loadtest.generator import peak, run
from loadtest.generator.peak import Peak, Try
from loadtest.generator.plan import BenchPlan

from . import running
from .running import assert_refused

ROOT = Path(__file__).parents[2]
ONE = ("bench", "localhost:1", "--model", "m")


def invoke(*arguments: str) -> Result:
    return running.invoke(*ONE, *arguments)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[BenchPlan]:
    """The plans that were to be measured; each gives the same two runs."""
    given: list[BenchPlan] = []

    async def measure(plan: BenchPlan) -> run.Result:
        given.append(plan)
        return result(repeat([1.0] * 20), repeat([2.0] * 20))

    monkeypatch.setattr(run, "measure", measure)
    return given


def test_options_reach_the_plan(plans: list[BenchPlan]) -> None:
    found = invoke(
        "--rate", "50", "--arrivals", "gamma:2", "--duration", "3", "--repeats", "7", "--warmup", "0", "--seed", "4",
        "--payload", "binary", "--rows", "2", "--lengths", "lognormal:14:4:128", "--shape", "x:3", "--shape", "y:4",
        "--deadline-ms", "20", "--header", "A: b", "--check", "shapes", "--connections", "9", "--timeout", "5",
        "--max-lag-ms", "3",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert plans == [
        BenchPlan(
            url="localhost:1", model="m", rate=50, arrivals="gamma:2", duration_s=3, repeats=7, warmup_s=0, seed=4,
            payload="binary", rows=2, lengths="lognormal:14:4:128", shapes=("x:3", "y:4"), deadline_ms=20,
            headers=("A: b",), check="shapes", connections=9, timeout_s=5, max_lag_ms=3,
        )
    ]  # fmt: skip


def test_table_and_json(plans: list[BenchPlan]) -> None:
    assert "40 requests, 40 answered rightly" in invoke("--rate", "100").stdout
    found = invoke("--rate", "100", "--json")
    assert json.loads(found.stdout)["mean_ms"] == 1.5
    assert found.stderr == ""  # no terminal, no bar


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_lag_is_status_3_beside_what_was_measured(monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]) -> None:
    measured = '"doubt": "lag: too late"' if more else "1 requests, 1 answered rightly"
    for kept, words in ((None, ""), (result(repeat([1.0])), measured)):

        async def measure(plan: BenchPlan, kept: run.Result | None = kept) -> run.Result:
            raise run.Lagging("lag: too late", kept)

        monkeypatch.setattr(run, "measure", measure)
        found = invoke("--rate", "100", *more)
        assert (found.exit_code, found.stderr) == (3, "starling: lag: too late\n")
        assert words in found.stdout
        assert bool(found.stdout) == bool(words)


def test_find_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_peak(plan: BenchPlan, slo_ms: float, told: Callable[[Try], None]) -> Peak:
        assert (plan.rate, plan.concurrency, slo_ms) == (None, None, 50)
        told(Try(100, 1.0, 100, ""))
        return Peak(result(repeat([1.0] * 20)), (Try(100, 1.0, 100, ""),))

    monkeypatch.setattr(peak, "find_peak", find_peak)
    found = invoke("--find-peak", "--slo-ms", "50", "--json")
    assert found.exit_code == 0, found.output
    (tried,) = json.loads(found.stdout)["tries"]
    assert tried == {"rate": 100, "p99_ms": 1.0, "throughput": 100, "why": "", "kept": True}
    assert "100.0/s" in found.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "rate: expected one of --rate, --concurrency and --find-peak"),
        (("--rate", "5", "--find-peak"), "rate: expected one of"),
        (("--rate", "0"), "rate: expected requests per second above 0, got 0.0"),
        (("--find-peak", "--slo-ms", "0"), "slo_ms: expected above 0 and below 1e6, got 0"),
        (("--arrivals", "trace:/no/such"), "/no/such"),
        (("--rate", "5", "--lengths", "x"), "lengths: expected a number"),
    ],
)
def test_bad_option(options: tuple[str, ...], message: str) -> None:
    assert_refused(message, *ONE, *options)


def test_it_is_a_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, app.cli.commands as cli\n"
        "print(sorted({'torch', 'numpy', 'loadtest.generator.run'} & {*sys.modules}))\n"
        "sys.argv = ['starling', 'bench', '--help']; cli.main()"
    )
    done = ended(sys.executable, "-c", code, cwd=ROOT)
    assert done.stdout.startswith("[]\n")
    assert "--find-peak" in done.stdout
    assert done.returncode == 0
