"""The command `profile`: the file it writes is what `simulate` and the server take; a wrong option is one line."""

from __future__ import annotations

import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from runtimes import HostRuntime
from typer.testing import CliRunner, Result

from app import models
from app.cli import profile as profilecli
from app.cli import simulate as simcli
from app.cli.profile_text import TimeBar
from app.engine.cpu.device import CpuDevice
from app.engine.profiling.cache import ProfileCache, key_of
from app.engine.streams.device import StreamDevice
from app.errors import ConfigError
from app.models.loading import load
from app.models.placement import Placement, place
from app.models.repository import Repository
from app.scheduler.estimates.profile import parse
from app.scheduler.types import WorkerSpec
from app.settings import cpu_cores

QUICK = ("--repeats", "4", "--budget-s", "0.2")
PNG = b"\x89PNG\r\n\x1a\n"


def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
    cli = typer.Typer()
    profilecli.register(cli)
    simcli.register(cli)
    return CliRunner().invoke(cli, arguments, env=env)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "profiles"


def printed(*arguments: str) -> Any:
    result = invoke("profile", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_profile_as_json(kept: Path) -> None:
    got = printed("echo", "--max-batch", "3", "--threads", "1", "--profile-dir", str(kept), *QUICK)
    assert (got["model"], got["threads"], got["max_batch"]) == ("echo", 1, 3)
    assert got["device"].startswith("cpu ")
    assert list(got["batch_ms"]) == ["1", "2", "3"]
    assert min(got["batch_ms"].values()) > 0
    assert got["handover_ms"] > 0
    assert set(got["fit"]) == {"alpha_ms", "beta_ms", "residual"}
    assert got["suggested"]["threads"] * len(got["suggested"]["workers"]) <= cpu_cores()
    assert {(one["threads"], one["workers"]) for one in got["candidates"]} >= {(1, 1)}
    assert set(got["repeats"]) == {"1", "2", "3"}
    assert set(got["spread"]) <= {"1", "2", "3"}


def test_a_folder_is_a_model(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is named in full or is the current one; a name of the repository comes first."""
    folder = Path(models.__file__).parent / "demo" / "echo"
    options = ("--max-batch", "2", "--threads", "1", "--profile-dir", str(kept), "--no-suggest", *QUICK)
    assert printed(str(folder), *options)["model"] == "echo"
    monkeypatch.chdir(folder)
    assert printed(".", *options)["model"] == "echo"
    monkeypatch.chdir(folder.parent)
    assert printed("echo", *options)["model"] == "echo"


def test_what_is_suggested_is_printed_as_flags(kept: Path) -> None:
    result = invoke("profile", "echo", "--max-batch", "2", "--threads", "1", "--profile-dir", str(kept), *QUICK)
    assert re.search(r"^suggested  --threads \d+ --workers 2(,2)* --max-alive \d+$", result.stdout, re.MULTILINE)
    assert "`starling serve` takes it with --auto-size, else nothing changes" in result.stdout


def test_the_bar_counts_time_and_not_sizes() -> None:
    now = [0.0]
    bar = TimeBar(console=Console(file=io.StringIO()), auto_refresh=False, get_time=lambda: now[0])
    task = bar.add_task("profile", total=60.0)
    seen = []
    for now[0] in (15.0, 90.0):
        list(bar.get_renderables())
        seen.append(bar.tasks[task].completed)
    assert seen == [15.0, 60.0]


@pytest.mark.skipif(cpu_cores() < 2, reason="two units at once need two cores")
def test_units_at_once(kept: Path) -> None:
    got = printed(
        "echo",
        "--max-batch",
        "2",
        "--threads",
        "1",
        "--workers",
        "2",
        "--profile-dir",
        str(kept),
        "--no-suggest",
        *QUICK,
    )
    assert list(got["concurrency"]) == ["2"]
    assert list(got["concurrency"]["2"]) == ["1", "2"]
    assert "suggested" not in got


def test_table_file_plot_and_what_takes_them(tmp_path: Path, kept: Path) -> None:
    file, plot = tmp_path / "echo.json", tmp_path / "echo.png"
    result = invoke(
        "profile", "echo", "--max-batch", "4", "--threads", "1", "--out", str(file), "--plot", str(plot), *QUICK,
        env={"STARLING_PROFILE_DIR": str(kept), "COLUMNS": "120"},
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for words in ("rows/s", "spread", "fit ", "best ", "hand-over ", "suggested ", "compared ", str(kept)):
        assert words in result.stdout, words
    assert plot.read_bytes().startswith(PNG)
    profile = parse(json.loads(file.read_text()))
    simulated = invoke("simulate", "--profile", str(file), "--load", "0.5", "--requests", "200", "--json")
    assert simulated.exit_code == 0, simulated.output
    assert json.loads(simulated.stdout)["completed"] == 200

    model = load(Repository("demo").sources("echo")[0], {"max_batch": 4})
    found = ProfileCache(kept).load(key_of(model, CpuDevice((4,), 1, 1)), 4)
    assert found is not None
    assert found.batch_ns == profile.batch_ns


@pytest.mark.parametrize(("bound", "longest"), [("max_shape = [40]", 40), ("", 100)], ids=["bounded", "unbounded"])
def test_lengths_of_variable_axes(tmp_path: Path, kept: Path, bound: str, longest: int) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "model.py").write_text("def build():\n    return lambda n, x: x.sum(1, keepdim=True) / n[:, None]\n")
    (folder / "model.toml").write_text(
        'source = "model.py:build"\n'
        '[[inputs]]\nname = "count"\ndatatype = "INT32"\nshape = []\nlengths = "x"\n'
        f'[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = ["n"]\n{bound}\n'
        '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = [1]\n'
    )
    options = ("--model", f"sums={folder}", "--max-batch", "2", "--profile-dir", str(kept), "--no-suggest", *QUICK)
    assert printed("sums", *options)["lengths"] == {"n": 16}
    assert printed("sums", "--length", "100", *options)["lengths"] == {"n": longest}


def test_stages_and_lengths(tmp_path: Path, kept: Path) -> None:
    """In the file, the table and the plot; and `simulate` and `optimum` take them."""
    folder, file, plot = tmp_path / "parts", tmp_path / "parts.json", tmp_path / "parts.svg"
    folder.mkdir()
    (folder / "model.py").write_text(
        "from app.models import Staged\n\n\ndef build():\n    return Staged([lambda x: x * 2, lambda x: x.sum(1)])\n"
    )
    (folder / "model.toml").write_text(
        'source = "model.py:build"\n'
        '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = ["n"]\nmax_shape = [32]\n'
        '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = []\n'
    )
    # In so long a time a busy machine drops no length.
    result = invoke(
        "profile", "parts", "--model", f"parts={folder}", "--max-batch", "4", "--threads", "1", "--no-suggest",
        "--profile-dir", str(kept), "--out", str(file), "--plot", str(plot), *QUICK[:3], "20",
        env={"COLUMNS": "120"},
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for words in ("ms, stage 1", "ms, length 32", "ms, length 2"):
        assert words in result.stdout, words
    for words in ("stage 0", "length 8"):
        assert f"<!-- {words} -->" in plot.read_text(), words
    profile = parse(json.loads(file.read_text()))
    assert [length for length, _ in profile.by_length] == [2, 4, 8, 16, 32]
    assert [[length for length, _ in part.by_length] for part in profile.stages] == [[2, 4, 8, 16, 32]] * 2
    # A hand-over outweighs batches as small as these: a load, which is one of computing, could not be served.
    file.write_text(
        json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != "handover_ms"})
    )
    options = ("--profile", str(file), "--load", "0.05", "--json")
    simulated = invoke("simulate", *options, "--requests", "200", "--lengths", "uniform:1:32")
    assert json.loads(simulated.stdout)["completed"] == 200
    best = [json.loads(invoke("optimum", *options, "--length", str(length)).stdout) for length in (2, 32)]
    assert [cell["rate"] for cell in best] == [pytest.approx(0.05 * profile.at(length).peak) for length in (2, 32)]


def test_a_precision_has_profiles_of_its_own(kept: Path) -> None:
    """Found by a server of the same precision, and by no other."""
    got = printed(
        "digits", "--max-batch", "2", "--precision", "bf16", "--profile-dir", str(kept), "--no-suggest", *QUICK
    )
    assert got["precision"] == "bf16"
    model = load(Repository("demo").sources("digits")[0], {"max_batch": 2})
    device = CpuDevice((2,), got["threads"], cpu_cores())
    assert ProfileCache(kept).load(key_of(model, device), 2) is None
    placed = place(model, Placement(precision="bf16"))
    assert ProfileCache(kept).load(key_of(placed, device), 2) is not None


def test_copies_of_a_device_that_copies(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from the batch times, in the file and in the table; the simulator takes them from there."""
    file = tmp_path / "echo.json"
    options = ("--max-batch", "3", "--profile-dir", str(kept), "--no-suggest", "--out", str(file), *QUICK)
    with HostRuntime() as runtime:
        device = partial(StreamDevice, runtime, (WorkerSpec(3),) * 2)
        monkeypatch.setattr(profilecli, "_device", lambda plan, workers: device())
        result = invoke("profile", "digits", *options)
    assert result.exit_code == 0, result.output
    assert "copies     1 row " in result.stdout
    got = json.loads(file.read_text())
    assert set(got["transfer_ms"]) == {"1", "2", "3"}
    parts = got["transfer_parts_ms"]
    assert got["transfer_ms"]["3"] == pytest.approx(parts["in"]["3"] + parts["out"]["3"])
    simulated = invoke(
        "simulate", "--profile", str(file), "--load", "0.5", "--requests", "200", "--transfers", "overlap", "--json"
    )
    assert json.loads(simulated.stdout)["completed"] == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "model 'nope' is not known; models: digits, echo"),
        ((str(Path(models.__file__).parent / "demo"),), "a folder of digits, echo; name one, with --models"),
        ((str(Path(__file__).parent),), "a folder without a model"),
        (("echo", "--models", "/no/such/folder"), "models: expected a folder"),
        (("echo", "--threads", "9999"), "threads: expected at most"),
        (("echo", "--workers", "9999"), "workers: expected at most"),
        (("echo", "--precision", "int8"), "precision: expected fp32, bf16 or fp16, got 'int8'"),
        (("echo", "--budget-s", "0"), "budget-s: expected more than 0"),
        (("echo", "--out", "/no/such/folder/x.json"), "no such folder"),
        (("echo", "--plot", "/no/such/folder/x.png"), "no such folder"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = invoke("profile", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_an_ending_that_is_no_plot(tmp_path: Path, kept: Path) -> None:
    result = invoke(
        "profile", "echo", "--max-batch", "1", "--plot", str(tmp_path / "x.odd"), "--profile-dir", str(kept),
        "--no-suggest", *QUICK,
    )  # fmt: skip
    assert isinstance(result.exception, ConfigError)
    assert "odd" in str(result.exception)


def test_a_model_that_fails_is_named(tmp_path: Path, kept: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "model.py").write_text("def build():\n    return lambda x: 1 / 0\n")
    (folder / "model.toml").write_text(
        'source = "model.py:build"\n[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [1]\n'
        '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = [1]\n'
    )
    result = invoke("profile", "bad", "--model", f"bad={folder}", "--profile-dir", str(kept), *QUICK)
    assert isinstance(result.exception, ConfigError)
    assert "'bad'" in str(result.exception)
    assert "ZeroDivisionError" in str(result.exception)
    assert not kept.exists()
