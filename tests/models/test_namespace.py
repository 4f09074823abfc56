"""Invariant: the code of a model's folder runs its own neighbours, whatever other models and earlier loads have."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from app.models.sources.imports import edited_packages, import_callable
from app.models.sources.namespace import Namespace

from .folders import TOML, loaded, refused, write_model

ON_PATH = "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\n"
BELOW = "import os, sys\nsys.path.append(os.path.join(os.path.dirname(__file__), 'src'))\n"
ABOVE = "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\n"
BUILD = "def build():\n    return lambda x: x * {}\n"
LAZY = "def build():\n    def call(x):\n        {}\n        return x * {}\n    return call\n"
HELPERS = {
    "utils.py": "K = {k}\nclass Kept:\n    factor = K\n",
    "pkg/__init__.py": "import pkg.inner\nfrom pkg import other\n",
    "pkg/inner.py": "from .third import K\n",
    "pkg/third.py": "from utils import K\n",
    "pkg/other.py": "import utils\nK = utils.K\n",
    "data/net.py": "from utils import K\n",
    "circular.py": "from model import ONE\nimport utils\nK = utils.K * ONE\n",
    "src/net.py": "import sibling\nK = sibling.K\n",
    "src/sibling.py": "K = {k}\n",
    "../above.py": "from utils import K\n",
    "../utils.py": "K = {k}\n",
}
WAYS = {
    "path": ON_PATH + "import utils\n" + BUILD.format("utils.K"),
    "plain": "from utils import K\n" + BUILD.format("K"),
    "factory": "def build():\n    import utils\n    return lambda x: x * utils.K\n",
    "relative": "from . import utils\n" + BUILD.format("utils.K"),
    "call": LAZY.format("import utils", "utils.K"),
    "path-call": ON_PATH + LAZY.format("from utils import K", "K"),
    "relative-call": LAZY.format("from .utils import K", "K"),
    "importlib": "import importlib\n" + LAZY.format("utils = importlib.import_module('utils')", "utils.K"),
    "data": "import pkgutil, runpy\ntext = pkgutil.get_data('pkg', 'third.py').decode()\n"
    "names = runpy.run_module('utils')\n" + BUILD.format("names['K'] * (text == 'from utils import K\\n')"),
    "package": "import pkg.inner\nfrom pkg import other\nfrom pkg.third import K\n"
    + BUILD.format("pkg.inner.K + other.K - K"),
    "no-init": "import data.net\n" + BUILD.format("data.net.K"),
    "circular": "ONE = 1\nimport circular\n" + BUILD.format("circular.K"),
    "below": BELOW + "import net\n" + BUILD.format("net.K"),
    "above": ABOVE + "import above\n" + BUILD.format("above.K"),
    "pickle": ON_PATH + "import io, torch\nfrom utils import Kept\nfile = io.BytesIO()\n"
    "torch.save(Kept(), file)\nfile.seek(0)\n"
    "def build():\n    kept = torch.load(file, weights_only=False)\n    return lambda x: x * kept.factor\n",
}


def folder_of(tmp_path, name, k, code):
    folder = write_model(tmp_path / name / "1", TOML, code)
    for path, text in HELPERS.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text.format(k=k))
    return folder


def of_models():
    return {name for name in sys.modules if name.startswith("starling_model")}


def answer(model):
    return model.call(torch.ones(1, 3))[0, 0].item()


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS)
def test_helpers_of_one_name_are_each_models_own_also_after_an_edit(tmp_path, code):
    path, modules, plain = list(sys.path), of_models(), {"utils", "pkg", "net", "above", "circular", "data", "sibling"}
    assert plain.isdisjoint(sys.modules)
    two, three = (loaded(folder_of(tmp_path, name, k, code)) for name, k in (("a", 2), ("b", 3)))
    with ThreadPoolExecutor(1) as worker:
        assert list(worker.map(answer, (two, three, two))) == [2, 3, 2]
    edited = loaded(folder_of(tmp_path, "a", 7, code))
    assert (answer(edited), answer(two)) == (7, 2)
    assert plain.isdisjoint(sys.modules)
    assert sys.path == path
    for model in (two, three, edited):
        model.close()
    assert of_models() == modules


def test_a_source_without_its_files_ending_is_the_models_own(tmp_path):
    """Models load at once, and Python keeps one module of a name: all that say `model:build` would get the first."""
    toml = TOML.replace("model.py:", "model:")
    two, three = (write_model(tmp_path / name / "1", toml, BUILD.format(name)) for name in "23")
    with Namespace(two).loading(), ThreadPoolExecutor(1) as worker:
        import_callable("model", "build", two)
        assert answer(worker.submit(loaded, three).result()) == 3


def test_what_a_failed_load_imported_is_forgotten(tmp_path):
    folder, modules = folder_of(tmp_path, "a", 2, "import utils.missing\n"), of_models()
    assert "ModuleNotFoundError: No module named 'utils.missing'" in refused(folder)
    assert of_models() == modules


def test_a_module_called_like_a_library_gets_the_library(tmp_path):
    code = "from . import json\n" + BUILD.format("json.two()")
    folder = write_model(tmp_path / "m", TOML, "import numpy\nnumpy.float32\n" + code)
    (folder / "json.py").write_text("import json\ndef two():\n    return json.loads('2')\n")
    (folder / "numpy").mkdir()  # a folder of data
    assert answer(loaded(folder)) == 2


def test_libraries_do_not_get_a_models_modules(tmp_path):
    """`decimal` imports `numbers`."""
    folder = write_model(tmp_path / "m", TOML, "import numbers, fractions\n" + BUILD.format("numbers.K"))
    (folder / "numbers.py").write_text("K = 2\n")
    assert answer(loaded(folder)) == 2
    assert not hasattr(sys.modules["numbers"], "K")


def test_instances_of_its_classes_can_be_pickled(tmp_path):
    code = "from utils import Kept\nclass build:\n    def __call__(self, x):\n        return x * Kept().factor\n"
    model = loaded(folder_of(tmp_path, "a", 2, code))
    assert pickle.loads(pickle.dumps(model.call))(5) == 10


def test_it_can_be_compiled_and_scripted(tmp_path):
    code = """
