"""Invariant: `starling check` and the trial of a server find what a model cannot do on the threads that serve it, and
their message names the cause, not the shapes.
"""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

import pytest
import torch

from app.engine.cpu.device import CpuDevice
from app.engine.profiling.warmup import warm_up
from app.errors import ConfigError
from app.models.checks.advice import advice_on, is_about_shapes
from app.models.checks.calling import on_thread
from app.models.loading import load
from planner.commands.checked_models import check

from .folders import TOML, source_of, write_model

#: Lives as long as the process: torch 2.11 exports nothing while an operator that has gone is still named.
OPERATORS = torch.library.Library("starling_tests", "FRAGMENT")
BUILD = "def build():\n    return call\n"
IMPORTS = "import asyncio, contextvars, re, signal, sqlite3, threading\nimport torch\n"
THREADS = {
    "local": "own = threading.local()\nown.k = 2\ndef call(x):\n    return x * own.k\n",
    "own-local": "class Own(threading.local):\n    pass\nown = Own()\nown.k = 2\ndef call(x):\n    return x * own.k\n",
    "sqlite3": "db = sqlite3.connect(':memory:')\ndef call(x):\n    db.execute('select 1')\n    return x\n",
    "later": "db = []\ndef call(x):\n    if not db:\n        db.append(sqlite3.connect(':memory:'))\n"
    "    db[0].execute('select 1')\n    return x\n",
    "loop": "def call(x):\n    asyncio.get_event_loop()\n    return x\n",
    "loop-import": "loop = asyncio.get_event_loop()\ndef call(x):\n    return x\n",
    "signal": "signal.signal(signal.SIGUSR2, signal.SIG_IGN)\ndef call(x):\n    return x\n",
    "context": "kept = contextvars.ContextVar('kept')\nkept.set(2)\ndef call(x):\n    return x * kept.get()\n",
}
GRADIENTS = {
    "plain": "def call(x):\n    x.requires_grad_()\n    return torch.autograd.grad((x * x).sum(), x)[0]\n",
    "enabled": "def call(x):\n    with torch.enable_grad():\n        x = x.clone().requires_grad_()\n"
    "        return torch.autograd.grad((x * x).sum(), x)[0]\n",
    "uncloned": "def call(x):\n    with torch.inference_mode(False), torch.enable_grad():\n"
    "        return torch.autograd.grad((x * x).sum(), x.requires_grad_())[0]\n",
    "weights": "net = torch.nn.Linear(3, 3)\ndef call(x):\n    with torch.inference_mode(False), torch.enable_grad():\n"
    "        return torch.autograd.grad(net(x).sum(), list(net.parameters()))[0][:1].expand(len(x), 3)\n",
}
DATATYPES = {
    "UINT16": ("def call(x):\n    return (x > 1).float()\n", "torch has few operators for unsigned integers"),
    "UINT32": ("def call(x):\n    return x.softmax(1)\n", "torch has few operators for unsigned integers"),
    "UINT64": ("def call(x):\n    return torch.nn.Linear(3, 3)(x)\n", "torch has few operators for unsigned integers"),
    "INT64": ("def call(x):\n    return torch.nn.Linear(3, 3)(x)\n", "about the datatype, not the shape"),
    "FP64": ("def call(x):\n    return torch.nn.Linear(3, 3)(x)\n", "about the datatype, not the shape"),
    "INT32": ("def call(x):\n    return x.mean(1, keepdim=True)\n", "about the datatype, not the shape"),
    "FP16": (  # of an empty batch it raises nothing
        "def call(x):\n    y = torch.zeros(x.shape)\n    if len(x):\n        y[x > 0] = x[x > 0]\n    return y\n",
        "about the datatype, not the shape",
    ),
    "INT16": ("def call(x):\n    return torch.nn.Embedding(3, 3)(x)[:, 0]\n", "about the datatype, not the shape"),
}
TEXTS = {
    "method": "def call(x):\n    return [row[0].split(' ') for row in x]\n",
    "sum": "def call(x):\n    return [row[0] + '!' for row in x]\n",
    "other-sum": "def call(x):\n    return ['!' + row[0] for row in x]\n",
    "join": "def call(x):\n    return [' '.join(row) for row in x]\n",
    "pattern": "def call(x):\n    return [re.sub('a', 'b', row[0]) for row in x]\n",
    "attribute": "def call(x):\n    return [row[0].casefold() for row in x]\n",
}
CASES = [
    *((code, TOML, 'the thread "model-load"') for code in THREADS.values()),
    *((code, TOML, "`with torch.inference_mode(False), torch.enable_grad():`") for code in GRADIENTS.values()),
    *((code, TOML.replace("FP32", name, 1), said) for name, (code, said) in DATATYPES.items()),
    *((code, TOML.replace("FP32", "BYTES", 1), "value.decode() makes a str of each") for code in TEXTS.values()),
]


