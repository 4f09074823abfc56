"""Invariant: `load` gives a callable Model or a ConfigError, whatever the files hold and the code raises."""

from __future__ import annotations

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from app.errors import ConfigError
from app.models.sources.loaders import load

from .folders import TOML, source_of, write_model

LINEAR = """
import torch
from torch import nn
def build(bias=True):
    return nn.Linear(3, 3, bias=bias)
"""


def load_code(tmp_path, code, toml=TOML, **options):
    return load(source_of(write_model(tmp_path / "m", toml, code)), **options)


def test_a_module_comes_in_eval_mode_with_its_kwargs(tmp_path):
    model = load_code(tmp_path, LINEAR, "kwargs = { bias = false }\n" + TOML)
    assert isinstance(model.call, nn.Linear)
    assert model.call.bias is None
    assert not model.call.training
    assert model.info.name == "m"
    assert (model.decode, model.present, model.takes_parameters) == (None, None, False)


def test_any_callable_will_do_and_its_hooks_are_taken(tmp_path):
    code = """
class Doubler:
    max_pixels = 5
    def __call__(self, x, *, parameters=None):
        return x * 2
    def decode(self, content_type, body):
        return {"x": [1, 2, 3]}
    def present(self, outputs):
        return "shown"
class Outer:
    build = staticmethod(lambda: Doubler())
"""
    toml = TOML.replace("model.py:build", "model.py:Outer.build")
    model = load_code(tmp_path, code, toml, limits={"max_pixels": 9, "other": 1})
    assert model.call(3) == 6
    assert model.takes_parameters
    assert model.present({}) == "shown"
    assert model.decode("", b"") == {"x": [1, 2, 3]}
    assert model.call.max_pixels == 9
    assert not hasattr(model.call, "other")


@pytest.mark.parametrize(
    ("signature", "takes"),
    [
        ("x", False),
        ("x, parameters", True),
        ("x, parameters=None", True),
        ("x, *, parameters", True),
        ("parameters", False),
        ("x, **kwargs", False),
    ],
)
def test_parameters_are_found_in_the_signature(tmp_path, signature, takes):
    assert load_code(tmp_path, f"def build():\n    return lambda {signature}: x").takes_parameters is takes


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("", "too many positional arguments"),
        ("x, y", "missing a required argument: 'y'"),
        ("x, *, scale", "missing a required .*argument: 'scale'"),
    ],
)
def test_inputs_must_be_as_many_as_arguments(tmp_path, signature, message):
    with pytest.raises(ConfigError, match=rf"model.toml: inputs: expected as many as 'model.py:build' .*x: {message}"):
        load_code(tmp_path, f"def build():\n    return lambda {signature}: 1")


@pytest.mark.parametrize("signature", ["x", "*tensors", "x, y=None", "x, *, parameters", "x, **keywords"])
def test_signatures_that_take_the_inputs(tmp_path, signature):
    assert load_code(tmp_path, f"def build():\n    return lambda {signature}: 1")


def test_neighbours_and_dataclasses_work_and_reloads_are_fresh(tmp_path):
    folder = write_model(tmp_path / "m", TOML, "")
    for factor in (2, 3):
        (folder / "model.py").write_text(
            "from __future__ import annotations\n"
            "from dataclasses import dataclass\n"
            "from .helper import FACTOR\n"
            "@dataclass\n"
            "class Scale:\n"
            "    factor: int\n"
            "    def __call__(self, x):\n"
            "        return x * self.factor\n"
            "def build():\n"
            f"    return Scale(FACTOR * {factor})\n"
        )
        (folder / "helper.py").write_text("FACTOR = 10\n")
        assert load(source_of(folder)).call(1) == 10 * factor
    assert "helper" not in sys.modules
    assert str(folder) not in sys.path


def test_a_model_loads_while_other_threads_import(tmp_path):
    """The solver of control tables is imported on a thread of its own when the first model serves."""
    folder = write_model(tmp_path / "m", TOML, LINEAR)
    over = threading.Event()

    def imports() -> None:
        for number in itertools.count():
            sys.modules[f"imported_{number % 7}"] = sys
            sys.modules.pop(f"imported_{(number + 3) % 7}", None)
            if over.is_set():
                break

    interval = sys.getswitchinterval()
    other = threading.Thread(target=imports)
    other.start()
    try:
        sys.setswitchinterval(1e-6)
        for _ in range(20):
            load(source_of(folder))
    finally:
        sys.setswitchinterval(interval)
        over.set()
        other.join()
        for number in range(7):
            sys.modules.pop(f"imported_{number}", None)


def test_two_models_of_one_file_name_do_not_meet(tmp_path):
    one = write_model(tmp_path / "one", TOML, "WHO = 1\ndef build():\n    return lambda x: WHO")
    two = write_model(tmp_path / "two", TOML, "WHO = 2\ndef build():\n    return lambda x: WHO")
    first, second = load(source_of(one)), load(source_of(two))
    assert (first.call(0), second.call(0)) == (1, 2)


