"""`starling profile A --beside B`: what it prints and keeps is what a server finds; one worker is told in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from runtimes import HostRuntime

from app import engine_setup
from app.engine.cpu.device import CpuDevice
from app.engine.profiling.cache import ProfileCache, architecture_of, key_of
from app.engine.streams.device import StreamDevice
from app.errors import ConfigError
from app.machine import cpu_cores
from app.models.loading import load
from app.models.repository import Repository
from app.scheduler.types import WorkerSpec
from planner.commands import measured_pairs, profile, profile_measure
from planner.commands.profile_beside import check_room

from .running import assert_refused, printed, succeeds

QUICK = ("--threads", "1", "--budget-s", "0.1")
needs_two_cores = pytest.mark.skipif(cpu_cores() < 2, reason="two workers need two cores")


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of profiles. Each time is that of one batch."""
    monkeypatch.setattr(measured_pairs, "_LEAST_NS", 1)
    monkeypatch.setenv("STARLING_PROFILE_DIR", str(tmp_path / "profiles"))
    return tmp_path / "profiles"


def sizes(pair: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one["rows"], one["beside_rows"]) for one in pair["sizes"]]


@needs_two_cores
def test_a_model_beside_itself_on_the_cpu(tmp_path: Path, profiles: Path) -> None:
    """On real workers: what is there, not how fast it is."""
    file = tmp_path / "pairs.json"
    options = ("--max-batch", "4", "--beside", "digits", "--out", str(file), *QUICK)
    assert "4 of digits" in succeeds("profile", "digits", *options)
    told = json.loads(file.read_text())
    (pair,) = told["beside"]
    assert sizes(pair) == [(1, 1), (1, 4), (2, 1), (2, 4), (4, 1), (4, 4)]
    assert all(min(one["alone_ms"], one["beside_ms"]) > 0 for one in pair["sizes"])
    model = load(Repository("demo").sources("digits")[0], {"max_batch": 4})
    key = key_of(model, CpuDevice((4, 4), 1, 2))
    (kept,) = ProfileCache(profiles).load_pairs(key)
    assert kept.to_dict() == pair
    assert (kept.model, kept.architecture) == ("digits", architecture_of(model))
    assert (told["model"], told["device"], told["threads"]) == (key.model, key.device, 1)


def test_all_models_on_a_device_that_copies(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, itself included; measured again, a pair takes the place of the old one."""
    with HostRuntime() as runtime:
        made = []

        def device(gpu: int | None, capacities: tuple[int, ...], *_: Any) -> StreamDevice:
            made.append(len(capacities))
            return StreamDevice(runtime, tuple(map(WorkerSpec, capacities)), host=CpuDevice(capacities, 1, 2))

        monkeypatch.setattr(engine_setup, "make_device", device)
        for module in (profile, profile_measure):
            monkeypatch.setattr(module, "cpu_cores", lambda: 2)
        arguments = ("profile", "digits", "--max-batch", "2", *QUICK)
        first = printed(*arguments, "--beside", "all")
        again = printed(*arguments, "--beside", "echo", "--beside", "echo")
    assert made == [2, 2]
    assert [pair["model"] for pair in first["beside"]] == ["digits", "echo"]
    (pair,) = again["beside"]
    assert sizes(pair) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    (file,) = profiles.iterdir()
    assert json.loads(file.read_text())["beside"] == [first["beside"][0], pair]


@pytest.mark.parametrize(
    ("cores", "threads", "workers", "message"),
    [
        (1, 1, 0, "1 of 1 core(s)"),
        (16, 15, 0, "--threads 8 makes room for two"),
        (4, 1, 1, "--workers asks for one"),
    ],
)
def test_one_worker_is_told_in_one_line(cores: int, threads: int, workers: int, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_room(cores, threads, workers)


def test_a_wrong_option_is_one_line(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "cpu_cores", lambda: 2)
    assert_refused("beside: nothing can run beside", "profile", "echo", "--beside", "echo", "--workers", "1")
    assert_refused("model 'nope' is not known; models: digits, echo", "profile", "echo", "--beside", "nope")
    assert not profiles.exists()
