"""The command `profile`: the file it writes is what `simulate` and the server take; a wrong option is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from models.folders import table, toml_of, write_model

from app import models
from app.engine.cpu.device import CpuDevice
from app.engine.profiling.cache import ProfileCache, key_of
from app.engine.profiling.idle import concurrency_levels
from app.machine import cpu_cores
from app.models.loading import load
from app.models.placement import Placement, place
from app.models.repository import Repository
from app.scheduler.estimates.profile_format import parse
from planner.profile_times import at_length

from .running import assert_refused, invoke, printed, succeeds

DEMO = Path(models.__file__).parent / "demo"
QUICK = ("--budget-s", "2", "--threads", "1")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of profiles."""
    folder = tmp_path / "profiles"
    monkeypatch.setenv("STARLING_PROFILE_DIR", str(folder))
    return folder


def make_model(folder: Path, build: str, *bound: str) -> tuple[str, ...]:
    """A model of one axis of any length; the options that name it."""
    toml = toml_of(table("inputs", "x", "FP32", '["n"]', *bound), table("outputs", "y", "FP32", "[]"))
    write_model(folder, toml, f"from app.models import Staged\n\n\ndef build():\n    return {build}\n")
    return folder.name, "--model", f"{folder.name}={folder}"


@pytest.mark.usefixtures("kept")
def test_profile_as_json() -> None:
    got = printed("profile", "echo", "--max-batch", "3", *QUICK)
    assert (got["model"], got["threads"], got["max_batch"]) == ("echo", 1, 3)
    assert got["device"].startswith("cpu ")
    assert list(got["batch_ms"]) == ["1", "2", "3"]
    assert min(got["batch_ms"].values()) > 0
    assert got["handover_ms"] > 0
    assert set(got["fit"]) == {"alpha_ms", "beta_ms", "residual"}
    assert list(got.get("concurrency", ())) == [str(units) for units in concurrency_levels(cpu_cores())]
    assert set(got["repeats"]) == {"1", "2", "3"}
    assert 0 < got["noise"] < 1


@pytest.mark.usefixtures("kept")
def test_a_folder_is_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is named in full or is the current one; a name of the repository comes first."""
    for current, name in (("/", str(DEMO / "echo")), (DEMO / "echo", "."), (DEMO, "echo")):
        monkeypatch.chdir(current)
        assert printed("profile", name, "--max-batch", "1", *QUICK)["model"] == "echo"


def test_table_file_and_what_takes_them(tmp_path: Path, kept: Path) -> None:
    file = tmp_path / "echo.json"
    shown = succeeds("profile", "echo", "--max-batch", "4", "--out", str(file), *QUICK)
    assert "rows/s at" in shown
    assert str(kept) in shown
    profile = parse(json.loads(file.read_text()))
    assert printed("simulate", "--profile", str(file), "--load", "0.5", "--requests", "200")["completed"] == 200
    model = load(Repository("demo").sources("echo")[0], {"max_batch": 4})
    found = ProfileCache(kept).load(key_of(model, CpuDevice((4,), 1, 1)), 4)
    assert found is not None
    assert found.batch_ns == profile.batch_ns


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("bound", "longest"), [(("max_shape = [40]",), 40), ((), 100)], ids=["bounded", "unbounded"])
def test_lengths_of_variable_axes(tmp_path: Path, bound: tuple[str, ...], longest: int) -> None:
    named = make_model(tmp_path / "sums", "lambda x: x.sum(1)", *bound)
    options = (*named, "--max-batch", "2", "--workers", "1", *QUICK)
    assert printed("profile", *options)["lengths"] == {"n": 16}
    assert printed("profile", "--length", "100", *options)["lengths"] == {"n": longest}


@pytest.mark.usefixtures("kept")
def test_stages_and_lengths(tmp_path: Path) -> None:
    """In the file; and `simulate` and `optimum` take them."""
    file = tmp_path / "parts.json"
    named = make_model(tmp_path / "parts", "Staged([lambda x: x * 2, lambda x: x.sum(1)])", "max_shape = [32]")
    # With so large a budget a busy machine drops no length.
    succeeds("profile", *named, "--max-batch", "4", "--out", str(file), *QUICK, "--budget-s", "20")
    profile = parse(json.loads(file.read_text()))
    assert [length for length, _ in profile.by_length] == [2, 4, 8, 16, 32]
    assert [[length for length, _ in part.by_length] for part in profile.stages] == [[2, 4, 8, 16, 32]] * 2
    # A hand-over outweighs batches as small as these: a load, which is one of computing, could not be served.
    file.write_text(json.dumps({**json.loads(file.read_text()), "handover_ms": 0}))
    options = ("--profile", str(file), "--load", "0.05")
    assert printed("simulate", *options, "--requests", "200", "--lengths", "uniform:1:32")["completed"] == 200
    for length in (2, 32):
        rate = printed("optimum", *options, "--length", str(length))["rate"]
        assert rate == pytest.approx(0.05 * at_length(profile, length).peak)


def test_a_precision_has_profiles_of_its_own(kept: Path) -> None:
    """Found by a server of the same precision, and by no other."""
    got = printed("profile", "digits", "--max-batch", "2", "--precision", "bf16", *QUICK)
    assert got["precision"] == "bf16"
    model = load(Repository("demo").sources("digits")[0], {"max_batch": 2})
    device = CpuDevice((2,), got["threads"], cpu_cores())
    assert ProfileCache(kept).load(key_of(model, device), 2) is None
    placed = place(model, Placement(precision="bf16"))
    assert ProfileCache(kept).load(key_of(placed, device), 2) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "model 'nope' is not known; models: digits, echo"),
        ((str(Path(__file__).parent),), "a folder without a model"),
        ((f"/{'x' * 300}",), "cannot be read: File name too long"),
        (("echo", "--workers", "9999"), "workers: expected at most"),
        (("echo", "--out", "/no/such/folder/x.json"), "no such folder"),
        (("echo", "--stages", "2", "--beside", "echo"), "beside: has no meaning with --stages"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    assert_refused(message, "profile", *arguments)


def test_a_row_that_takes_too_long_for_the_budget_is_told(kept: Path) -> None:
    assert_refused("takes over a tenth of --budget-s 1e-06", "profile", "echo", "--budget-s", "1e-6")
    assert not kept.exists()


def test_a_model_that_fails_is_named(tmp_path: Path, kept: Path) -> None:
    error = invoke("profile", *make_model(tmp_path / "bad", "lambda x: 1 / 0"), *QUICK).exception
    assert "'bad'" in str(error)
    assert "ZeroDivisionError" in str(error)
    assert not kept.exists()
