"""Invariant: a model without a model.toml serves by what `starling new` would write, where it is; nothing is left."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tiny_transformers as tiny
import torch
from torch import nn

from app.errors import ConfigError
from app.models.loading import load
from app.models.repository import Repository
from planner.commands.scaffold.bare import with_model_toml

from . import onnx_graphs
from .folders import try_out, write_model


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """What is written for a while is written here."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert not any(place.glob("starling-*"))


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.save_bert(tmp_path / "weights")
    Path("graphs").mkdir()
    onnx_graphs.doubled(tmp_path / "graphs" / "graph.onnx")
    torch.jit.script(nn.Linear(4, 2).eval()).save("net.pt")
    (tmp_path / "code").mkdir()
    Path("code/model.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 2)\n")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "name", "inputs"),
    [
        ("weights", "weights", ["text"]),
        ("graphs", "graphs", ["values", "mask"]),
        ("graphs/graph.onnx", "graph", ["values", "mask"]),
        ("net.pt", "net", ["input"]),
        ("code", "code", ["input"]),
    ],
)
def test_a_folder_or_a_file_serves_where_it_is(places, place, name, inputs):
    with with_model_toml(place, []) as changed:
        ((found, (source,)),) = Repository(changed["models"]).scan().items()
        assert found == name
        model = load(source)
        assert try_out(model) == []
        seen = model.front.client_info(model.info) if model.front else model.info
        assert [spec.name for spec in seen.inputs] == inputs
    with with_model_toml("demo", [f"other={place}"]) as changed:
        assert list(changed) == ["model"]
        assert list(Repository(None, changed["model"]).scan()) == ["other"]


def test_what_has_a_model_toml_or_is_a_set_is_left_alone(places):
    write_model(places / "mine" / "net")
    for models, named in (("demo", []), ("mine", ["a=mine/net"]), ("mine/net", []), ("nosuch", [])):
        with with_model_toml(models, named) as changed:
            assert changed == {}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("labels.csv", r"models: labels.csv: expected its folder, or a model's file, one of \*.pt2"),
        ("iris.joblib", "iris.joblib: expected a network: .* examples/sklearn"),
        ("gpt", "GPT2DoubleHeadsModel, which fit no task that is served"),
    ],
)
def test_what_cannot_be_served_so_says_what_to_do(tmp_path, monkeypatch, place, message):
    monkeypatch.chdir(tmp_path)
    for name in ("labels.csv", "a b.pt", "iris.joblib", "net.pt2"):
        Path(name).write_text("x")
    Path("gpt").mkdir()
    Path("gpt/config.json").write_text('{"architectures": ["GPT2DoubleHeadsModel"]}')
    with pytest.raises(ConfigError, match=message), with_model_toml(place, []):
        pass


def test_it_is_opened_once_to_look_at_it(tmp_path):
    built = tmp_path / "built"
    code = f"def build():\n    with open({str(built)!r}, 'a') as file:\n        file.write('once')\n"
    (tmp_path / "model.py").write_text(f"from torch import nn\n{code}    return nn.Linear(4, 2)\n")
    with with_model_toml(str(tmp_path), []):
        assert built.read_text() == "once"
