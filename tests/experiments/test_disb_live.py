"""DISB over HTTP: the rates, the models, and a page made from figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from app.bench.workload import Load, Task, Workload, read
from app.models.repository import Repository
from app.models.sources.loaders import load
from experiments.disb import live, live_models, live_page
from experiments.disb.generate import FOLDER, MODELS

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


def run(mean: float, answers: float) -> dict[str, Any]:
    figures = {"mean_ms": mean, "p99_ms": 2 * mean, "throughput": answers, "dropped": 1}
    return {"classes": {"realtime": figures, "all": figures}, "lag_p99_ms": 0.2}


def figures(reef: float = 11.0, answers: float = 30.0) -> dict[str, Any]:
    runs = {
        name: [run(10.0 if column.only else reef, 10.0 if column.only else answers)] * 2
        for name, column in live.COLUMNS.items()
    }
    runs["seq"] = [run(20.0, 29.0)] * 2
    runs["reef_2"] = [run(10.2, 31.0)] * 2
    return {
        "settings": {"seconds": 2, "repeats": 2, "seed": 0}, "facts": {"cores": "2"},
        "columns": {name: column.title for name, column in live.COLUMNS.items()},
        "base": {name: column.base for name, column in live.COLUMNS.items()},
        "models": {"vgg19": {"is": "mlp", "paper_ms": 4.4, "alone_ms": 5.5}},
        "beside": {"mlp": {"mlp": 0.015}}, "workloads": {"A": {"scale": 0.8, "share": 0.44, "runs": runs}},
    }  # fmt: skip


def test_the_page(tmp_path: Path) -> None:
    assert live_page.write(figures(), tmp_path) == ["disb-live.md"]
    text = (tmp_path / "disb-live.md").read_text("utf-8")
    assert "All are reached." in text
    assert "| A | 1.10 (1.10 to 1.10) | 2.00 (2.00 to 2.00) |" in text
    assert "| mlp | +1.5% |" in text
    assert "The machine has 2 cores" in text


def test_targets_that_are_missed_are_told() -> None:
    assert live_page.missed(figures()) == []
    assert live_page.missed(figures(reef=12.0)) == ["A, reef: real-time mean 1.20 x alone, not 1.15"]
    assert live_page.missed(figures(answers=28.0)) == ["A, reef: 2.80 x the answers of real time alone, seq 2.90"]


def test_a_workload_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        live.EXPERIMENT.parse(["--workloads", "A,F"])
    assert "expected some of A, B, C, D, E, REAL, got 'F'" in capsys.readouterr().err
