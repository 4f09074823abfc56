"""DISB over HTTP: the rates and the models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.models.loading import load
from app.models.repository import Repository
from experiments.disb import live, live_models
from experiments.disb.generate import FOLDER, MODELS
from loadtest.disb.workload import read


@pytest.mark.parametrize("name", live.WORKLOADS)
def test_real_time_alone_leaves_time_in_every_workload(name: str) -> None:
    given = read(FOLDER / f"{name}.json")
    assert 0.3 < live.share(given) < 1
    twice = live.scale(given, {model: 2 * ms for model, ms in live.PAPER_MS.items()})
    assert twice == pytest.approx(0.5)
    assert set(live.used(given)) <= set(MODELS) == set(live_models.PLACES)


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
