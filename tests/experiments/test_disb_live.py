"""DISB over HTTP: the rates and the models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.models.loading import load
from app.models.repository import Repository
from experiments.disb import live, live_models
from experiments.disb.generate import FOLDER, MODELS
from loadtest.disb.workload import Load, Task, Workload, read

VGG = Task("vgg19_rt", Load("periodic", 100.0), "vgg19")
RESNET = Task("resnet152_be", Load("continuous"), "resnet152", klass="best_effort")


def test_rates_are_scaled_to_the_papers_share_of_the_time() -> None:
    alone_ms = {"vgg19": 8.8, "resnet152": 99.0}
    assert live.scale(Workload("w", 1.0, (VGG, RESNET)), alone_ms) == pytest.approx(0.5)
    assert live.share(Workload("w", 1.0, (VGG, RESNET))) == pytest.approx(0.44)
    with pytest.raises(ValueError, match=r"^resnet152_be: expected a load with a rate, got continuous$"):
        live.per_second(RESNET)


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
    assert live_models._cuts(2, within=True).count("attention") == 2
    assert live_models._cuts(2, within=False) == "cuts = ['bert.encoder.layer.0']\n"


def test_every_column_has_its_server_and_its_base() -> None:
    for column in live.COLUMNS.values():
        assert column.server in live.SERVERS
        assert live.COLUMNS[column.base].server == ("two" if column.server == "two" else "reef")
        assert live.COLUMNS[column.base].only == "realtime"


def test_a_workload_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        live.EXPERIMENT.parse(["--workloads", "A,F"])
    assert "expected some of A, B, C, D, E, REAL, got 'F'" in capsys.readouterr().err
