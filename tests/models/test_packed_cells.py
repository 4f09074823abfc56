"""Invariant: packed weights give the steps that the layer's own give, up to rounding, and only where they pay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from app.contract import Batching, ModelInfo, TensorSpec
from app.models.recurrent import packed_cells as packing
from app.models.recurrent import rnn
from app.models.recurrent.packed_cells import packed_cells
from app.models.recurrent.rnn import LayerCell
from tests.tiers import repeatable

X = TensorSpec("x", "FP32", (-1, 5), ("steps", ""), (9, 5))
Y = TensorSpec("y", "FP32", (-1, 7), ("steps", ""), (9, 7))
INFO = ModelInfo("m", "1", "pytorch", (X,), (Y,), Batching(max_batch=4))
KINDS = {"lstm": (nn.LSTM, {}), "gru": (nn.GRU, {}), "tanh": (nn.RNN, {}), "relu": (nn.RNN, {"nonlinearity": "relu"})}


class Net(nn.Module):
    def __init__(self, kind: str, layers: int, bias: bool) -> None:
        super().__init__()
        make, more = KINDS[kind]
        torch.manual_seed(layers)
        self.layer = make(5, 7, layers, bias=bias, batch_first=True, **more)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps: torch.Tensor = self.layer(x)[0]
        return steps


@pytest.fixture(autouse=True)
def without_whole_layers() -> Iterator[None]:
    """An LSTM has its packed cells only where it cannot do without, see lstm_steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rnn, "lstm_steps", lambda layer: None)
        yield


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST", 1)


def run(cell: LayerCell, x: torch.Tensor) -> torch.Tensor:
    steps, state = cell.start(x, lengths=None)
    ys = []
    for step in range(x.shape[1]):
        before = [value.clone() for value in state]
        y, after = cell.step(steps[:, step], state)
        assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True)), "a unit may run again"
        state = after
        ys.append(y)
    return torch.stack(ys, 1)


@repeatable(40)
@given(st.sampled_from(list(KINDS)), st.integers(1, 3), st.booleans(), st.integers(1, 9), st.integers(1, 5))
def test_the_same_steps(kind: str, layers: int, bias: bool, rows: int, steps: int) -> None:
    net = Net(kind, layers, bias)
    x = torch.randn(rows, steps, 5)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(packing, "LEAST", 1)
        cell = LayerCell(net, INFO)
        got = run(cell, x)
        assert packed_cells(net.layer) is not None
        torch.testing.assert_close(got, net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("always")
def test_it_goes_where_the_module_goes() -> None:
    net = Net("lstm", 2, True)
    cell, x = LayerCell(net, INFO), torch.randn(3, 4, 5)
    with torch.inference_mode():
        before = run(cell, x)
        net.to(torch.float64)
        assert run(cell, x.double()).dtype == torch.float64
        net.to(torch.float32)
        torch.testing.assert_close(run(cell, x), before, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("always")
def test_what_cannot_be_packed_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: object) -> None:
        raise RuntimeError("not here")

    monkeypatch.setattr(packing, "_Product", refuses)
    net, x = Net("gru", 1, True), torch.randn(2, 3, 5)
    with torch.inference_mode():
        assert packed_cells(net.layer) is None
        torch.testing.assert_close(run(LayerCell(net, INFO), x), net(x), rtol=1e-5, atol=1e-5)


def test_small_layers_and_other_types_are_left_alone() -> None:
    with torch.inference_mode():
        assert packed_cells(Net("lstm", 1, True).layer) is None
        assert packed_cells(nn.LSTM(256, 256)) is not None
        assert packed_cells(nn.LSTM(256, 256).double()) is None
