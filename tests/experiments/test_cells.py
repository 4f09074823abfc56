"""Recurrent models by their cell against whole: alike in what they answer, and told as measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from app.bench.stats import Repeat
from app.models.repository import Repository
from app.models.sources.loaders import load
from app.models.zoo.lstm.model import build
from experiments.cells import cells_live, cells_models, cells_page, cells_steps
from experiments.cells.cells_live import CELLS, PACKED, Search, padded


def test_all_models_answer_as_the_plain_module(tmp_path: Path) -> None:
    cells_live.write_models(tmp_path, "late", "no_wait")
    repository = Repository(tmp_path)
    models = {name: load(sources[0]) for name, sources in repository.scan(required=True).items()}
    assert set(models) == {CELLS, PACKED, *map(padded, cells_live.WIDTHS)}
    assert models[padded(40)].info.batching.length_buckets == (40, 80, 120, 160, 200, 240, 280, 320, 330)
    assert {model.info.batching.max_batch for model in models.values()} == {cells_live.LARGEST}
    plain, lengths = build().eval(), torch.tensor([9, 1, 4])
    ids = torch.randint(0, 10_000, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for name in (CELLS, PACKED, padded(40)):
            result = models[name].call(ids, lengths)
            logits = result[0] if isinstance(result, list) else result
            for row, length in enumerate(lengths.tolist()):
                torch.testing.assert_close(logits[row], plain(ids[row : row + 1, :length])[0], rtol=1e-4, atol=1e-5)


def test_weights_are_those_of_the_plain_module() -> None:
    plain = build().state_dict()
    for make in (cells_models.packed, cells_models.padded):
        assert all(
            torch.equal(weight, plain[name.removeprefix("plain.")]) for name, weight in make().state_dict().items()
        )


def test_requests_are_the_same_for_a_seed(tmp_path: Path) -> None:
    spec = cells_live.DATASETS["WMT-like"]
    rows = cells_live.write_requests(tmp_path / "a.json", spec, 3)
    assert rows == cells_live.write_requests(tmp_path / "b.json", spec, 3)
    assert rows != cells_live.write_requests(tmp_path / "c.json", spec, 4)
    lengths = [len(row) for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert 20 <= lengths[len(lengths) // 2] <= 24
    assert json.loads((tmp_path / "a.json").read_text())[0]["inputs"][0]["shape"] == [1, lengths[0]]


def test_rows_a_second_of_whole_batches() -> None:
    """Two batches of 64 in flight, of a second each: the first requests were answered sooner."""
    batches = range(6)
    intended = np.repeat([max(0, batch - 1) for batch in batches], 64) * 1_000_000_000 + 1
    latency = np.repeat([1, 2, 2, 2, 2, 2], 64) * 1_000_000_000
    run = SimpleNamespace(intended_ns=intended, latency_ns=latency, duration_s=5.0)
    assert cells_live.rows_per_second(cast("Repeat", run)) == 64
    early = SimpleNamespace(intended_ns=intended[:64], latency_ns=latency[:64], duration_s=5.0)
    assert cells_live.rows_per_second(cast("Repeat", early)) == 128


@pytest.mark.parametrize("start", [10.0, 100.0, 1000.0])
def test_a_peak_is_found_from_below_and_above(start: float) -> None:
    search = Search(start)
    for _ in range(40):
        search.told(kept=search.rate <= 123)
    assert search.rate == pytest.approx(123, rel=0.01)


def test_steps_are_counted_by_the_cell_and_whole() -> None:
    network = cells_steps.Network(1, "late")
    ids, lengths = torch.zeros((2, 7), dtype=torch.int64), torch.tensor([7, 3])
    with torch.inference_mode():
        network.whole.call(ids, lengths)
        assert network.counted.steps == 7
        network.bare(ids)
    assert network.counted.steps == 14


def load_of(share: float, p50: float, **others: float) -> dict[str, Any]:
    """`others`: the baselines' medians; their tails are ten times as long."""
    models = {CELLS: p50, **others}
    return {
        "share": share, "rate": 100 * share,
        **{name: {"p50_ms": value, "p99_ms": 10 * value, "requests": 9} for name, value in models.items()},
    }  # fmt: skip


def figures(**changed: Any) -> dict[str, Any]:
    """A run that reaches every target; `changed`: what is other than that."""
    peak, p50, alike, steps, cost = (
        changed.get(name, good) for name, good in
        {"peak": 111.0, "p50": 64.0, "alike": 79.0, "steps": 3, "cost": 109.0}.items()
    )  # fmt: skip
    varied = {
        "dataset": "WMT-like", "spec": "lognormal", "padded": "padded40", "whole": [PACKED, "padded40"],
        "most": {CELLS: 120.0, PACKED: 100.0, "padded40": 90.0, "padded10": 80.0},
        "peaks": {CELLS: peak, PACKED: 100.0, "padded40": 90.0}, "lag_p99_ms": 1.0,
        "loads": [load_of(0.7, p50, packed=100.0, padded40=110.0), load_of(1.1, 999.0, packed=1.0, padded40=2.0)],
    }  # fmt: skip
    one = {
        "dataset": "fixed 20", "spec": "fixed:20", "padded": "padded330", "whole": [PACKED], "lag_p99_ms": 1.0,
        "most": {CELLS: 120.0, PACKED: 100.0, "padded330": 90.0}, "peaks": {CELLS: 50.0, PACKED: 100.0},
        "loads": [load_of(0.2, 100.0, packed=100.0), load_of(0.5, alike, packed=100.0)],
    }  # fmt: skip
    return {
        "datasets": [varied, one], "worst": 1e-7, "facts": {"cores": "2"},
        "steps": {"join": {"cells": [[steps, 4.0], [steps, 5.0], [9, 9.0]], "whole": [[151, 700.0]]},
                  "costs": [{"layers": 2, "bare": 100.0, "together": 101.0, "in_turn": cost}]},
        "settings": {"policy": "late", "whole_policy": "no_wait", "threads": 1, "seconds": 3, "repeats": 2, "try_s": 6,
                     "p99_ms": 1000, "largest": 64, "widths": [10, 330], "bodies": 9, "in_flight": 128, "rows": 32,
                     "steps": 200, "long": 300, "long_rows": 16},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"peak": 109.0}, "WMT-like: peak +9 %, target +10 %"),
        ({"p50": 66.0}, "WMT-like, 0.7 of the peak: p50 0.66 x, target 0.65"),
        ({"alike": 81.0}, "fixed 20, 0.5 of the peak: p50 0.81 x, target 0.8"),
        ({"steps": 4}, "a row of length 1 is answered after 4 steps, target 3"),
        ({"cost": 120.0}, "a step costs +20 % beyond the cell, in turn"),
    ],
)
def test_a_target_that_is_missed_is_told(changed: dict[str, Any], line: str) -> None:
    assert cells_page.missed(figures()) == []
    assert cells_page.missed(figures(**changed)) == [line]


def test_the_page(tmp_path: Path) -> None:
    assert cells_page.write(figures(), tmp_path) == ["cells.png", "cells.md"]
    text = (tmp_path / "cells.md").read_text("utf-8")
    assert "| 0.7 | 70 | 64.0 / 640 | 100 / 1,000 | 110 / 1,100 | 0.64 x / 0.64 x |" in text
    assert "| cells | 3 (3 to 9) | 5.00 |" in text
    assert "| 2 | 100 | 101 (+1, +1 %) | 109 (+9, +9 %) |" in text
    assert "| padded, width 40 | 90 | 90 |" in text
    assert "All are reached." in text