import math, torch
import utils
from torch import nn
class Net(nn.Module):
    def forward(self, x):
        return x * len([1, 2]) * math.sqrt(4)
def build():
    compiled = torch.compile(Net(), backend="eager", fullgraph=True)
    scripted = torch.jit.script(Net())
    return lambda x: compiled(x) + scripted(x) * utils.K
"""
    assert answer(loaded(folder_of(tmp_path, "a", 2, code))) == 12


def test_an_edited_package_is_named(tmp_path, monkeypatch):
    """It is shared by all models of the process, so it is not read again."""
    package = tmp_path / "shared_by_models.py"
    package.write_text("K = 2\n" + BUILD.format("K"))
    monkeypatch.syspath_prepend(tmp_path)
    folder = write_model(tmp_path / "m", TOML, "import shared_by_models\n" + BUILD.format("shared_by_models.K"))
    other = write_model(tmp_path / "other", TOML, "import math\n" + BUILD.format("math.sqrt(4)"))
    try:
        assert loaded(folder).note == ""
        package.write_text("K = 3\n" + BUILD.format("K"))
        os.utime(package, (1, 1))
        model = loaded(folder)
        assert answer(model) == 2
        assert f"not read again: shared_by_models ({package}); restart the server" in model.note
        assert loaded(other).note == ""
        by_name = TOML.replace("model.py:build", "shared_by_models:build")
        assert "not read again: shared_by_models" in loaded(write_model(folder, by_name, None)).note
    finally:
        sys.modules.pop("shared_by_models")
    assert edited_packages({"torch"}) == ""


def test_a_pickle_beside_its_classes_is_opened(tmp_path, monkeypatch):
    """Which a model.py opens, as examples/sklearn does: their modules are imported by their plain names."""
    opens = "import pathlib, pickle\nfile = pathlib.Path(__file__).with_name('p')\n"
    opens += "def build():\n    return pickle.loads(file.read_bytes())\n"
    models = []
    for k in (2, 3):
        folder = write_model(tmp_path / f"m{k}", TOML, opens)
        (folder / "steps.py").write_text(f"class Times:\n    def __call__(self, x):\n        return x * {k}\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            patch.delitem(sys.modules, "steps", raising=False)
            (folder / "p").write_bytes(pickle.dumps(importlib.import_module("steps").Times()))
            del sys.modules["steps"]
        models.append(loaded(folder))
    assert [answer(model) for model in models] == [2, 3]
    assert "steps" not in sys.modules
