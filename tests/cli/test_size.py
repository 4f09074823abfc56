"""The command `size`: what it finds, prints and refuses; the search itself is tested with the simulator."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app import models
from app.contract import Model, ModelInfo, SampleRow
from app.engine.cpu.device import CpuDevice
from app.engine.profiling.cache import ProfileCache, cpu_name, key_of
from app.models.loading import load
from app.models.repository import Repository
from app.models.tasks.task_specs import TASKS
from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse
from app.settings import Settings
from planner.commands import profile_measure, size_profiles
from planner.commands.size import measured_service
from planner.front_load import FrontLoad
from planner.profile_times import linear
from planner.simulated_front import FrontCosts

from . import running
from .running import assert_refused, invoke

ECHO = Path(models.__file__).parent / "demo" / "echo"
ASKED = ("--rate", "250", "--p99-ms", "60", "--requests", "200")


def printed(*arguments: str) -> Any:
    return running.printed("size", *arguments)


def store(folder: Path, threads: int, profile: Profile) -> None:
    """Keep it in the folder as a profile of echo, of this machine."""
    model = load(Repository("demo").sources("echo")[0])
    key = replace(key_of(model, CpuDevice((32,), 1, 1)), threads=threads)
    assert ProfileCache(folder).store(key, profile) is not None


@pytest.mark.usefixtures("one_process")
def test_replicas_margin_and_one_less(tmp_path: Path) -> None:
    """10 ms a row, one at a time: four queues of a load of 0.62, or three of 0.83 that are too slow."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"batch_ms": {"1": 10}, "model": "m", "device": "cpu x, 3 cores", "threads": 2}))
    got = printed("--profile", str(path), "--policy", "no_wait", *ASKED, "--headroom", "10", "--http-us", "100")
    replicas = got["replicas"]
    assert 4 <= replicas <= 5
    assert [(one["replicas"], one["rate"]) for one in got["predicted"]] == [(replicas, 250), (replicas, 275)]
    assert [(one["replicas"], one["rate"]) for one in got["one_less"]] == [(replicas - 1, 250), (replicas - 1, 275)]
    assert all(one["keeps"] for one in got["predicted"])
    assert not got["one_less"][1]["keeps"]
    assert got["most_rate"] >= 275
    assert got["margin"] == pytest.approx(got["most_rate"] / 250 - 1)
    assert got["command"] == "starling serve MODEL_FOLDER --threads 2 --workers 1x1 --policy no_wait"
    plain = got["predicted"][0]
    assert plain["p99_least_ms"] <= plain["p99_median_ms"] <= plain["p99_ms"] <= 60
    assert plain["p50_ms"] > 10.1
    assert plain["load"] == pytest.approx(2.5 / replicas)
    assert plain["http_busy"] == pytest.approx(250 / replicas * (100 + 400) * 1e-6, rel=0.2)
    assert (got["confidence"], got["runs"]) == (0.75, 2)
    alone = printed("--profile", "linear:10+0b", "--policy", "no_wait", *ASKED, "--http-us", "0", "--headroom", "0")
    found = [alone[name] for name in ("replicas", "one_less", "if_http_doubles")]
    assert found == [1, [], None]  # 32 rows take as long as one


def test_runs_are_simulated_in_processes() -> None:
    found = invoke("size", "--requests", "200", "--profile", "linear:5+1b", "--rate", "1500", "--p99-ms", "150")
    assert "starling serve MODEL_FOLDER --workers 1x32\n" in found.stdout


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ("--profile linear:10+0b --rate 3100 --p99-ms 200", 0, "overloaded"),
        ("--profile linear:10+0b --rate 50 --p99-ms 9", 1, "no number of replicas"),
        ("--profile linear:10+1b --rate 5000 --p99-ms 90 --max-replicas 2 --json", 1, '"replicas": null'),
    ],
)
def test_the_table_and_the_exit_status(asked: str, status: int, words: str) -> None:
    found = invoke("size", "--requests", "200", *asked.split())
    assert found.exit_code == status
    assert words in found.stdout