def test_an_installed_module(tmp_path):
    assert isinstance(load_code(tmp_path, None, TOML.replace("model.py:build", "torch.nn:Identity")).call, nn.Identity)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("model.py:missing", "expected a callable 'missing' in model.py, which has none"),
        ("model.py:VALUE", "expected 'VALUE' in model.py to be callable, got int"),
        ("other.py:build", r"other\.py: no such file"),
        ("nosuchpackage.x:build", "ModuleNotFoundError: No module named 'nosuchpackage'"),
        ("model.py", "expected model.py:CALLABLE, package.module:CALLABLE"),
        ("hf:", "expected model.py:CALLABLE"),
        ("model.py:fails", "KeyError: 'the reason'"),
        ("model.py:leaves", "SystemExit: 3"),
        ("model.py:wants", "TypeError: .*required positional argument"),
        ("model.py:gives_none", "expected an nn.Module or another callable, got NoneType"),
    ],
)
def test_a_wrong_source_is_a_config_error_naming_file_and_key(tmp_path, source, message):
    code = """
import sys
VALUE = 1
def fails(): raise KeyError("the reason")
def leaves(): sys.exit(3)
def wants(argument): pass
def gives_none(): return None
"""
    with pytest.raises(ConfigError, match=message) as caught:
        load_code(tmp_path, code, TOML.replace("model.py:build", source))
    assert str(caught.value).startswith(f"{tmp_path / 'm' / 'model.toml'}: source {source!r}: ")


def test_a_syntax_error_is_a_config_error_and_leaves_no_module(tmp_path):
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="SyntaxError"):
        load_code(tmp_path, "def build(:")
    assert not [name for name in set(sys.modules) - before if name.startswith("starling_model")]


# weights


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_weights_are_loaded(tmp_path, name):
    saved = nn.Linear(3, 3)
    folder = write_model(tmp_path / "m", f'weights = "{name}"\n' + TOML, LINEAR)
    if name.endswith(".pt"):
        torch.save(saved.state_dict(), folder / name)
    else:
        save_model(saved, str(folder / name))
    assert torch.equal(load(source_of(folder)).call.weight, saved.weight)


def bad_weights(folder, kind):
    path = folder / "w.safetensors"
    if kind == "missing":
        return path
    if kind == "garbage":
        path.write_bytes(b"garbage")
    elif kind == "too few":
        save_file({"weight": torch.ones(3, 3)}, path)
    elif kind == "too many":
        save_file({"weight": torch.ones(3, 3), "bias": torch.ones(3), "more": torch.ones(1)}, path)
    elif kind == "shape":
        save_file({"weight": torch.ones(4, 3), "bias": torch.ones(3)}, path)
    else:
        path = folder / "w.pt"
        torch.save({"weight": torch.ones(3, 3)} if kind == "pt too few" else [torch.ones(1)], path)
    return path


@pytest.mark.parametrize("kind", ["missing", "garbage", "too few", "too many", "shape", "pt too few", "pt no dict"])
def test_weights_that_do_not_fit_name_their_file(tmp_path, kind):
    folder = write_model(tmp_path / "m", TOML, LINEAR)
    path = bad_weights(folder, kind)
    write_model(folder, f'weights = "{path.name}"\n' + TOML, LINEAR)
    with pytest.raises(ConfigError, match=f"{path.name}: expected weights that fit the model"):
        load(source_of(folder))


class Bomb:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_with_code_is_refused_and_never_run(tmp_path):
    folder = write_model(tmp_path / "m", 'weights = "w.pt"\n' + TOML, LINEAR)
    torch.save({"weight": Bomb(tmp_path / "exploded")}, folder / "w.pt")
    with pytest.raises(ConfigError, match=r"w\.pt: expected safetensors or a state dict of plain tensors"):
        load(source_of(folder))
    assert not (tmp_path / "exploded").exists()


def test_weights_need_a_module(tmp_path):
    with pytest.raises(ConfigError, match=r"weights need a source that returns an nn.Module, got function"):
        load_code(tmp_path, "def build():\n    return lambda x: x", 'weights = "w.pt"\n' + TOML)


def test_two_threads_load_one_file(tmp_path):
    """As two servers in one process do. Each gets a model whose code found its own module."""
    code = "from dataclasses import dataclass\n@dataclass\nclass Twice:\n    by: 'int' = 2\n"
    code += "    def __call__(self, x):\n        return x * self.by\ndef build():\n    return Twice()\n"
    folder = write_model(tmp_path / "m", TOML, code)
    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as pool:
            models = list(pool.map(lambda _: load(source_of(folder)), range(40)))
    finally:
        sys.setswitchinterval(interval)
    assert [model.call(3) for model in models] == [6] * 40


def test_a_model_is_measured_while_idle_unless_it_says_otherwise(tmp_path):
    assert load(source_of(write_model(tmp_path / "a"))).profile
    assert not load(source_of(write_model(tmp_path / "b", "profile = false\n" + TOML))).profile
