"""The commands `simulate` and `optimum`: what they print, their exit status, and what they say of a bad option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulator.runs import recorded
from tiers import full

from app.scheduler.record import Entry

from .running import assert_refused, invoke, printed, succeeds

FAST = ("--requests", "300", "--policy", "no_wait")
LINEAR = ("--profile", "linear:7+0.6b")
KEYS = {
    "policy", "rate", "load", "requests", "completed", "dropped", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms",
    "throughput", "mean_batch", "utilisation", "busy_s_per_request", "goodput",
}  # fmt: skip


def test_profile_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mlp.json"
    profile = {"model": "mlp", "batch_ms": {"1": 4, "8": 8}, "power_w": {"idle": 1},
               "concurrency": {"2": {"1": 6, "8": 13}}}  # fmt: skip
    path.write_text(json.dumps(profile))
    cell = printed("simulate", "--profile", str(path), "--load", "0.5", "--workers", "8,8", *FAST)
    assert set(cell) == KEYS
    assert cell["rate"] == pytest.approx(500)
    smaller = printed("simulate", "--profile", str(path), "--load", "0.5", "--max-batch", "1", *FAST)
    assert (smaller["rate"], smaller["mean_batch"]) == (125, 1)
    path.write_text('{"batch_ms": {"1": 0}}')
    assert_refused(
        "mlp.json: batch_ms.1: expected greater than or equal to 0.000001, got 0", "simulate", "--profile", str(path)
    )


def test_optimum() -> None:
    found = printed("optimum", "--profile", "linear:0.2+3b", "--load", "0.6")
    assert found["mean_ms"] == pytest.approx(6.0252, abs=1e-3)
    assert found["non_idling_mean_ms"] >= found["mean_ms"]
    assert found["mean_ms"] < found["serve_all_bound_ms"] < 1.2 * found["mean_ms"]
    assert (found["table"]["0"], found["table"]["1"], found["table"]["5"], found["table"]["20"]) == (0, 1, 1, 3)
    assert found["utilisation"] == pytest.approx(0.638, abs=1e-3)


@full
def test_optimum_of_two_workers() -> None:
    options = ("optimum", "--workers", "2", "--profile", "linear:7+0.6b", "--max-batch", "3", "--load", "0.5")
    found = printed(*options)
    assert 7.6 < found["mean_ms"] <= found["adaptive_ms"] * 1.001 < found["no_wait_ms"]
    assert len(found["columns"]) == len(found["table"]) == 1 + 3 * 16
    assert found["table"][0][:4] == [0, 1, 2, 3]
    assert "no_wait ms" in succeeds(*options)


def record(path: Path, entries: list[Entry]) -> str:
    path.write_text("\n".join(map(json.dumps, entries)))
    return str(path)


def test_replay_of_equal_steps(tmp_path: Path) -> None:
    path = record(tmp_path / "record", recorded())
    assert "6 steps, all equal" in succeeds("simulate", "--replay", path)
    path = record(tmp_path / "record", [*recorded()[:8], {"dropped": 6}])
    assert "a hole of 6 entries" in succeeds("simulate", "--replay", path)
    assert printed("simulate", "--replay", path)["equal"] == 3


def test_replay_names_the_first_difference(tmp_path: Path) -> None:
    entries = recorded()
    entries[7]["step"]["start"][0][5] = 4
    path = record(tmp_path / "record", entries)
    result = invoke("simulate", "--replay", path)
    assert result.exit_code == 1
    assert f"{path}:8: the first step that differs, after 2 equal ones" in result.stdout
    assert json.dumps(entries[7]) in result.stdout
    assert json.loads(invoke("simulate", "--replay", path, "--json").stdout)["line"] == 8


def test_replay_of_what_is_no_record(tmp_path: Path) -> None:
    assert_refused("record: expected a first line", "simulate", "--replay", record(tmp_path / "record", [{}]))
    assert_refused(f"replay: {tmp_path}/none: No such file", "simulate", "--replay", str(tmp_path / "none"))
    (tmp_path / "cut").write_text('{"format": ')
    assert_refused("record: line 1: expected JSON, got ", "simulate", "--replay", str(tmp_path / "cut"))


AT_HALF = ("simulate", *LINEAR, "--load", "0.5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "--load", "0.5"), "profile: expected a file or linear:A+Bb"),
        (("simulate", "--profile", "linear:x+yb"), "expected linear:A+Bb in ms"),
        (("simulate", "--profile", "/no/such"), "/no/such: No such file or directory"),
        (("simulate", "--profile", __file__), f"profile: {__file__}: expected JSON, as `starling profile --out`"),
        (("simulate", *LINEAR), "rate: expected --rate or --load"),
        (("simulate", *LINEAR, "--rate", "1", "--load", "1"), "give either"),
        (("simulate", *LINEAR, "--load", "0"), "load: expected numbers above 0"),
        (("simulate", *LINEAR, "--load", "1", "--workers", "8,8"), "concurrency: the profile has no times"),
        (("simulate", *LINEAR, "--load", "1", "--policy", "best"), "policy: expected one of"),
        ((*AT_HALF, "--objective", "deadline"), "give --deadline-ms"),
        ((*AT_HALF, "--objective", "energy"), "objective: expected one of latency, deadline"),
        ((*AT_HALF, "--launch-ms", "inf"), "launch_ms: expected milliseconds from 0"),
        ((*AT_HALF, "--push-ahead-ms", "1e308"), "push_ahead_ms: expected milliseconds"),
        ((*AT_HALF, "--deadline-ms", "nan"), "deadline_ms: expected milliseconds"),
        ((*AT_HALF, "--max-delay-ms", "-1"), "max_delay_ms: expected milliseconds"),
        (("simulate", *LINEAR, "--rate", "1e-300"), "rate: expected numbers above 0, from 1e-09 to 1e+12"),
        (("simulate", *LINEAR, "--rate", "1e-9"), "rate: expected at least 0.01/s for 100000 requests, got 1e-09/s"),
        (("simulate", "--profile", "linear:1e12+0b", "--rate", "1"), "profile: expected at least 0.01/s"),
        ((*AT_HALF, "--requests", "1000000000000"), "requests: expected at most"),
        ((*AT_HALF, "--replicas", "1e9"), "replicas: expected at most 100000"),
        ((*AT_HALF, "--max-batch", "1000000000"), "max_batch: expected 1 to 4096"),
        ((*AT_HALF, "--arrivals", "gamma:1e-300"), "arrivals: expected numbers that are 0"),
        ((*AT_HALF, "--service", "gamma:1e-300"), "service: expected deterministic"),
        ((*AT_HALF, "--lengths", "lognormal:2:1e300:9"), "lengths: expected a number"),
        ((*AT_HALF, "--lengths", "lognormal:5:1e9:5:5"), "lengths: expected LOW to HIGH to hold at least 0.1% of the "),
        ((*AT_HALF, "--lengths", "16"), "lengths: expected a profile with length_ms or a cell"),
        (("optimum", *LINEAR, "--load", "0.5", "--max-batch", "4096"), "max_batch: expected at most 256"),
        (("optimum", *LINEAR, "--load", "1.01"), "expected less than"),
    ],
)  # fmt: skip
def test_bad_option_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    assert_refused(message, *arguments)