@pytest.mark.usefixtures("one_process")
def test_the_stored_profile_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many threads as a server takes of itself, with what was measured of HTTP and of noise."""
    monkeypatch.setattr(size_profiles, "cpu_cores", lambda: 4)
    extra = {"front": {"json": {"call_us": 120.5, "batch_us": 300}}, "noise": 0.2, "made": "2026-01-01"}
    store(tmp_path, 1, linear(0.1, 0.1, 32))
    store(tmp_path, 3, replace(linear(10, 1, 32), extra=extra))
    options = ("--profile-dir", str(tmp_path), "--device", "cpu", *ASKED)
    got = printed("--model", "echo", *options)
    assert (got["model"], got["device"], got["threads"], got["workers"]) == ("echo", cpu_name(), 3, [32])
    assert (got["format"], got["http"]["call_us"], got["http"]["source"]) == ("json", 120.5, "measured")
    assert (got["http"]["batch_us"], got["service"]) == (300, "gamma:0.200")
    other = printed("--model", "echo", "--format", "binary", *options)
    assert (other["format"], other["http"]["source"]) == ("binary", "assumed")
    assert f"--model echo={ECHO}" in got["command"] or "--model echo=app/models/demo/echo" in got["command"]
    assert got["command"].endswith(" --threads 3 --workers 1x32")
    by_folder = printed("--model", str(ECHO), "--http-us", "50", *options)
    assert [by_folder["http"][key] for key in ("call_us", "batch_us", "source")] == [50, 300, "given"]


@pytest.mark.usefixtures("one_process")
def test_the_p99_if_batch_times_are_off_by_their_error(tmp_path: Path) -> None:
    """3 % of the profile and 4 % of the loads measured over HTTP are 5 % together."""
    path = tmp_path / "m.json"
    front = {"json": {"call_us": 100, "batch_us": 100, "error": 0.04}}
    path.write_text(json.dumps({"batch_ms": {"1": 10}, "error": {"1": 0.03}, "front": front}))
    asked = ("--profile", str(path), "--policy", "no_wait", *ASKED)
    got = printed(*asked)
    assert got["error"] == pytest.approx(0.05)
    low, high = (one["p99_ms"] for one in got["if_off"])
    assert low < got["predicted"][0]["p99_ms"] < high
    assert "batch times are known to 5.0%: p99 " in running.succeeds("size", *asked)


def test_the_noise_of_a_profile_is_that_of_batch_times() -> None:
    assert measured_service(parse({"batch_ms": {"1": 10}, "noise": 0.1})) == "gamma:0.100"
    assert measured_service(parse({"batch_ms": {"1": 10}, "noise": 0.001})) == "deterministic"
    assert measured_service(linear(1, 1, 2)) == "deterministic"


@pytest.mark.usefixtures("one_process")
def test_workers_of_each_replica(tmp_path: Path) -> None:
    """Two workers at once that are hardly slower need fewer replicas than one."""
    path, replicas = tmp_path / "m.json", []
    path.write_text(json.dumps({"batch_ms": {"1": 10}, "concurrency": {"2": {"1": 10.5}}}))
    for workers, flags in (("1", "--workers 1x1"), ("2", "--workers 1,1")):
        got = printed("--profile", str(path), "--policy", "no_wait", "--workers", workers, *ASKED)
        replicas.append(got["replicas"])
        assert got["command"] == f"starling serve MODEL_FOLDER {flags} --policy no_wait"
    assert replicas[1] < replicas[0]


@pytest.mark.usefixtures("one_process")
def test_measured_first_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(model: Any, settings: Settings) -> None:
        asked = settings.device, settings.precision, settings.profile_budget_s
        assert (model.info.name, *asked) == ("echo", "cpu", "fp32", 7)
        store(tmp_path, 1, linear(2, 1, 32))

    def costs(
        name: str, serve: list[str], batch_ns: list[int], handover_ns: int, payload: str, data: Path | None
    ) -> tuple[FrontCosts, list[FrontLoad]]:
        assert (name, serve[:2], serve[-2:]) == ("echo", ["--model", f"echo={ECHO}"], ["--threads", "1"])
        assert (batch_ns[0], handover_ns) == (3_000_000, 0)
        found = FrontCosts(call_ns=99_960 if payload == "json" else 50_000, decode_ns=0 if data is None else 7000)
        return found, [FrontLoad(1, 10, 0, 0, {1: (10, 10 * 3.75e-3)})]

    monkeypatch.setattr(profile_measure, "measure", measured)
    monkeypatch.setattr("loadtest.generator.front_loads.measure_front", costs)
    options = ("--model", "echo", "--profile-dir", str(tmp_path), "--device", "cpu", *ASKED)
    again = ("--measure", "--budget-s", "7")
    got = printed(*options, *again)
    assert (got["format"], got["http"]["call_us"], got["http"]["source"]) == ("json", 100.0, "measured")
    assert (got["http"]["scale"], got["http"]["slowed"]) == (pytest.approx(1.25, rel=0.01), 0)
    file = printed(*options, *again, "--data", str(tmp_path / "3.jpg"))
    assert (file["format"], file["http"]["decode_us"]) == ("file", 7)
    assert printed(*options)["format"] == "file"  # the one measured last
    binary = printed(*options, *again, "--format", "binary")
    assert (binary["format"], binary["http"]["call_us"]) == ("binary", 50)


def test_the_request_of_a_task_is_its_example(tmp_path: Path) -> None:
    info = ModelInfo("m", "1", "", TASKS["image-classification"].sent, ())
    row = SampleRow((np.array(b"\xff\xd8", object),))
    front = SimpleNamespace(example=row, client_info=lambda _: info)
    path = size_profiles._own_request(cast("Model", SimpleNamespace(front=front, info=None)), tmp_path)
    assert path is not None
    (sent,) = json.loads(path.read_text())["inputs"]
    assert (sent["shape"], sent["data"]) == ([1], [{"b64": "/9g="}])
    assert size_profiles._own_request(cast("Model", SimpleNamespace(front=None)), tmp_path) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "0"), "rate: expected above 0"),
        (("--p99-ms", "-1"), "p99-ms: expected above 0"),
        (("--p99-ms", "1e308"), "p99-ms: expected above 0 and below 1e9, got 1e+308"),
        (("--profile", "linear:1+1b", "--rate", "1e-300"), "rate: expected at least 0.001/s for 200 requests"),
        (("--profile", "linear:1+1b", "--requests", "1000000000000"), "requests: expected at most"),
        (("--measure", "--model", "echo", "--budget-s", "inf"), "budget-s: expected more than 0 seconds and below 1e9"),
        (("--format", "xml"), "format: expected json, binary, file, got 'xml'"),
        (("--data", "3.jpg"), "data: it is only sent with --measure"),
        (("--profile", "linear:1+1b", "--policy", "ebird"), "policy: ebird has workers of its own"),
        (("--model", "nope"), "model 'nope' is not known; models: digits, echo"),
        ((), "model: expected --model, one of digits, echo"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert_refused(message, "size", *ASKED, "--profile-dir", str(tmp_path), *arguments)


def test_a_model_without_a_profile_is_told_how_to_get_one(tmp_path: Path) -> None:
    """With the options that it is looked for by: without them the command would not find it, or keep it elsewhere."""
    shutil.copytree(ECHO, tmp_path / "mine" / "echo")
    for models_in in ((), ("--models", str(tmp_path / "mine"))):
        flags = (*models_in, "--device", "cpu", "--profile-dir", str(tmp_path))
        told = f"in {tmp_path}; measure it with `starling profile echo {shlex.join(flags)}`, or here with --measure"
        assert_refused(told, "size", *ASKED, "--model", "echo", *flags)
