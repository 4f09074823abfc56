"""The command for a GPU where there is none: every block on tiny models, the runner, and the page."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from runtimes import HostRuntime

from experiments.gpu import __main__ as command
from experiments.gpu import device_tests, over_http, runner
from experiments.gpu.blocks import BY_NAME, SPECS, Block, Spec
from experiments.gpu.page import PAGE, RUN, read, shown
from experiments.gpu.targets import targets
from loadtest.common.paths import DOCS

BY_ENGINE = ("empty", "engine", "classes", "cells", "stages", "life")


class OnStreams(Block):
    """As on a GPU, with streams that are threads."""

    @property
    def cuda(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    """A measurement tunes that of its process."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def measured(block: Block, name: str, folder: Path) -> dict[str, Any]:
    """The figures of a block, as its line has them; nothing in it may fail."""
    import_module(BY_NAME[name].module).measure(block)
    block.keep()
    found: dict[str, Any] = json.loads((folder / "block.json").read_text("utf-8"))

    assert "failures" not in found
    assert found["left_out"] == []
    return found


def test_the_ceilings_have_a_table_and_a_sentence(tmp_path: Path) -> None:
    found = measured(Block("cpu", True, 60, tmp_path / "block.json"), "ceilings", tmp_path)
    text = shown("ceilings", found)
    assert text.count("\n|") > 2
    assert text.rstrip().endswith("TFLOP/s in float16 here.")


