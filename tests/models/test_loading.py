"""Invariant: `load` gives a callable Model or a ConfigError, whatever the files hold and the code raises."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from app.errors import ConfigError
from app.models.sources import imports

from .folders import LINEAR, TOML, loaded, refused, table, toml_of, write_model

TRAINED = """
import torch
def build():
    network = torch.nn.Linear(3, 2)
    network(torch.ones(3)).sum().backward()
    return network
"""


def load_code(tmp_path, code, toml=TOML):
    return loaded(write_model(tmp_path, toml, code))


def test_a_module_comes_in_eval_mode_with_its_kwargs(tmp_path):
    model = load_code(tmp_path, LINEAR, "kwargs = { bias = false }\nprofile = false\n" + TOML)
    assert isinstance(model.call, nn.Linear)
    assert model.call.bias is None
    assert not model.call.training
    assert (model.info.name, model.checks.profile) == ("m", False)
    assert (model.decode, model.present, model.takes_parameters, model.takes_fields) == (None, None, False, False)


def test_gradients_of_a_training_at_load_are_left_out(tmp_path):
    """Else several workers would take them for those of a call, which adds to them."""
    assert load_code(tmp_path, TRAINED).call.weight.grad is None


def test_the_default_dtype_of_one_model_is_not_that_of_others(tmp_path, caplog):
    model = load_code(tmp_path, "import torch\ntorch.set_default_dtype(torch.float64)\n" + LINEAR)
    assert model.call.weight.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32
    assert "source 'model.py:build' set torch's default dtype to torch.float64" in caplog.text


def test_any_callable_will_do_and_its_hooks_are_taken(tmp_path):
    code = """
class Doubler:
    def __call__(self, x, *, parameters=None):
        return x * 2
    def decode(self, content_type, body, fields=()):
        return {"x": [1, 2, 3]}
    def present(self, outputs):
        return "shown"
class Outer:
    build = staticmethod(lambda: Doubler())
"""
    model = load_code(tmp_path, code, TOML.replace("model.py:build", "model.py:Outer.build"))
    assert model.checks.profile
    assert model.call(3) == 6
    assert model.takes_parameters
    assert model.present({}) == "shown"
    assert model.takes_fields
    assert model.decode("", b"") == {"x": [1, 2, 3]}


def test_a_submodule_or_a_flag_is_no_hook(tmp_path):
    """As the decoder of an autoencoder."""
    code = """
from torch import nn
class build(nn.Module):
    present = True
    def __init__(self):
        super().__init__()
        self.decode = nn.Linear(3, 3)
    def forward(self, x):
        return self.decode(x)
"""
    model = load_code(tmp_path, code)
    assert (model.decode, model.present) == (None, None)


@pytest.mark.parametrize("base", ["nn.Module", ""])
def test_a_method_that_takes_something_else_is_no_hook_and_the_log_says_so(tmp_path, caplog, base):
    code = f"""
from torch import nn
class build({base}):
    def __call__(self, x):
        return x
    def decode(self, z):
        yield z
    def present(self):
        return None
"""
    model = load_code(tmp_path, code)
    assert (model.decode, model.present) == (None, None)
    assert "build.decode is no hook, which would take content_type and body" in caplog.text
    assert "build.present is no hook, which would take outputs" in caplog.text


def test_a_decorated_method_takes_what_its_decorator_does(tmp_path):
    code = """
import functools
def of_body(method):
    @functools.wraps(method)
    def taken(self, content_type, body):
        return {"x": method(self, body)}
    return taken
class build:
    def __call__(self, x):
        return x
    @of_body
    def decode(self, body):
        return [len(body)]
"""
    assert load_code(tmp_path, code).decode("text/plain", b"abc") == {"x": [3]}


def test_a_hook_is_neither_async_nor_a_generator(tmp_path):
    code = "class build:\n    def __call__(self, x): return x\n    {}def present(self, outputs): {} 1"
    for way in ("async ", "return"), ("", "yield"):
        folder = write_model(tmp_path / way[1], TOML, code.format(*way))
        assert "build.present: define it without async and yield" in refused(folder)


BY_NAME = "too many positional arguments; each is passed as an argument of its own, by their order"


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("", "too many positional arguments"),
        ("x, *, scale", "missing a required .*argument: 'scale'"),
        ("*, x", BY_NAME),
        ("**inputs", BY_NAME),
    ],
)
def test_inputs_must_be_as_many_as_arguments(tmp_path, signature, message):
    with pytest.raises(ConfigError, match=rf"model.toml: inputs: expected as many as 'model.py:build' .*x: {message}"):
        load_code(tmp_path, f"def build():\n    return lambda {signature}: 1")


@pytest.mark.parametrize("more", ["", ", *, parameters", ", scale=1"])
@pytest.mark.parametrize(("arguments", "wrong"), [
    ("mask, x", False), ("values, given", False),
    ("x, mask", True),  ("values, mask", True),   ("mask, other=1, x=2", True),
])  # fmt: skip
def test_an_input_named_as_an_argument_must_be_in_its_place(tmp_path, more, arguments, wrong):
    """Else its values would reach another one, and only the answers would be wrong."""
    toml = toml_of(
        *(table("inputs", name, "FP32", "[3]") for name in ("mask", "x")), table("outputs", "y", "FP32", "[3]")
    )
    code = f"def build():\n    return lambda {arguments}{more}: 1"
    if not wrong:
        assert load_code(tmp_path, code, toml)
        return
    with pytest.raises(ConfigError, match=r"in the order of the arguments of 'model\.py:build', .*, got mask, x"):
        load_code(tmp_path, code, toml)


def test_weights_without_values_are_named(tmp_path):
    """Which torch loads none into, without a word."""
    code = """
