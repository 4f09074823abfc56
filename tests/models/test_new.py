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

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")

NETS = """
import collections
import torch
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    def forward(self, features):
        return super().forward(features)
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
class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 8)
    def forward(self, ids):
        return self.embed(ids).mean(1), ids.float()
class Two(nn.Module):
    def forward(self, a, b):
        return a + b
Both = collections.namedtuple("Both", ["logits", "label"])
class Named(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3))
    def forward(self, x):
        logits = super().forward(x)
        return Both(logits, logits.argmax(1))
def doubled():
    return lambda x: x * 2
def exported():
    batch = ({0: torch.export.Dim.DYNAMIC},)
    return torch.export.export(nn.Linear(4, 2), (torch.ones(2, 4),), dynamic_shapes=batch).module()
def leaves():
    raise SystemExit(3)
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A module of models that can be imported."""
    (tmp_path / "nets_of_new.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "nets_of_new"


def toml(made):
    return tomllib.loads(made.toml)


def shapes(tables):
    return {table["name"]: (table["datatype"], table["shape"]) for table in tables}


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("Net", {"features": ("FP32", [4])}, {"output": ("FP32", [2])}),
        ("Small", {"image": ("FP32", [3, 32, 32])}, {"scores": ("FP32", [10])}),
        ("Tags", {"ids": ("INT64", ["tokens"])}, {"output": ("FP32", ["tokens", 3])}),
        ("Named", {"x": ("FP32", [4])}, {"logits": ("FP32", [3]), "label": ("INT64", [])}),
    ],
)
def test_a_class_is_looked_at_and_run(tmp_path, nets, name, inputs, outputs):
    made = make(tmp_path / "m", f"{nets}:{name}", [])
    assert made.checked.error == ""
    written = toml(made)
    assert written["source"] == f"{nets}:{name}"
    assert (shapes(written["inputs"]), shapes(written["outputs"])) == (inputs, outputs)
    assert written.get("recurrent", False) is (name == "Tags")


def test_weights_are_copied_and_named(tmp_path, nets):
    torch.save(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).state_dict(), tmp_path / "trained.pt")
    made = make(tmp_path / "m", f"{nets}:Net", [], weights=tmp_path / "trained.pt")
    assert made.checked.error == ""
    assert toml(made)["weights"] == "trained.pt"
    assert "trained.pt" in made.files
    made = make(tmp_path / "n", f"{nets}:Small", [], weights=tmp_path / "trained.pt")
    assert "expected weights that fit the model" in made.checked.error
    with pytest.raises(ConfigError, match="weights: expected a file, got "):
        make(tmp_path / "o", f"{nets}:Net", [], weights=tmp_path / "gone.pt")


def test_a_model_that_takes_padding_for_data_fails_the_check(tmp_path, nets):
    made = make(tmp_path / "new" / "m", f"{nets}:Bag", [])
    assert "a row's answer depends on how far it is padded" in made.checked.error
    assert not (tmp_path / "new").exists()
    assert shapes(toml(made)["outputs"]) == {"output_0": ("FP32", [8]), "output_1": ("FP32", ["tokens"])}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Two", "its forward takes a, b, of which no shapes are known: give the inputs by --input"),
        ("doubled", "a function does not say what it takes: give the inputs by --input"),
        ("leaves", "SystemExit: 3"),
        ("missing", "expected a callable 'missing'"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for_and_leaves_no_folder(tmp_path, nets, name, message):
    with pytest.raises(ConfigError, match=message):
        make(tmp_path / "new" / "m", f"{nets}:{name}", [])
    assert not (tmp_path / "new").exists()


def test_inputs_that_are_given(tmp_path, nets):
    made = make(tmp_path / "m", f"{nets}:Two", [parse_input("a:FP32[2]"), parse_input("b:FP32[2]")])
    assert made.checked.error == ""
    with pytest.raises(ConfigError, match=r"cannot be run on made-up rows: .*size of tensor"):
        make(tmp_path / "n", f"{nets}:Two", [parse_input("a:FP32[2]"), parse_input("b:FP32[3]")])
    with pytest.raises(ConfigError, match=r"^input: datatype: expected one of BOOL.*, got 'FP31'$"):
        make(tmp_path / "o", f"{nets}:Two", [parse_input("x:FP31[3]")])


def test_a_factory_that_returns_an_exported_module(tmp_path, nets):
    made = make(tmp_path / "m", f"{nets}:exported", [parse_input("input:FP32[4]")])
    assert (made.checked.error, shapes(toml(made)["outputs"])) == ("", {"output": ("FP32", [2])})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ids:INT64[tokens, 4]", ("ids", "INT64", ["tokens", 4])),
        ("a:b:FP32[]", ("a:b", "FP32", [])),
        *((text, None) for text in ("x", "x:FP32", "x FP32[3]", ":FP32[3]", "x:fp32[3]")),
    ],
)
def test_inputs_as_they_are_written(text, expected):
    if expected is not None:
        assert tuple(parse_input(text).values()) == expected
        return
    with pytest.raises(ConfigError, match=r"input: expected NAME:DATATYPE\[SHAPE\]"):
        parse_input(text)


def files(folder):
    folder.mkdir()
    torch.jit.script(nn.Linear(4, 2).eval()).save(str(folder / "net.pt"))
    onnx_graphs.doubled(folder / "graph.onnx")


