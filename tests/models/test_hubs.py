"""Invariant: models of other libraries go by name in and out, and nothing is imported until a model asks."""

from __future__ import annotations

import enum
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_transformers as tiny
import torch
from torch import nn

from app.models.sources import hubs
from app.models.sources.imports import optional

from .folders import TOML, edit_json, loaded, refused, table, toml_of, try_out, write_model

BERT = toml_of(
    *(table("inputs", name, "INT64", '["tokens"]', "max_shape = [16]") for name in ("attention_mask", "input_ids")),
    table("outputs", "last_hidden_state", "FP32", '["tokens", 16]'),
    head='source = "hf:weights"',
)


@pytest.fixture
def bert(tmp_path):
    folder = write_model(tmp_path / "m", BERT, None)
    return folder, tiny.save_bert(folder / "weights", "")


@pytest.mark.parametrize("as_tuples", [False, True])
def test_a_folder_of_transformers_is_served_by_name(bert, as_tuples):
    folder, original = bert
    if as_tuples:  # as the model was trained, or traced
        edit_json(folder / "weights" / "config.json", return_dict=False)
    model = loaded(folder)
    assert try_out(model) == []
    assert not model.call.training
    ids, mask = torch.arange(1, 7).reshape(2, 3), torch.tensor([[1, 1, 1], [1, 1, 0]])
    with torch.inference_mode():
        (hidden,) = model.call(mask, ids)
        assert torch.allclose(hidden, original(input_ids=ids, attention_mask=mask).last_hidden_state, atol=1e-6)


def test_answers_stay_while_somebody_writes_over_the_weights(bert):
    """As cp does, before the model is loaded again; a file that is cut would end the process."""
    folder, _ = bert
    model = loaded(folder)
    with (folder / "weights" / "model.safetensors").open("r+b") as file:
        length = file.seek(0, 2)
        file.seek(length // 2)
        file.write(bytes(length // 2))
    assert all(weight.any() for name, weight in model.call.named_parameters() if name.endswith("weight"))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ("trust_remote_code = true", "kwargs.trust_remote_code: not accepted"),
        ("weights_only = false", "kwargs.weights_only: not accepted"),
        ('auto_class = "Nothing"', "kwargs.auto_class: expected a model class of transformers, got 'Nothing'"),
    ],
)
def test_refused_arguments(bert, kwargs, message):
    assert message in refused(write_model(bert[0], f"kwargs = {{ {kwargs} }}\n{BERT}", None))


@pytest.mark.parametrize("name", ["/nowhere/weights", "./weights", "a/b/weights"])
@pytest.mark.parametrize("task", ["", 'task = "feature-extraction"'])
def test_a_folder_that_is_not_there_is_no_name_on_a_hub(tmp_path, name, task):
    toml = f'source = "hf:{name}"\n{task}' if task else BERT.replace("hf:weights", f"hf:{name}")
    folder = write_model(tmp_path / "m", toml, None)
    assert refused(folder).endswith(f"source 'hf:{name}': {folder / name}: no such folder")


# torchvision: a stand-in with the same doors


class Published(enum.Enum):
    V1 = 1
    DEFAULT = V1

    @property
    def meta(self):
        return {"categories": ["a", "b", "c"]}

    def get_state_dict(self, *, progress, check_hash, weights_only):
        assert weights_only
        return {"weight": torch.full((3, 3), 7.0)}


@pytest.fixture
def stubs(monkeypatch):
    made = []

    def make(name, **kwargs):
        made.append((name, kwargs))
        return nn.Linear(3, 3, bias=False)

    library = SimpleNamespace(get_model=make, get_model_weights=lambda name: Published)
    for name in ("torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, library)
    return made


def folder_with(tmp_path, source, kwargs=""):
    return write_model(tmp_path / "m", f"kwargs = {{ {kwargs} }}\n" + TOML.replace("model.py:build", source), None)


def test_torchvision(tmp_path, stubs):
    assert try_out(loaded(folder_with(tmp_path, "torchvision:resnet50", "num_classes = 3"))) == []
    assert stubs == [("resnet50", {"weights": None, "num_classes": 3})]


def test_published_weights_are_loaded_as_plain_tensors(tmp_path, stubs):
    model = loaded(folder_with(tmp_path, "torchvision:resnet50", 'weights = "DEFAULT"'))
    assert stubs == [("resnet50", {"weights": None, "num_classes": 3})]
    assert float(model.call.weight.detach()[0, 0]) == 7
    folder = folder_with(tmp_path, "torchvision:resnet50", 'weights = "V9"')
    assert "kwargs.weights: expected one of ['V1'], got 'V9'" in refused(folder)


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("torchvision:resnet50", "torchvision"),
        ("timm:vit_tiny", "timm"),
        ("hf:some/model", "transformers"),
    ],
)
def test_a_missing_library_says_what_to_install(tmp_path, monkeypatch, source, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=lambda *given: None)])
    wanted = f"{package} is not installed: pip install {package}, in the environment {sys.prefix}"
    assert wanted in refused(folder_with(tmp_path, source))


@pytest.mark.parametrize(("source", "package", "older"), [
    ("hf:some/model", "transformers", "4.57.6"), ("model.onnx", "onnxruntime", "1.23.2"),
])  # fmt: skip
def test_a_library_that_is_too_old_is_refused(tmp_path, monkeypatch, source, package, older):
    """The first is many people's own; its masks and caches differ, and some models fail with errors of theirs."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (oldest,) = {one for extra in project["optional-dependencies"].values() for one in extra if package in one}
    monkeypatch.setattr(optional(package), "__version__", older)
    wanted = f"{package} {older} is too old: pip install '{oldest}', in the environment {sys.prefix}"
    folder = folder_with(tmp_path, source)
    (folder / "model.onnx").touch()
    assert wanted in refused(folder)


def test_importing_the_registry_imports_no_extra():
    code = (
        "import sys, app.models.registry, app.models.repository, planner.commands.checked_models\n"
        "print([n for n in ('transformers', 'PIL', 'torchvision', 'timm', 'fastapi') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_a_download_holds_up_no_other_load(monkeypatch):
    """Weights of the hub are fetched before the one load at a time begins."""
    held = []

    def fetch(place, name, **options):
        held.append((place, name, options.get("revision"), hubs.PATCHING._is_owned()))

    def opened(place, **options):
        held.append((place, options["revision"], hubs.PATCHING._is_owned()))
        return nn.Identity()

    hub = pytest.importorskip("transformers.utils.hub")
    monkeypatch.setattr(hub, "cached_file", fetch)
    hubs.from_pretrained(SimpleNamespace(from_pretrained=opened), "some/model", {"revision": "r"})
    assert held == [("some/model", "model.safetensors", "r", False), ("some/model", "r", True)]