import torch
def build():
    with torch.device("meta"):
        return torch.nn.Linear(3, 3)
"""
    torch.save(torch.nn.Linear(3, 3).state_dict(), tmp_path / "w.pt")
    for toml in (TOML, f'weights = "w.pt"\n{TOML}'):
        with pytest.raises(ConfigError, match=r"with values, got 'weight' on the device meta: build it on the CPU"):
            load_code(tmp_path, code, toml)


def test_a_compiled_module_has_the_arguments_of_its_own(tmp_path):
    code = """
import torch
class Net(torch.nn.Module):
    def forward(self, other, x):
        return x
def build():
    return torch.compile(Net(), backend="eager")
"""
    with pytest.raises(ConfigError, match=r"expected as many .* takes arguments, got x: missing a required argument"):
        load_code(tmp_path, code)


def test_neighbours_and_dataclasses_work_and_reloads_are_fresh(tmp_path):
    folder = tmp_path / "m"
    for factor in (2, 3):
        write_model(
            folder,
            code=f"""
from __future__ import annotations
from dataclasses import dataclass
from .helper import FACTOR
@dataclass
class Scale:
    factor: int
    def __call__(self, x):
        return x * self.factor
def build():
    return Scale(FACTOR * {factor})
""",
        )
        (folder / "helper.py").write_text("FACTOR = 10\n")
        assert loaded(folder).call(1) == 10 * factor
    assert "helper" not in sys.modules
    assert str(folder) not in sys.path


def test_a_model_loads_while_other_threads_import(tmp_path):
    """The solver of control tables is imported on a thread of its own when the first model serves."""
    over = threading.Event()

    def imports():
        while not over.is_set():  # where threads take turns: there is one module more or less each time
            if sys.modules.pop("imported_meanwhile", None) is None:
                sys.modules["imported_meanwhile"] = sys

    other, interval = threading.Thread(target=imports), sys.getswitchinterval()
    other.start()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            load_code(tmp_path, LINEAR)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        other.join()
        sys.modules.pop("imported_meanwhile", None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("model.py:missing", "'missing' in model.py, which has none of that name, but Other, parses, opens, cancels, "),
        (
            "model.py:wants",
            "positional argument: 'argument'; it is called with `kwargs` of model.toml alone, and returns",
        ),
        ("other.py:build", "other.py: no such file"),
        ("model.py", "expected model.py:CALLABLE, package.module:CALLABLE"),
        ("model.py:fails", "KeyError: 'the reason'"),
        ("model.py:leaves", "SystemExit: 3"),
        ("model.py:OBJECT.more", "expected a callable 'OBJECT.more' in model.py, which has none of that name"),
        ("model.py:cancels", "CancelledError: "),
        ("model.py:parses", "sys.argv holds the server's arguments"),
        ("model.py:opens", "of one beside model.py, Path(__file__).parent / NAME"),
        (
            "model.py:gives_none",
            "expected an nn.Module or another callable, got NoneType, without __call__",
        ),
        ("model.py:gives_class", "expected an nn.Module or another callable, got the class Path"),
    ],
)
def test_a_wrong_source_is_a_config_error_naming_file_and_key(tmp_path, source, message):
    code = """
import argparse, asyncio, pathlib, sys
class Other:
    def __init__(self): self.call = print
OBJECT = Other()
def parses(): argparse.ArgumentParser().parse_args(["serve"])
def opens(): open("model.toml")
def cancels(): raise asyncio.CancelledError
def fails(): raise KeyError("the reason")
def leaves(): sys.exit(3)
def wants(argument): pass
def gives_none(): return None
def gives_class(): return pathlib.Path
"""
    folder = write_model(tmp_path / "m", TOML.replace("model.py:build", source), code)
    text = refused(folder)
    assert text.startswith(f"{folder / 'model.toml'}: source {source!r}: ")
    assert message in text


def test_a_syntax_error_is_a_config_error_and_leaves_no_module(tmp_path):
    before = set(sys.modules)
    assert "SyntaxError" in refused(write_model(tmp_path / "m", TOML, "def build(:"))
    assert not [name for name in set(sys.modules) - before if name.startswith("starling_model")]


ALONE = """
from torch import nn
from app.models.sources.imports import PATCHING
IMPORTED = PATCHING._is_owned()
def build(fails=False):
    assert IMPORTED and PATCHING._is_owned() and not fails
    return nn.Identity()
"""


def test_one_network_is_built_at_a_time(tmp_path):
    """transformers' from_pretrained changes what other threads build meanwhile, so factories hold its lock, too."""
    load_code(tmp_path, ALONE)
    with pytest.raises(ConfigError, match="AssertionError"):
        load_code(tmp_path, ALONE, "kwargs = { fails = true }\n" + TOML)
    assert not imports.PATCHING._is_owned()


@pytest.mark.parametrize("code", ["", "GATE.wait()\n"], ids=["build", "import"])
def test_a_slow_factory_holds_up_nobody_where_transformers_is_not_used(tmp_path, monkeypatch, code):
    gate, begun = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "gate_of_a_test", SimpleNamespace(GATE=gate, BEGUN=begun))
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.setattr(imports, "_SHORT_BUILD_S", 0.0)
    slow = f"""
from torch import nn
from gate_of_a_test import BEGUN, GATE
BEGUN.set()
{code}
def build():
    GATE.wait()
    return nn.Identity()
"""
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(load_code, tmp_path / "slow", slow)
        try:
            begun.wait()
            threads.submit(load_code, tmp_path / "quick", LINEAR).result(20)
        finally:
            gate.set()
        first.result()
