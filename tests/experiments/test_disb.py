"""DISB: its models over HTTP."""

from __future__ import annotations

from pathlib import Path

import torch

from app.models.loading import load
from app.models.repository import Repository
from experiments.disb import live_models


def test_models_are_in_stages(tmp_path: Path) -> None:
    live_models.write_models(tmp_path)
    found = Repository(tmp_path).scan(required=True)
    assert set(found) == set(live_models.PLACES.values())
    for name, stages in (("mlp", 4), ("cnn32", 3), ("cnn48", 7)):  # the encoders are cut as `cuts` says, tested there
        model = load(found[name][0])
        assert len(model.stages) == stages
        assert model.info.batching.max_batch == 1
        (spec,) = model.info.inputs
        with torch.inference_mode():
            assert model.call(torch.zeros((1, *spec.shape))) is not None
    assert live_models._cuts(2, within=True).count("bert.encoder.layer.1.attention") == 1
    assert live_models._cuts(2, within=False) == ["bert.encoder.layer.0"]
