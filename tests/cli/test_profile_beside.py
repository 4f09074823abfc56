"""`starling profile A --beside B`: what it prints and keeps is what a server finds; one worker is told in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from runtimes import HostRuntime
from typer.testing import CliRunner, Result

from app.cli import profile as profilecli
from app.cli import simulate as simcli
from app.cli.profile_beside import check_room
from app.engine.cpu.device import CpuDevice
from app.engine.profiling.cache import ProfileCache, architecture_of, key_of
from app.engine.streams.device import StreamDevice
from app.errors import ConfigError
from app.models.loading import load
from app.models.repository import Repository
from app.scheduler.types import WorkerSpec
from app.settings import cpu_cores

QUICK = ("--threads", "1", "--repeats", "1", "--budget-s", "0.1")
needs_two_cores = pytest.mark.skipif(cpu_cores() < 2, reason="two workers need two cores")


def invoke(*arguments: str) -> Result:
    cli = typer.Typer()
    profilecli.register(cli)
    simcli.register(cli)  # a command line of one command would take no name of it
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "120"})


def sizes(pair: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one["rows"], one["beside_rows"]) for one in pair["sizes"]]


@needs_two_cores
def test_a_model_beside_itself_on_the_cpu(tmp_path: Path) -> None:
    """On real workers: what is there, not how fast it is."""
    file = tmp_path / "pairs.json"
    result = invoke(
        "profile", "mlp", "--models", "bench", "--max-batch", "4", "--beside", "mlp", "--profile-dir", str(tmp_path),
        "--out", str(file), *QUICK,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for words in ("mlp on cpu ", "4 of mlp", "slower", "ms beside", "mlp is slowed by ", "kept "):
        assert words in result.stdout, words

    told = json.loads(file.read_text())
    (pair,) = told["beside"]
    assert sizes(pair) == [(1, 1), (1, 4), (2, 1), (2, 4), (4, 1), (4, 4)]
    assert all(min(one["alone_ms"], one["beside_ms"], one["speed"]) > 0 for one in pair["sizes"])
    model = load(Repository("bench").sources("mlp")[0], {"max_batch": 4})
    key = key_of(model, CpuDevice((4, 4), 1, 2))
    (kept,) = ProfileCache(tmp_path).load_pairs(key)
    assert kept.to_dict() == pair
    assert (kept.model, kept.architecture) == ("mlp", architecture_of(model))
    assert (told["model"], told["device"], told["threads"]) == (key.model, key.device, 1)


def test_all_models_on_a_device_that_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, itself included; printed as JSON; measured again, a pair takes the place of the old one."""
    with HostRuntime() as runtime:
        made = []

        def device(plan: profilecli.Plan, workers: int) -> StreamDevice:
            made.append((plan.max_batch, workers))
            host = CpuDevice((2, 2), 1, 2)
            return StreamDevice(runtime, (WorkerSpec(2),) * workers, host=host)

        monkeypatch.setattr(profilecli, "_device", device)
        monkeypatch.setattr(profilecli, "cpu_cores", lambda: 2)
        arguments = ("profile", "digits", "--max-batch", "2", "--profile-dir", str(tmp_path), "--json", *QUICK)
        first = invoke(*arguments, "--beside", "all")
        again = invoke(*arguments, "--beside", "echo", "--beside", "echo")
    for result in (first, again):
        assert result.exit_code == 0, result.output
    assert made == [(2, 2)] * 3
    assert [pair["model"] for pair in json.loads(first.stdout)["beside"]] == ["digits", "echo"]
    (pair,) = json.loads(again.stdout)["beside"]
    assert sizes(pair) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["beside"] == [json.loads(first.stdout)["beside"][0], pair]


def test_stages_of_the_model_have_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "model.py").write_text(
        "from app.models import Staged\n\n\ndef build():\n    return Staged([lambda x: x * 2, lambda x: x + 1])\n"
    )
    (folder / "model.toml").write_text(
        'source = "model.py:build"\n[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = ["n"]\n'
        '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = ["n"]\n'
    )
    monkeypatch.setattr(profilecli, "cpu_cores", lambda: 2)
    result = invoke(
        "profile", "parts", "--model", f"parts={folder}", "--max-batch", "1", "--beside", "echo", "--length", "8",
        "--profile-dir", str(tmp_path / "kept"), "--out", str(tmp_path / "pairs.json"), *QUICK,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "slower by stage" in result.stdout
    (pair,) = json.loads((tmp_path / "pairs.json").read_text())["beside"]
    assert [len(one["stages"]) for one in pair["sizes"]] == [2]  # max-batch is of both
    assert pair["lengths"] == [{"n": 8}, {}]


@pytest.mark.parametrize(
    ("cores", "threads", "workers", "message"),
    [
        (1, 1, (), "of one worker: 1 of 1 core(s) each, no second one fits"),
        (2, 2, (), "2 of 2 core(s) each, no second one fits; --threads 1 makes room for two"),
        (16, 15, (), "15 of 16 core(s) each, no second one fits; --threads 8 makes room for two"),
        (4, 1, (1,), "of one worker, and --workers asks for one"),
    ],
)
def test_one_worker_is_told_in_one_line(cores: int, threads: int, workers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match="nothing can run beside a model on a device of one worker") as caught:
        check_room(cores, threads, workers)
    assert str(caught.value).endswith(message)
    assert "\n" not in str(caught.value)


def test_two_workers_are_enough() -> None:
    check_room(2, 1, ())
    check_room(4, 2, (1, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--beside", "echo", "--workers", "1"), "beside: nothing can run beside"),
        (("--beside", "nope"), "model 'nope' is not known; models: digits, echo"),
        (("--beside", "echo", "--plot", "x.png"), "plot: there is none of --beside"),
    ],
)
def test_a_wrong_option_is_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profilecli, "cpu_cores", lambda: 2)
    result = invoke("profile", "echo", *arguments, "--profile-dir", str(tmp_path))
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())
