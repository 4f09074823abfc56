"""Recurrent models by their cell against whole: the same answers, and how they are measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from app.bench.stats import Repeat
from app.models.loading import load
from app.models.repository import Repository
from app.models.zoo.lstm.model import build
from experiments.cells import cells_live, cells_steps
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
