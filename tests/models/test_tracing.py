"""Invariants: what a model's own code traces with torch.fx reaches no other thread, however often it traces. And what
torch cannot do twice at a time, no two threads do.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import fx, nn
from torch._dynamo import convert_frame

from app.models.sources import tracing

from .folders import TOML, loaded, try_out, write_model

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
        models = list(threads.map(lambda folder: loaded(folder), folders))
    assert (nn.Module.__call__, nn.Module.__getattr__) == called
    for model in models:
        assert try_out(model) == []
        assert model.call(torch.ones(2, 3)).shape == (2, 3)


@pytest.fixture
def one_at_a_time(monkeypatch):
    for owner, name, function in tracing._REPLACED:
        monkeypatch.setattr(owner, name, function)


class Alone(nn.Module):
    """Raises if another thread could trace, export or compile while it is traced."""

    def forward(self, x):
        with ThreadPoolExecutor(1) as thread:
            assert not thread.submit(tracing._TRACING.acquire, blocking=False).result()
        return x * 2


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize(
    "trace",
    [
        lambda net: fx.Tracer().trace(net),
        lambda net: torch.export.export(net, (torch.ones(2, 3),), strict=False),
        lambda net: torch.jit.trace(net, torch.ones(2, 3), check_trace=False),
    ],
)
def test_one_thread_at_a_time_traces(trace):
    trace(Alone())


@pytest.mark.usefixtures("one_at_a_time")
def test_a_compiled_model_runs_while_another_is_traced():
    compiled = torch.compile(nn.Linear(3, 3), backend="eager")
    assert convert_frame.compile_lock is tracing._TRACING
    compiled(torch.ones(2, 3))

    class Net(nn.Module):
        def forward(self, x):
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(compiled, torch.ones(2, 3)).result().shape == (2, 3)
            return x

    fx.Tracer().trace(Net())


@pytest.mark.usefixtures("one_at_a_time")
def test_a_call_that_outlives_a_trace_is_of_its_own_model():
    begun = []

    class Net(nn.Module):
        def forward(self, x):
            begun.append((nn.Module.__call__, nn.Module.__getattr__))  # another thread has looked them up
            return x

    tracer, other = fx.Tracer(), nn.Linear(3, 3)
    graphs = [tracer.trace(Net()) for _ in range(2)]
    assert [len(graph.nodes) for graph in graphs] == [2, 2]
    call, attribute = begun[0]
    assert torch.equal(call(other, torch.ones(2, 3)), other(torch.ones(2, 3)))
    assert attribute(other, "weight") is other.weight


@pytest.mark.usefixtures("one_at_a_time")
def test_a_tracer_records_as_its_own_attributes_say():
    tracer, log = fx.Tracer(), []
    tracer.call_module = lambda m, forward, args, kwargs: log.append(m)
    tracer.trace(nn.Sequential(nn.ReLU()))
    assert len(log) == 1