def served(folder):
    """As a server does: load, place and warm up, each on another thread than the one before. Returns the error."""
    device = CpuDevice((4,), 1, 1)
    try:
        model = on_thread("model-load", load, source_of(folder))
        return on_thread("warm-up", lambda: warm_up(device, device.open(model, 64)) and "")
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize(("code", "toml", "said"), CASES, ids=[*THREADS, *GRADIENTS, *DATATYPES, *TEXTS])
def test_check_and_server_refuse_it_and_name_the_cause(tmp_path, code, toml, said):
    folder = write_model(tmp_path / "m", toml + "[batching]\nmax_batch = 4\n", IMPORTS + code + BUILD)
    (checked,) = check(folder)
    for error in (checked.error, served(folder)):
        assert said in error
        assert "the shapes" not in error


def test_what_is_made_where_it_is_used_works_in_both(tmp_path):
    code = IMPORTS + "own = threading.local()\ndef call(x):\n    if not hasattr(own, 'db'):\n"
    code += "        own.db = sqlite3.connect(':memory:')\n    asyncio.run(asyncio.sleep(0))\n"
    code += "    return x * own.db.execute('select 2').fetchone()[0]\n"
    folder = write_model(tmp_path / "m", TOML + "[batching]\nmax_batch = 1\n", code + BUILD)
    assert check(folder)[0].error == served(folder) == ""


@pytest.mark.parametrize(
    ("raises", "shapes"),
    [
        (lambda x: torch.nn.Linear(4, 3)(x), True),
        (lambda x: torch.nn.Conv2d(3, 4, 3)(x), True),
        (lambda x: x @ torch.ones(7, 2), True),
        (lambda x: x + torch.ones(7), True),
        (lambda x: x.view(-1, 7), True),
        (lambda x: x.permute(0, 3, 1, 2), True),
        (lambda x: x[:, :, :, 0], True),
        (lambda x: x.mean(4), True),
        (lambda x: torch.nn.BatchNorm2d(3)(x), True),
        (lambda x: torch.nn.LSTM(7, 2)(x), True),
        (lambda x: [a for a, b, c, d in [x.shape]], True),
        (lambda x: {}["key"], False),
        (lambda x: x.nothing, False),
        (lambda x: 1 / 0, False),
    ],
)
def test_which_errors_are_about_shapes(raises, shapes):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        raises(torch.ones(2, 3))
    assert is_about_shapes(caught.value) == shapes
    assert advice_on(caught.value) == ""


def test_what_belongs_to_the_process_has_advice():
    with suppress(RuntimeError):  # unless it was called before, or torch has begun
        torch.set_num_interop_threads(torch.get_num_interop_threads())
    with pytest.raises(RuntimeError) as caught:
        torch.set_num_interop_threads(torch.get_num_interop_threads())
    assert "leave it out" in advice_on(caught.value)
    assert "PYTHONPATH" in advice_on(BrokenProcessPool("a child has ended"))
    assert "a script has pickled it" in advice_on(AttributeError("Can't get attribute 'Net' on <module '__main__'>"))
    OPERATORS.define("twice(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError) as caught:
        OPERATORS.define("twice(Tensor x) -> Tensor")
    assert "an earlier load has" in advice_on(caught.value)


@pytest.mark.parametrize("read", [lambda x: x["x"], lambda x: x.pop("x"), lambda x: x.numpy().get("x")])
def test_a_tensor_that_is_read_as_a_dict_has_advice(read):
    with pytest.raises((TypeError, AttributeError)) as caught:
        read(torch.ones(2))  # as forward(self, batch) does, or a handler's __call__(self, data)
    assert "none is a dict" in advice_on(caught.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_without_sizes_has_advice():
    with pytest.raises(RuntimeError) as caught:
        str(torch.nested.nested_tensor([torch.ones(3)]).shape)
    assert "an output is a nested tensor: the first axis" in advice_on(caught.value)


@pytest.mark.parametrize(
    ("raises", "datatype"),
    [
        (lambda x: torch.nn.LayerNorm(3)(x.double()), True),
        (lambda x: x.masked_fill(x.long(), 0), True),
        (lambda x: x.gather(1, x), True),
        (lambda x: torch.zeros(2, 3).index_add(0, torch.arange(2), x.double()), True),
        (lambda x: torch.nn.functional.one_hot(x), True),
        (lambda x: x.long().norm(), True),
        (lambda x: x.long().mul_(1.5), True),
        (lambda x: -x.bool(), True),
        (lambda x: torch.nn.LSTM(3, 3)(x.long()), True),
        (lambda x: x[:, :1] @ x, False),
        (lambda x: (_ for _ in ()).throw(RuntimeError(f"no such id: {x.long()[0].int()}")), False),
    ],
)
def test_which_errors_are_about_datatypes(raises, datatype):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        raises(torch.ones(2, 3))
    assert ("that is about the datatype" in advice_on(caught.value)) is datatype
