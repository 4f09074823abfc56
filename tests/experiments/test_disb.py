"""DISB: the workloads that ship, its modelled GPU in virtual time, and its models over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.models.loading import load
from app.models.repository import Repository
from experiments.disb import generate, live_models, simulated
from experiments.disb.client.workload import Load, Task, Workload, read
from experiments.disb.generate import FOLDER
from experiments.disb.gpu import LAUNCH_US
from experiments.disb.simulated import COLUMNS, Assumed, alone_ns

# The workloads that are shipped are what the script writes.


def test_the_files_are_what_the_script_writes() -> None:
    written = generate.workloads()
    assert {path.stem for path in FOLDER.glob("*.json")} == set(written)
    for name, workload in written.items():
        assert (FOLDER / f"{name}.json").read_text("utf-8") == generate.text(workload)


# The modelled GPU, clients in virtual time, and a page made from a tiny run.


LAUNCH = round(1000 * LAUNCH_US)
VGG_RT = Task("vgg19_rt", Load("periodic", 100.0), "vgg19")
RESNET_BE = Task("resnet152_be", Load("continuous"), "resnet152", klass="best_effort")
ALONE = Assumed(pads=False)


def test_reef_starts_real_time_at_once_and_ends_best_effort_with_its_kernel() -> None:
    played = COLUMNS["reef"].play(Workload("w", 0.5, (VGG_RT, RESNET_BE)), 0, ALONE)
    assert set(played.wait_ns["vgg19_rt"]) == {LAUNCH}
    assert (played.outcomes[0].latency_ns < 1.02 * alone_ns(VGG_RT)).all()
    answers = sum(len(outcome.played.due) for outcome in played.outcomes)
    assert answers < played.units <= answers + 50  # a recall for each real-time request at most


@pytest.mark.parametrize("name", COLUMNS)
def test_all_columns_answer_everything(name: str) -> None:
    workload = replace(read(FOLDER / "E.json"), time_s=0.1)
    played = COLUMNS[name].play(workload)
    for outcome in played.outcomes:
        task = outcome.played.task
        assert outcome.played.right.count(True) == len(outcome.played.due)
        assert len(played.wait_ns[task.id]) == (len(outcome.played.due) if task.klass == "realtime" else 0)
        assert (outcome.latency_ns >= alone_ns(task) - 1000).all()
    classes = {outcome.played.task.klass for outcome in played.outcomes}
    assert classes == ({"realtime"} if name.startswith("rt_") else {"realtime", "best_effort"})


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "VARIED", ("A",))
    monkeypatch.setattr(simulated, "VARIATIONS", {"as assumed": Assumed(), "no padding": ALONE})
    options = ["--seconds", "0.05", "--workloads", "A,REAL", "--out", str(tmp_path)]
    assert simulated.EXPERIMENT.main(options) == 0
    data = json.loads((tmp_path / "disb-simulated.json").read_text("utf-8"))
    assert len(data["cells"]) == 2 * len(COLUMNS)
    assert len(data["varied"]) == 2
    assert (tmp_path / "disb-simulated.md").exists()


# DISB over HTTP: the models.


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
