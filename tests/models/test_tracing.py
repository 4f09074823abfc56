"""Invariant: what a model's own code traces with torch.fx reaches no other thread, however often it traces."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from app.models.loading import load

from .folders import TOML, source_of, try_out, write_model

CODE = """
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import fx, nn
other = nn.Linear(3, 3)  # served meanwhile
class Net(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part
    def forward(self, x):
        x = self.part(x)  # whatever tracing replaces is replaced by now
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(other, torch.ones(2, 3)).result().shape == (2, 3)
        return x
class Twice(fx.Tracer):
    def trace(self, *given, **named):
        super().trace(*given, **named)
        return super().trace(*given, **named)
def build():
    net = Net(fx.symbolic_trace(Net(nn.Linear(3, 3))))
    return fx.GraphModule(net, Twice().trace(net))
"""


def test_other_models_run_while_one_is_traced_by_its_own_code(tmp_path):
    called = nn.Module.__call__, nn.Module.__getattr__
    folders = [write_model(tmp_path / name, TOML, CODE) for name in "abc"]
    with ThreadPoolExecutor(len(folders)) as threads:  # as a server loads them
        models = list(threads.map(lambda folder: load(source_of(folder)), folders))
    assert (nn.Module.__call__, nn.Module.__getattr__) == called
    for model in models:
        assert try_out(model) == []
        assert model.call(torch.ones(2, 3)).shape == (2, 3)