def test_files_are_copied_and_looked_at(tmp_path):
    files(tmp_path / "in")
    wanted = {
        "net.pt": ({"input": ("FP32", [4])}, {"output": ("FP32", [2])}),
        "graph.onnx": (
            {"values": ("FP32", ["time"]), "mask": ("FP32", ["time"])},
            {"kept": ("FP32", ["time"]), "total": ("FP32", [])},
        ),
    }
    for name, (inputs, outputs) in wanted.items():
        made = make(tmp_path / name.replace(".", "-"), str(tmp_path / "in" / name), [])
        assert made.checked.error == ""
        assert name in made.files
        assert (shapes(toml(made)["inputs"]), shapes(toml(made)["outputs"])) == (inputs, outputs)


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
    made = make(Path("m"), "net.py:Net", [])
    assert made.checked.error == ""
    assert toml(made)["source"] == f"{tmp_path.as_posix()}/net.py:Net"


def test_a_folder_of_a_model_is_copied_whole(tmp_path):
    origin = write_model(tmp_path / "origin")
    (origin / ".hidden").write_text("")
    made = make(tmp_path / "copy", str(origin), [])
    assert made.files == ("model.py", "model.toml", "request.json")
    assert made.checked.error == ""
    (origin / "model.toml").unlink()
    made = make(tmp_path / "guessed", str(origin), [parse_input("x:FP32[3]")])
    assert made.checked.error == ""


def test_a_large_row_is_sent_as_an_array(tmp_path):
    write_model(tmp_path / "origin")
    (tmp_path / "origin" / "model.toml").unlink()
    made = make(tmp_path / "m", str(tmp_path / "origin"), [parse_input("x:FP32[3,64,64]")])
    assert np.load(made.folder / "request.npy").shape == (3, 64, 64)
    assert "--data-binary @" in made.curl


def test_nothing_is_overwritten(tmp_path):
    files(tmp_path / "in")
    (tmp_path / "iris.joblib").touch()
    for origin, message in (
        (str(tmp_path / "iris.joblib"), r"iris.joblib: expected a network: .* examples/sklearn"),
        (str(tmp_path / "in"), r"expected model.toml, model.py .*, found graph.onnx, net.pt"),
        (str(tmp_path / "nosuch"), "from: expected package.module:Class"),
        (str(tmp_path), "expected a folder outside of"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(tmp_path / "m", origin, [])
        assert not (tmp_path / "m").exists()
    for name, message in (("in", "is there already"), ("a b", "name: expected letters")):
        with pytest.raises(ConfigError, match=message):
            make(tmp_path / name, "", [])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 2, 3, groups=2), [4, "time"]),
        (nn.LSTM(5, 2), ["time", 5]),
        (nn.BatchNorm1d(6), [6]),
        (nn.Conv2d(3, 4, 3), [3, 224, 224]),
        (nn.Tanh(), None),
    ],
)
def test_layers_that_say_what_they_take(layer, shape):
    found = guesses(nn.Sequential(nn.ReLU(), layer))
    if shape is not None:
        assert next(found)[0]["shape"] == shape
        return
    with pytest.raises(ConfigError, match="none of its layers says what it takes"):
        next(found)


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
    with pytest.raises(ConfigError, match=message):
        make(tmp_path / "m", str(saved(tmp_path / "saved", {"architectures": None})), [])
    assert not (tmp_path / "m").exists()
    folder = saved(tmp_path / "vectors", {"architectures": ["MPNetForMaskedLM"]}, modules=[])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError):
        fitting_task(folder)


def test_a_folder_of_transformers_stays_where_it_is(tmp_path, monkeypatch):
    """model.toml finds it from its own folder, and a request is made."""
    tiny.save_bert(tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    made = make(Path("models/mood"), "weights", [])
    assert made.checked.error == ""
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


def test_the_folder_of_an_adapter_says_what_to_save(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"adapter_config.json: an adapter is not applied: save the whole model"):
        make(tmp_path / "m", str(tmp_path), [])


def test_texts_that_belong_together_are_asked_for_together(tmp_path):
    tiny.save_bert(tmp_path / "weights", id2label={0: "contradiction", 1: "entailment"})
    made = make(tmp_path / "nli", str(tmp_path / "weights"), [])
    assert made.checked.error == ""
    assert toml(made)["task_options"] == {"pairs": True}
    zero = make(tmp_path / "zero", str(tmp_path / "weights"), [], task="zero-shot-classification")
    for one, expected in ((made, {"text": [1], "text_pair": [1]}), (zero, {"text": [1], "candidate_labels": [1, 2]})):
        sent = json.loads((one.folder / "request.json").read_text())["inputs"]
        assert {tensor["name"]: tensor["shape"] for tensor in sent} == expected


def test_a_task_may_be_given(tmp_path):
    tiny.save_bert(tmp_path / "weights")
    made = make(tmp_path / "vectors", str(tmp_path / "weights"), [], task="feature-extraction")
    assert made.checked.error == ""
    assert toml(made)["task"] == "feature-extraction"
    wrong = make(tmp_path / "objects", str(tmp_path / "weights"), [], task="image-classification")
    assert "task: expected weights of a model ForImageClassification" in wrong.checked.error
    assert wrong.curl == ""
    with pytest.raises(ConfigError, match="task: expected --from a folder of transformers or hf:NAME beside it"):
        make(tmp_path / "m", "torchvision:resnet18", [], task="image-classification")
    with pytest.raises(ConfigError, match="task: expected no --input"):
        make(tmp_path / "m", str(tmp_path / "weights"), [parse_input("x:FP32[3]")])
