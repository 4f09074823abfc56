"""The page of the GPU script: empty places where nothing was measured, and what was measured where it belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtest.gpu import page, tables

MIB = 1 << 20


def case(name: str, workers: list[int], **bytes_: int) -> dict[str, Any]:
    given = {"weights": 100, "tensors": 100, "pools": 10, "workspaces": 8, "peak": 130, "driver": 140} | bytes_
    sizes = {key: mib * MIB for key, mib in given.items()}
    return {"model": "bert-large", "case": name, "workers": workers, "captured": True, "graphs": 6, **sizes}


def cell(graphs: bool, workers: int, depth: int, rate: float, precision: str = "fp32") -> dict[str, Any]:
    return {"precision": precision, "graphs": graphs, "captured": graphs, "workers": workers, "size": 8,
            "depth": depth, "rows_s": [rate, rate + 2, rate + 1]}  # fmt: skip


def found(runs: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {"runs": runs, "left_out": [], "failed": [], **changes}


CONTEST = {
    "model": "resnet152", "engine": {"workers": [1, 2], "push_depth": 1, "graphs": True},
    "delay_ms": 4.5, "rates": [300.0, 900.0], "counts": [2, 3],
    "profile": {"batch_ms": {"1": 5.0, "32": 16.0}, "largest": 32},
    "peaks": {
        "window": {"rate": 1000.0, "p99_ms": 150.0, "mean_batch": 20.0, "why": "99th percentile above 200 ms"},
        "ebird": {"rate": 1344.0, "p99_ms": 190.0, "mean_batch": 6.0, "why": "x"},
        "static": {"rate": None, "why": "no rate keeps it"},
    },
    "burst": {
        "window": {"latency_ms": [[10.0, 10.0, 20.0, 20.0, 20.0]], "errors": 0, "lag_p99_ms": 0.1},
        "ebird": {"latency_ms": [[5.0, 5.0, 15.0, 15.0, float("nan")]], "errors": 1, "lag_p99_ms": 0.2},
        "static": {"why": "the server ended"},
    },
    "steady": {"window": [{"rate": 300.0, "mean_ms": 9.0, "joules": 0.25, "source": "nvml"}]},
}  # fmt: skip

KNOWN: dict[str, Any] = {
    "facts": {"Part 1": {"gpu": "a GPU"}},
    "tests": {"passed": 3, "failed": [], "left_out": [], "last": "3 passed in 2s"},
    "figure6a": found(
        [{"rows": 4, "row_bytes": 2048, "issue_us": 3.5, "cells": [
            {"pieces": 1, "bare_ms": [1.0, 1.1, 1.2], "slots_ms": [1.0, 1.3, 1.2]},
            {"pieces": 4, "bare_ms": [1.5, 1.6, 1.7], "slots_ms": [2.0, 2.2, 2.1]}]}]
    ),
    "figure6b": found(
        [{"model": "resnet50", "precision": "bf16", "rows": 4, "cells": [
            {"workers": 1, "size": 4, "eager_ms": [9.0], "graphs_ms": [8.0], "engine_ms": [8.0], "engine_graphs": True},
            {"workers": 2, "size": 2, "graphs_ms": [8.5], "engine_ms": [12.0], "engine_graphs": False}]}]
    ),
    "figure11": found(
        [case("one", [32]), case("six, Ebird's", [1, 1, 2, 4, 8, 16], tensors=110, pools=90),
         {"model": "bert-large", "copies": 6, "allocated": 600 * MIB, "weights": 100 * MIB}]
    ),
    "boundaries": found(
        [{"stages": 4, "width": 512, "steps": 64, "cells": [
            {"what": "cut", "graphs": True, "size": 8, "whole_us": [50.0, 60.0, 70.0], "cut_us": [180.0]},
            {"what": "step", "graphs": False, "size": 1, "host_us": [90.0], "device_us": [30.0], "join_us": []}]}]
    ),
    "preemption": found(
        [{"rows": 512, "layers": 8, "width": 4096,
          "cells": [{"stages": 4, "whole_us": [900.0], "stop_us": [200.0, 300.0, 250.0],
                     "alone_us": [100.0], "real_us": [150.0]}],
          "beside": [{"alone_us": [100.0], "beside_us": [140.0], "bulk_rows_s": 9000.0}]}]
    ),
    "effects": found(
        [{"model": "vgg16",
          "cells": [cell(True, 1, 2, 100), cell(True, 1, 1, 80), cell(True, 1, 3, 120), cell(True, 2, 2, 150),
                    cell(False, 1, 2, 50), cell(True, 1, 2, 300, "bf16")],
          "sharing": [{"precision": "fp32", "copies": 1, "size": 8, "ms": [2.0]},
                      {"precision": "fp32", "copies": 6, "size": 8, "ms": [4.0]}]}],
        left_out=["effects of bert-base"],
    ),
    "live": found([CONTEST]),
}  # fmt: skip


def test_a_page_of_nothing_has_empty_places(tmp_path: Path) -> None:
    (path,) = page.write({"facts": {}}, False, tmp_path)
    text = path.read_text("utf-8")
    assert page.UNRUN in text
    assert text.count(page.NOTHING) == 10  # the tests, 6a, 6b, 11, boundaries, preemption, effects, 9, 8, energy
    assert "| --- |" not in text
    assert "](" not in text


def test_a_page_of_all_shows_it_and_its_plots(tmp_path: Path) -> None:
    names = [path.name for path in page.write(KNOWN, False, tmp_path)]
    assert sorted(names) == ["effects.png", "figure11.png", "figure6.png", "figure8.png", "figure9.png", "gpu.json",
                             "gpu.md"]  # fmt: skip
    assert len(names) <= 8  # as many files come back from a lent machine
    text = (tmp_path / "gpu.md").read_text("utf-8")
    assert page.NOTHING not in text
    assert page.REHEARSED not in text
    for line in (
        "| 4 | 1.600 (1.500 to 1.700) | +0.500 | 2.100 (2.000 to 2.200) | +0.900 |",
        "| ResNet-50 | bf16 | 2 x 2 |  | 8.50 (8.50 to 8.50) | 12.00 (12.00 to 12.00), no graphs | 1.50 |",
        "- six, Ebird's: 1.100, within 1.15; with graphs' pools 1.818, NOT within",
        "6 copies of the weights, a worker each, take 600.0 MiB: 6.00 x one.",
        "| VGG-16 | fp32 | 8 | 101 (100 to 102) | 151 (150 to 152) |",
        "| VGG-16 | fp32 | 8 | 1 | 101 (100 to 102) | 51 (50 to 52) | 1.98 |",
        "| VGG-16 | 8 | 1 | 301 (300 to 302) | 101 (100 to 102) | 2.98 |",
        "| VGG-16 | fp32 | 8 | 2.000 (2.000 to 2.000) | 4.000 (4.000 to 4.000) | 0.50 |",
        "| ResNet-152 | ebird | 1344 | +34.4% | 190 | 6.0 | 67% | x |",
        "| ResNet-152 | static | none |  |  |  |  | no rate keeps it |",
        "| ResNet-152 | ebird | 5.00 | 15.0 | 15.0 | 50.0% | 25.0% | 1 | 0.20 |",
        "| ResNet-152 | window | 300 | 9.00 | 0.2500 | nvml |",
        "| yes | 8 | 60 (50 to 70) | 180 (180 to 180) | 40 |",
        "| no | 1 | 90 (90 to 90) | 30 (30 to 30) |  |",
        "| 4 | 900 (900 to 900) | 250 (200 to 300) | 299 | 100 (100 to 100) | 150 (150 to 150) |",
        "| 100 (100 to 100) | 140 (140 to 140) | +40% | 9000 |",
        "Left out: effects of bert-base.",
        "All policies: workers of 1, 2 rows, push depth 1, with CUDA graphs.",
        "`pytest -m cuda tests/engine`: 3 passed in 2s.",
    ):
        assert line in text, line


def test_depths_stand_beside_depth_two() -> None:
    text = tables.effects(KNOWN["effects"]["runs"])
    assert "| 81 (80 to 82) | 101 (100 to 102) | 121 (120 to 122) | 0.80 | 1.20 |" in text


def test_a_rehearsal_says_so_and_stays_one(tmp_path: Path) -> None:
    page.write({"facts": {}, "tests": KNOWN["tests"]}, True, tmp_path)
    assert page.REHEARSED in (tmp_path / "gpu.md").read_text("utf-8")
    assert page.join([tmp_path / "gpu.json"])[1]


def test_parts_are_joined(tmp_path: Path) -> None:
    for name in ("figure11", "live"):
        page.write({"facts": {name: {"gpu": name}}, name: KNOWN[name]}, False, tmp_path / name)
    known, rehearsed = page.join([tmp_path / name / "gpu.json" for name in ("figure11", "live")])
    assert not rehearsed
    assert sorted(known) == ["facts", "figure11", "live"]
    assert sorted(known["facts"]) == ["figure11", "live"]
    with pytest.raises(FileNotFoundError):
        page.join([tmp_path / "none.json"])
