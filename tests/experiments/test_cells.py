"""Recurrent models by their cell against whole: the same answers."""

from __future__ import annotations

from pathlib import Path

import torch

from app.models.loading import load
from app.models.repository import Repository
from experiments.cells import cells_live
from experiments.cells.cells_live import CELLS, PACKED, padded
from loadtest.models.lstm.model import build


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
