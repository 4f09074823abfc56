"""Invariant: a new folder passes `starling check`; whatever fails says why and leaves nothing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tiny_transformers as tiny
import torch
from torch import nn

from app.errors import ConfigError
from app.models.sources.opening import MODEL_FILES
from planner.commands.new_folder import make, parse_input
from planner.commands.scaffold.guess import exported_inputs, guesses
from planner.commands.scaffold.new_task import fitting_task, names_task

from . import onnx_graphs
from .folders import write_model

NETS = """
import collections
import torch
from torch import nn
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    def forward(self, features): return super().forward(features)
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 30 * 30, 10)
    def forward(self, image):
        return {"scores": self.head(self.conv(image).flatten(1))}
class Tags(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.head = nn.Embedding(100, 8), nn.GRU(8, 6, batch_first=True), nn.Linear(6, 3)
    def forward(self, ids):
        return self.head(self.gru(self.embed(ids))[0])
class Bag(nn.Sequential):
    def __init__(self): super().__init__(nn.Embedding(100, 8))
    def forward(self, ids): return super().forward(ids).mean(1), ids.float()
class Two(nn.Module):
    def forward(self, a, b): return a + b
Both = collections.namedtuple("Both", ["logits", "label"])
class Named(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(4, 3))
    def forward(self, x):
        logits = super().forward(x)
        return Both(logits, logits.argmax(1))
def doubled(): return lambda x: x * 2
def extremes(): return lambda x: x.aminmax(dim=1)
def exported():
    batch = ({0: torch.export.Dim.DYNAMIC},)
    return torch.export.export(nn.Linear(4, 2), (torch.ones(2, 4),), dynamic_shapes=batch).module()
def leaves(): raise SystemExit(3)
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A module of models that can be imported."""
    (tmp_path / "nets_of_new.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "nets_of_new"


def fit(folder, origin, *inputs, **options):
    """A new folder, which passes the check. `inputs` as they are written in a terminal."""
    made = make(folder, str(origin), [parse_input(text) for text in inputs], **options)
    assert made.checked.error == ""
    return made


def wrong(message, folder, origin, *inputs, **options):
    """Why no folder is made."""
    before = set(folder.parent.glob("*"))
    with pytest.raises(ConfigError, match=message):
        make(folder, str(origin), [parse_input(text) for text in inputs], **options)
    assert set(folder.parent.glob("*")) == before


def toml(made):
    return tomllib.loads(made.toml)


def shapes(tables):
    return {table["name"]: (table["datatype"], table["shape"]) for table in tables}


def tensors(made):
    written = toml(made)
    return shapes(written["inputs"]), shapes(written["outputs"])


@pytest.mark.parametrize(
    ("name", "given", "inputs", "outputs"),
    [
        ("Net", [], {"features": ("FP32", [4])}, {"output": ("FP32", [2])}),
        ("Small", [], {"image": ("FP32", [3, 32, 32])}, {"scores": ("FP32", [10])}),
        ("Tags", [], {"ids": ("INT64", ["tokens"])}, {"output": ("FP32", ["tokens", 3])}),
        ("Named", [], {"x": ("FP32", [4])}, {"logits": ("FP32", [3]), "label": ("INT64", [])}),
        ("extremes", ["x:FP32[4]"], {"x": ("FP32", [4])}, {"min": ("FP32", []), "max": ("FP32", [])}),
        ("Two", ["a:FP32[2]", "b:FP32[2]"], {"a": ("FP32", [2]), "b": ("FP32", [2])}, {"output": ("FP32", [2])}),
        ("exported", ["input:FP32[4]"], {"input": ("FP32", [4])}, {"output": ("FP32", [2])}),
    ],
)
def test_a_class_or_a_factory_is_looked_at_and_run(tmp_path, nets, name, given, inputs, outputs):
    made = fit(tmp_path / "m", f"{nets}:{name}", *given)
    written = toml(made)
    assert written["source"] == f"{nets}:{name}"
    assert tensors(made) == (inputs, outputs)
    assert written.get("recurrent", False) is (name == "Tags")


def test_weights_are_copied_and_named(tmp_path, nets):
    weights = tmp_path / "trained.pt"
    torch.save(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).state_dict(), weights)
    made = fit(tmp_path / "m", f"{nets}:Net", weights=weights)
    assert toml(made)["weights"] == "trained.pt"
    assert "trained.pt" in made.files
    made = make(tmp_path / "n", f"{nets}:Small", [], weights=weights)
    assert "expected weights that fit the model" in made.checked.error
    wrong("weights: expected a file, got ", tmp_path / "o", f"{nets}:Net", weights=tmp_path / "gone.pt")


def test_a_model_that_takes_padding_for_data_fails_the_check(tmp_path, nets):
    made = make(tmp_path / "new" / "m", f"{nets}:Bag", [])
    assert "a row's answer depends on how far it is padded" in made.checked.error
    assert not (tmp_path / "new").exists()
    assert tensors(made)[1] == {"output_0": ("FP32", [8]), "output_1": ("FP32", ["tokens"])}


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("Two", [], "its forward takes a, b, of which no shapes are known: give the inputs by --input"),
        ("Two", ["a:FP32[2]", "b:FP32[3]"], r"cannot be run on made-up rows: .*size of tensor"),
        ("Two", ["x:FP31[3]"], r"^input: datatype: expected one of BOOL.*, got 'FP31'$"),
        ("doubled", [], "a function does not say what it takes: give the inputs by --input"),
        ("leaves", [], "SystemExit: 3"),
        ("missing", [], "expected a callable 'missing'"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for_and_leaves_no_folder(tmp_path, nets, name, given, message):
    wrong(message, tmp_path / "new" / "m", f"{nets}:{name}", *given)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ids:INT64[tokens, 4]", ("ids", "INT64", ["tokens", 4])), ("a:b:FP32[]", ("a:b", "FP32", []))],
)
def test_inputs_as_they_are_written(text, expected):
    assert tuple(parse_input(text).values()) == expected


@pytest.mark.parametrize("text", ["x", "x:FP32", "x FP32[3]", ":FP32[3]", "x:fp32[3]"])
def test_inputs_that_are_written_otherwise(text):
    with pytest.raises(ConfigError, match=r"input: expected NAME:DATATYPE\[SHAPE\]"):
        parse_input(text)


def files(folder):
    folder.mkdir()
    torch.jit.script(nn.Linear(4, 2).eval()).save(str(folder / "net.pt"))
    onnx_graphs.doubled(folder / "graph.onnx")


TIMES = ("FP32", ["time"])


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("net.pt", {"input": ("FP32", [4])}, {"output": ("FP32", [2])}),
        ("graph.onnx", {"values": TIMES, "mask": TIMES}, {"kept": TIMES, "total": ("FP32", [])}),
    ],
)
def test_files_are_copied_and_looked_at(tmp_path, name, inputs, outputs):
    files(tmp_path / "in")
    made = fit(tmp_path / "m", tmp_path / "in" / name)
    assert set(made.files) == {name, "model.toml", "request.json"}
    assert tensors(made) == (inputs, outputs)


def test_inputs_of_an_exported_program():
    class Sum(nn.Module):
        def forward(self, ids, mask):
            return (ids * mask).sum(1)

    dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim("t", max=50)}
    example = torch.ones(2, 5, dtype=torch.int64)
    program = torch.export.export(Sum(), (example, example), dynamic_shapes=(dims, dims))
    shape = {"datatype": "INT64", "shape": ["length"], "max_shape": [50]}
    assert exported_inputs(program) == [{"name": "ids", **shape}, {"name": "mask", **shape}]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_program_of_one_batch_size_says_how_to_export_it(rows):
    program = torch.export.export(nn.Linear(3, 3), (torch.ones(rows, 3),))
    wanted = rf"'input': expected a batch of any size .*, got \[{rows}, 3\]: export it with"
    with pytest.raises(ConfigError, match=wanted) as caught:
        exported_inputs(program)
    assert ("max_batch = 1" in str(caught.value)) is (rows == 1)


def test_a_class_in_a_file_is_found_where_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    made = fit(Path("m"), "net.py:Net")
    assert toml(made)["source"] == f"{tmp_path.as_posix()}/net.py:Net"


def test_a_folder_of_a_model_is_copied_whole(tmp_path):
    origin = write_model(tmp_path / "origin")
    (origin / ".hidden").write_text("")
    assert fit(tmp_path / "copy", origin).files == ("model.py", "model.toml", "request.json")
    (origin / "model.toml").unlink()
    assert fit(tmp_path / "guessed", origin, "x:FP32[3]")
    made = fit(tmp_path / "large", origin, "x:FP32[3,64,64]")
    assert np.load(made.folder / "request.npy").shape == (3, 64, 64), "a large row is sent as an array"
    assert "--data-binary @" in made.curl


def test_nothing_is_overwritten(tmp_path):
    files(tmp_path / "in")
    (tmp_path / "iris.joblib").touch()
    for name, origin, message in (
        ("m", tmp_path / "iris.joblib", r"iris.joblib: expected a network: .* examples/sklearn"),
        ("m", tmp_path / "in", r"expected model.toml, model.py .*, found graph.onnx, net.pt"),
        ("m", tmp_path / "nosuch", "from: expected package.module:Class"),
        ("m", tmp_path, "expected a folder outside of"),
        ("in", "", "is there already"),
        ("a b", "", "name: expected letters"),
    ):
        wrong(message, tmp_path / name, origin)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 2, 3, groups=2), [4, "time"]),
        (nn.LSTM(5, 2), ["time", 5]),
        (nn.BatchNorm1d(6), [6]),
        (nn.Conv2d(3, 4, 3), [3, 224, 224]),
    ],
)
def test_layers_that_say_what_they_take(layer, shape):
    assert next(guesses(nn.Sequential(nn.ReLU(), layer)))[0]["shape"] == shape
    with pytest.raises(ConfigError, match="none of its layers says what it takes"):
        next(guesses(nn.Sequential(nn.ReLU(), nn.Tanh())))


def saved(folder, config, **files):
    """What lies beside weights, without them."""
    folder.mkdir()
    for name, content in {"config": config, "tokenizer": {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


CLASSIFIES = {"architectures": ["BertForSequenceClassification"]}
ONE_LABEL = {**CLASSIFIES, "id2label": {"0": "LABEL_0"}}


@pytest.mark.parametrize(
    ("config", "files", "task"),
    [
        (CLASSIFIES, {}, "text-classification"),
        ({"architectures": ["ViTForImageClassification"]}, {}, "image-classification"),
        ({"architectures": ["BertModel"]}, {}, "feature-extraction"),
        ({"architectures": ["BertForMaskedLM"]}, {}, "fill-mask"),
        # sentence-transformers give vectors whatever head there was, and their cross-encoders rank
        ({"architectures": ["MPNetForMaskedLM"]}, {"modules": []}, "feature-extraction"),
        ({**ONE_LABEL, "sentence_transformers": {}}, {}, "rerank"),
        (ONE_LABEL, {"modules": [], "config_sentence_transformers": {"model_type": "CrossEncoder"}}, "rerank"),
    ],
)
def test_architectures_say_the_task(tmp_path, config, files, task):
    assert fitting_task(saved(tmp_path / "saved", config, **files)) == task


def test_no_task_is_made_up(tmp_path):
    message = r"config.json: has .* no task that is served; .* --task text-classification\|"
    wrong(message, tmp_path / "m", saved(tmp_path / "saved", {"architectures": None}))
    folder = saved(tmp_path / "vectors", {"architectures": ["MPNetForMaskedLM"]}, modules=[])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError):
        fitting_task(folder)
    (folder / "adapter_config.json").write_text("{}")
    wrong("adapter_config.json: an adapter is not applied: save the whole model", tmp_path / "m", folder)


@pytest.mark.parametrize("origin", ["weights", "hf:weights"])
def test_a_folder_of_transformers_stays_where_it_is(origin, tmp_path, monkeypatch):
    """model.toml finds it from its own folder, and a request is made."""
    tiny.save_bert(tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    made = fit(Path("models/mood"), origin)
    assert toml(made) == {"source": "hf:../../weights", "task": "text-classification"}
    assert made.files == ("model.toml", "request.json")
    (sent,) = json.loads((made.folder / "request.json").read_text())["inputs"]
    assert (sent["name"], sent["datatype"], sent["shape"]) == ("text", "BYTES", [1])
    assert made.curl == "curl localhost:8000/v2/models/mood/infer -d @models/mood/request.json"


def test_what_a_training_leaves_beside_the_weights_is_no_other_model(tmp_path):
    tiny.save_bert(tmp_path / "weights")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "model.onnx"):
        (tmp_path / "weights" / name).write_bytes(b"")
    assert names_task(tmp_path / "weights", MODEL_FILES)
    (tmp_path / "weights" / "model.safetensors").unlink()
    assert not names_task(tmp_path / "weights", MODEL_FILES)  # the graph is the model


def test_texts_that_belong_together_are_asked_for_together(tmp_path):
    tiny.save_bert(tmp_path / "weights", id2label={0: "contradiction", 1: "entailment"})
    made = fit(tmp_path / "nli", tmp_path / "weights")
    assert toml(made)["task_options"] == {"pairs": True}
    zero = fit(tmp_path / "zero", tmp_path / "weights", task="zero-shot-classification")
    for one, expected in ((made, {"text": [1], "text_pair": [1]}), (zero, {"text": [1], "candidate_labels": [1, 2]})):
        sent = json.loads((one.folder / "request.json").read_text())["inputs"]
        assert {tensor["name"]: tensor["shape"] for tensor in sent} == expected


def test_a_task_may_be_given(tmp_path):
    weights = tmp_path / "weights"
    tiny.save_bert(weights)
    assert toml(fit(tmp_path / "vectors", weights, task="feature-extraction"))["task"] == "feature-extraction"
    failed = make(tmp_path / "objects", str(weights), [], task="image-classification")
    assert "task: expected weights of a model ForImageClassification" in failed.checked.error
    assert failed.curl == ""
    message = "task: expected --from a folder of transformers or hf:NAME beside it"
    wrong(message, tmp_path / "m", "torchvision:resnet18", task="image-classification")
    wrong("task: expected no --input", tmp_path / "m", weights, "x:FP32[3]")