@pytest.mark.parametrize(("name", "kind"), [*((name, OnStreams) for name in BY_ENGINE), ("engine", Block)])
def test_a_block_of_the_engine_gives_figures_and_a_table(
    name: str, kind: type[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.engine.streams.cuda.CudaRuntime", lambda gpu: HostRuntime())
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("experiments.gpu.card.CudaCard", import_module("experiments.gpu.card").HostCard)
    found = measured(kind("cpu", True, 60, tmp_path / "block.json"), name, tmp_path)
    assert "no_graphs" not in json.dumps(found)
    assert "faults" not in json.dumps(found)
    text = shown(name, found)
    assert text.count("\n|") > 2
    assert text.rstrip().endswith(".")
    assert "not complete" not in text


def test_over_http_all_servers_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("Starling", "FastAPI, lock, torch")
    monkeypatch.setattr(over_http, "CONTENDERS", {name: over_http.CONTENDERS[name] for name in names})
    found = measured(Block("cpu", True, 60, tmp_path / "block.json"), "http", tmp_path)
    assert "not_started" not in found
    assert {name: len(runs) for name, runs in found["runs"].items()} == dict.fromkeys(names, 2)
    assert all(run["requests_s"] > 0 and "faults" not in run for runs in found["runs"].values() for run in runs)
    assert found["latency"].keys() == set(names)
    assert "x the requests of FastAPI, lock, torch." in shown("http", found)


# the runner


def test_a_block_that_dies_or_hangs_does_not_stop_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = {
        "dies": "os._exit(3)",
        "hangs": "time.sleep(600)",
        "raises": "raise ValueError('no')",
    }
    for name, body in bodies.items():
        text = f"import os, time\n\ndef measure(block):\n    block.keep(begun=True)\n    {body}\n"
        (tmp_path / f"fake_{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(runner, "GRACE_S", 0.0)
    seconds = {"dies": 60.0, "hangs": 0.5, "raises": 60.0, "late": 1e6}
    specs = [Spec(name, f"fake_{name}", most, most if name == "late" else 0.0, "") for name, most in seconds.items()]
    lines = tmp_path / "lines"
    said: list[str] = []
    runner.run_blocks(specs, "cpu", False, 200.0, lines, said.append)
    assert said[-1].startswith("late: left out")
    dies, hangs, raises = (json.loads(line) for line in lines.read_text("utf-8").splitlines())
    assert (dies["block"], dies["begun"], dies["failed"]) == ("dies", True, "its process ended with 3")
    assert hangs["failed"].startswith("not over after")
    assert (raises["begun"], raises["failed"]) == (True, "ValueError: no")
    assert "ValueError: no" in raises["log"]


def test_tests_that_hang_say_where_before_they_are_ended() -> None:
    body = "print('begun', flush=True)\nwith open('/dev/zero') as zeros:\n    while zeros.read(1): pass"
    command = [sys.executable, "-c", body]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        said, ended = device_tests.said_within(running, 0)
    assert ended
    assert said.endswith("KeyboardInterrupt\n")


# the page


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "gpu.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


EMPTY = {"block": "empty", "graphs": {"p50": 40.0, "p99": 80.0, "cpu_us": 55.0}}


def test_the_page_is_made_of_lines_and_says_what_is_missing(tmp_path: Path) -> None:
    """Of a block that was run twice the last line counts."""
    path = written(
        tmp_path,
        {"block": RUN, "device": "cuda", "facts": {"cpu": "some"}},
        {**EMPTY, "graphs": {"p50": 1.0}},
        {**EMPTY, "left_out": []},
        {"block": "cells", "failed": "not over after 45 s", "log": "its last words", "left_out": ["decoder"]},
    )
    page = PAGE.text(read(path))
    for part in (
        "| graphs | 40 | 80 | 55 |", "| 55 us | met |", "The figures are not complete", "not over after 45 s",
        "its last words", "because the time was up: tests; ceilings; engine;", "life; cells: decoder.", "- cpu: some",
    ):  # fmt: skip
        assert part in page


def test_a_worse_figure_misses_its_target() -> None:
    ways = {"alone": {"mean_ms": 1.0, "p50_ms": 1.0}, "reef, 8 stages": {"mean_ms": 1.1, "p99_ms": 1.5}}
    rates = {"8": 90.0, "4": 98.0, "1": 100.0}
    policies = {
        name: {"closed": {"rows_s": 100.0}, "loads": [{"mean_ms": mean}]}
        for name, mean in (("window", 10.0), ("ebird", 6.0), ("adaptive", 6.0))
    }
    whole = {"whole": 10.0, "step graph": 5.0}
    blocks: dict[str, Any] = {
        "engine": {"bare_rows_s": 105.0, "policies": policies},
        "http": {"runs": {"Starling": [{"requests_s": 95.0}]}},
        "empty": {"graphs": {"cpu_us": 59.0}},
        "classes": {"ways": ways, "bulk_alone_rows_s": rates, "stage_ms": {"8": 0.45}},
        "cells": {"models": {"lstm": {"whole_rows_s": whole, "cells": {"closed": {"rows_s": 15.0}}}}},
    }
    assert [one.met for one in targets(blocks)] == [True] * 8
    blocks["http"]["runs"]["Starling"][0]["requests_s"] = 80.0
    blocks["empty"]["graphs"]["cpu_us"] = 61.0
    ways["reef, 8 stages"] |= {"mean_ms": 1.3, "p99_ms": 1.6}
    rates["4"] = 96.0
    policies["ebird"]["loads"] = policies["adaptive"]["loads"] = [{"mean_ms": 8.0}]
    whole["whole"] = 11.0
    assert [one.met for one in targets(blocks)] == [False] * 8
    blocks["engine"]["bare_rows_s"] = 1000.0
    assert targets(blocks)[0].met is None
    assert [one.met for one in targets({})] == [None] * 7


def test_figures_of_a_cpu_stay_out_of_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["--device", "cpu"])
    assert "must not enter docs/bench" in capsys.readouterr().err
    path = written(tmp_path, {"block": RUN, "device": "cpu", "quick": True}, EMPTY)
    assert command.main(["--render", str(path)]) == 1
    assert "must not enter docs/bench" in capsys.readouterr().err
    assert "cpu_us" not in (DOCS / "gpu.json").read_text("utf-8")
    assert command.main(["--render", str(path), "--out", str(tmp_path)]) == 0
    assert "| graphs | 40 | 80 | 55 |" in (tmp_path / "gpu.md").read_text("utf-8")


def test_unknown_blocks_are_refused_and_all_of_them_have_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["--only", "engine,motor", "--device", "cpu", "--out", "somewhere"])
    assert "got motor" in capsys.readouterr().err
    assert {spec.name for spec in SPECS} == set(import_module("experiments.gpu.tables").TABLES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path)])
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
