"""The GPU script where there is no GPU: what it measures with runs on threads, and figures of nothing stay out."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from app.models.repository import Repository
from app.settings import Settings
from loadtest.common.paths import ROOT
from loadtest.common.servers import ServerError
from loadtest.gpu import __main__ as script
from loadtest.gpu import (
    boundaries,
    child,
    data,
    effects,
    figure6,
    live,
    measurements,
    memory,
    model_folders,
    networks,
    preemption,
)  # fmt: skip
from loadtest.gpu.driven_device import DrivenDevice, Failed, Loop, Options
from loadtest.gpu.platforms import Platform, open_platform

#: Parameters as published, for 1000 classes; BERT without its pooler.
PUBLISHED = {
    "resnet50": 25_557_032, "resnet152": 60_192_808, "vgg16": 138_357_544,
    "bert-base": 109_482_240 - 590_592, "bert-large": 335_141_888 - 1_049_600,
}  # fmt: skip


ENGINE = measurements.Engine((1, 1, 2, 4, 8, 16))


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(rehearsed=True) as platform:
        yield platform


def session(tmp_path: Path, **changes: Any) -> measurements.Session:
    given: dict[str, Any] = {
        "rehearsed": True, "quick": False, "repository": tmp_path, "models": ("resnet50",), "served": ("resnet50",),
        "precisions": ("fp32",), "ends": time.monotonic() + 1000, "say": lambda text: None,
        "engine": ENGINE,
    }  # fmt: skip
    return measurements.Session(**given | changes)


class Watch(TorchDispatchMode):
    """Notes every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_networks_have_their_published_size(name: str) -> None:
    network = data.NETWORKS[name]
    kwargs: dict[str, Any] = {}
    exec(network.kwargs.replace("\n", ";"), kwargs)
    del kwargs["__builtins__"]
    with torch.device("meta"):
        built = getattr(networks, network.build)(**kwargs)
    assert sum(weight.numel() for weight in built.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", sorted(data.NETWORKS))
def test_no_network_reads_a_value_back(name: str, tmp_path: Path) -> None:
    """Else it could not be captured."""
    folder = model_folders.write(name, tmp_path, tiny=True, max_batch=4)
    model = model_folders.read(folder, 4)
    assert isinstance(model.call, nn.Module)
    with torch.inference_mode(), Watch() as watch:
        result = model.call(*model_folders.rows_of(model, 3))
    assert result.shape == (3, *model.info.outputs[0].shape)
    assert torch.isfinite(result).all()
    assert watch.seen
    assert not [op for op in watch.seen if "local_scalar" in op or "nonzero" in op or "item" in op]


def test_a_folder_is_a_repository_and_weights_are_the_readers(tmp_path: Path) -> None:
    folder = model_folders.write("vgg16", tmp_path, tiny=True, max_batch=4)
    assert Repository(tmp_path).names() == ["vgg16"]
    one, other = model_folders.read(folder, 4), model_folders.read(folder, 7)
    assert (one.info.batching.max_batch, other.info.batching.max_batch) == (4, 7)
    assert isinstance(one.call, nn.Module)
    assert isinstance(other.call, nn.Module)
    for mine, theirs in zip(one.call.parameters(), other.call.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()


def test_figure6a_times_copies_that_arrive(platform: Platform) -> None:
    found = figure6.figure6a(platform, 2, 8, 4)
    assert [cell["pieces"] for cell in found["cells"]] == [1, 2, 4, 8]
    assert found["row_bytes"] == 3 * 4 * 4 * 4
    assert all(len(cell[key]) == 2 and min(cell[key]) > 0 for cell in found["cells"] for key in ("bare_ms", "slots_ms"))


def test_figure6b_runs_every_split(platform: Platform, tmp_path: Path) -> None:
    folder = model_folders.write("resnet50", tmp_path, tiny=True, max_batch=4)
    found = figure6.figure6b(platform, folder, "fp32", 1, (4, 2, True))
    assert [(cell["workers"], cell["size"]) for cell in found["cells"]] == [(1, 4), (2, 2)]
    assert all(cell[key][0] > 0 for cell in found["cells"] for key in ("eager_ms", "graphs_ms", "engine_ms"))
    assert all(cell["engine_graphs"] for cell in found["cells"])


def test_effects_cover_workers_depths_graphs_and_sharing(platform: Platform, tmp_path: Path) -> None:
    folder = model_folders.write("resnet50", tmp_path, tiny=True, max_batch=2)
    found = effects.effects(platform, folder, ["fp32"], effects.Scale(1, 0.005, (2,), 2, 1))
    cells = {(cell["graphs"], cell["workers"], cell["size"], cell["depth"]) for cell in found["cells"]}
    with_graphs = {(True, workers, 2, depth) for workers in (1, 2) for depth in (1, 2, 3)}
    assert cells == with_graphs | {(False, 1, 2, 2), (False, 2, 2, 2)}
    assert all(rate > 0 for cell in found["cells"] for rate in cell["rows_s"])
    assert {(cell["copies"], cell["size"]) for cell in found["sharing"]} == {(1, 2), (2, 2)}


def test_boundaries_cover_cuts_steps_and_joins(platform: Platform) -> None:
    found = boundaries.boundaries(platform, boundaries.Scale((1, 2), 4, 5, 3, 4))
    cells = {(cell["what"], cell["graphs"], cell["size"]): cell for cell in found["cells"]}
    assert set(cells) == {
        (what, graphs, size) for what in ("cut", "step") for graphs in (True, False) for size in (1, 2)
    }
    assert {len(cells["cut", True, 2][key]) for key in ("whole_us", "cut_us")} == {4}
    assert {key: len(cells["step", True, 2][key]) for key in ("host_us", "device_us", "join_us")} == {
        "host_us": 2, "device_us": 2, "join_us": 1,
    }  # fmt: skip


def test_bulk_batches_are_stopped_and_stand_beside(platform: Platform) -> None:
    found = preemption.preemption(platform, preemption.Scale((1, 2, 4), 4, 8, 4, 6))
    assert [cell["stages"] for cell in found["cells"]] == [1, 2, 4]
    for cell in found["cells"]:
        assert len(cell["whole_us"]) == len(cell["alone_us"]) == 6
        assert len(cell["stop_us"]) == len(cell["real_us"]) <= 6
    assert len(found["beside"]) == 1
    assert all(len(cell["beside_us"]) == 6 and cell["bulk_rows_s"] > 0 for cell in found["beside"])


def test_a_loop_leaves_nothing_for_the_next(platform: Platform, tmp_path: Path) -> None:
    """A report of a loop that was counted by what came after would end that too early."""
    model = model_folders.read(model_folders.write("resnet50", tmp_path, tiny=True, max_batch=2), 2)
    with DrivenDevice(platform, model, Options((2, 2), depth=2)) as driven:
        driven.warm([1, 2])
        for loop in (Loop(2, 1, 2), Loop(1, 2, 1), Loop(2, 2, 2)):
            assert driven.closed(loop, 0.01) > 0
            assert driven._ended.empty()
        assert driven.burst(2) > 0
        assert driven._ended.empty()


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.float().mean() > 2:  # neither the ones of the warm-up nor zeros
            raise ValueError("random rows")
        return torch.zeros(len(images), 1000)


def test_a_unit_that_fails_is_told(platform: Platform, tmp_path: Path) -> None:
    from dataclasses import replace

    model = model_folders.read(model_folders.write("resnet50", tmp_path, tiny=True, max_batch=2), 2)
    with DrivenDevice(platform, replace(model, call=Fails()), Options((2,), graphs=False)) as driven:
        driven.warm([2])
        with pytest.raises(Failed, match="random rows"):
            driven.burst(2)


def test_weights_are_there_once_for_six_workers(platform: Platform, tmp_path: Path) -> None:
    folder = model_folders.write("bert-large", tmp_path, tiny=True, max_batch=4)
    one = memory.figure11(platform, folder, "one", 4)
    six = memory.figure11(platform, folder, "six of the largest", 4)
    assert one["weights"] == six["weights"] > 0
    assert one["weights"] <= one["tensors"] <= six["tensors"] < 1.15 * one["tensors"]
    copied = memory.copies(platform, folder)
    assert copied["allocated"] >= 6 * copied["weights"]


def test_a_child_brings_its_result_or_says_why_not(tmp_path: Path) -> None:
    given = {"repeats": 1, "rows": 2, "pixels": 4}
    assert child.run("figure6a", given, rehearsed=True, limit_s=100)["rows"] == 2
    with pytest.raises(child.ChildError, match=r"(?s)figure6b: ended with 1.*KeyError"):
        child.run("figure6b", {}, rehearsed=True, limit_s=100)


def test_what_fails_or_finds_no_time_ends_nothing_else(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise child.ChildError("broken")

    late = session(tmp_path, rehearsed=False, ends=time.monotonic() + 5)
    found = measurements.run_all(late, [fail, lambda: late.child("figure6a", 100), lambda: {"ran": True}])
    assert found["runs"] == [{"ran": True}]
    assert found["failed"] == ["broken"]
    assert len(found["left_out"]) == 1
    assert "100 s wanted" in found["left_out"][0]


@pytest.mark.parametrize(
    ("output", "code", "passed", "failed"),
    [
        ("....\n24 passed, 3 deselected in 9.1s", 0, 24, []),
        ("FAILED tests/x.py::y - no\n1 failed, 3 passed in 1s", 1, 3, ["FAILED tests/x.py::y - no"]),
        ("9 deselected in 1s", 5, 0, ["pytest ended with 5: 9 deselected in 1s"]),
        ("", 4, 0, ["pytest ended with 4: it said nothing"]),
    ],
)
def test_results_of_pytest(output: str, code: int, passed: int, failed: list[str]) -> None:
    found = measurements.read_tests(output, code)
    assert (found["passed"], found["failed"]) == (passed, failed)


def test_without_cuda_it_says_so_and_ends_with_2(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main(["--out", str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_rehearsed_figures_stay_out_of_the_documentation(capsys: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(["--rehearse"])
    stored = tmp_path / "gpu.json"
    stored.write_text(json.dumps({"rehearsed": True, "known": {"facts": {}}}), encoding="utf-8")
    assert script.main(["--page", str(stored), "--out", str(ROOT / "docs" / "bench" / "never")]) == 1
    assert "rehearsed" in capsys.readouterr().err
    assert not (ROOT / "docs" / "bench" / "never").exists()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["tests", "figure6a", "boundaries", "preemption", "figure11", "figure6b", "effects", "live"]),
        (["--part", "1"], ["tests", "figure6a", "boundaries", "preemption", "figure11", "figure6b", "effects"]),
        (["--part", "2"], ["live"]),
        (["--only", "figure6,tests"], ["tests", "figure6a", "figure6b"]),
        (["--only", "figure8"], ["live"]),
    ],
)
def test_what_is_wanted(arguments: list[str], names: list[str]) -> None:
    chosen = script.chosen_of(arguments)
    assert isinstance(chosen, argparse.Namespace)
    assert [measure.name for measure in script.wanted(chosen)] == names


@pytest.mark.parametrize("arguments", [["--part", "1"], ["--part", "2"]])
def test_a_part_fits_into_a_call(arguments: list[str], tmp_path: Path) -> None:
    chosen = script.chosen_of(arguments)
    whole = session(
        tmp_path, rehearsed=False, models=chosen.effects, served=chosen.served, precisions=chosen.precisions
    )
    assert sum(measure.seconds(whole) for measure in script.wanted(chosen)) <= script.LIMIT_S < 600


@pytest.mark.parametrize(
    "engine", [ENGINE, measurements.Engine((32, 32), 2, graphs=False), measurements.Engine((1, 8), 2)]
)
def test_all_policies_have_the_same_engine(engine: measurements.Engine) -> None:
    found = {}
    for policy, flags in live.contenders(1.5, engine).items():
        graphs = flags[-1] == "--cuda-graphs"
        names = [flag.removeprefix("--").replace("-", "_") for flag in flags[:-1:2]]
        settings = Settings(**dict(zip(names, flags[1:-1:2], strict=True)), cuda_graphs=graphs)
        assert settings.policy == policy
        found[policy] = (settings.workers, settings.push_depth, settings.cuda_graphs)
    assert set(found.values()) == {(engine.workers, engine.push_depth, engine.graphs)}
    assert ("ebird" in found) == (engine == ENGINE)  # it needs a worker of one row, and depth 1


@pytest.mark.parametrize(
    ("arguments", "engine"),
    [
        ([], ENGINE),
        (["--workers", "32", "--push-depth", "2", "--no-graphs"], measurements.Engine((32,), 2, graphs=False)),
        (["--rehearse", "--out", "out"], measurements.Engine((1, 1, 2))),
    ],
)
def test_the_engine_is_chosen_once_for_all(arguments: list[str], engine: measurements.Engine) -> None:
    assert script.chosen_of(arguments).engine == engine


@pytest.mark.parametrize(
    "arguments", [["--workers", "33"], ["--workers", "0,1"], ["--workers", "x"], ["--push-depth", "0"]]
)
def test_an_engine_that_cannot_be_is_refused(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.chosen_of(arguments)
    assert f"{arguments[0]}: expected" in capsys.readouterr().err


class Scraped:
    def __init__(self, text: str) -> None:
        self.text = text

    def call(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        assert (method, path) == ("GET", "/metrics")
        return 200, {}, self.text.encode()


def test_joules_of_a_server() -> None:
    server: Any = Scraped('# TYPE x counter\nstarling_energy_joules_total{source="nvml"} 12.5\n')
    assert live.joules_of(server) == (12.5, "nvml")
    with pytest.raises(ServerError, match="energy"):
        live.joules_of(Scraped("nothing 1\n"))  # type: ignore[arg-type]


def test_contenders_that_find_no_time_are_named(tmp_path: Path) -> None:
    late = session(tmp_path, rehearsed=False, ends=time.monotonic() + 5)
    found: dict[str, Any] = {"model": "m", "peaks": {"window": 1}, "left_out": []}
    live._each(late, found, "peaks", (lambda name: 2, 1.0), ["window", "ebird"])
    live._each(late, found, "peaks", (lambda name: 2, 100.0), ["window", "static"])
    assert found["peaks"] == {"window": 1, "ebird": 2}
    assert [text.partition(":")[0] for text in found["left_out"]] == ["peaks of static"]
