"""Invariant: oneDNN's layer makes the steps that the module makes, one at a time or several, and only where it pays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from app.contract import Batching, ModelInfo, TensorSpec
from app.models.recurrent import lstm_steps as steps_of
from app.models.recurrent import packed_cells as packing
from app.models.recurrent.cells import recurrent_model
from app.models.recurrent.lstm_steps import lstm_steps
from app.models.recurrent.rnn import LayerCell, by_its_layer
from tests.tiers import repeatable

X = TensorSpec("x", "FP32", (-1, 5), ("steps", ""), (30, 5))
Y = TensorSpec("y", "FP32", (-1, 7), ("steps", ""), (30, 7))
INFO = ModelInfo("m", "1", "pytorch", (X,), (Y,), Batching(max_batch=4))


class Net(nn.Module):
    def __init__(self, layers: int, bias: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(layers)
        self.layer = nn.LSTM(5, 7, layers, bias=bias, batch_first=batch_first)
        self.batch_first = batch_first
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps: torch.Tensor = self.layer(x if self.batch_first else x.transpose(0, 1))[0]
        return steps if self.batch_first else steps.transpose(0, 1)


@pytest.fixture(autouse=True)
def always() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(packing, "LEAST", 1)
        yield


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@repeatable(10)
@given(st.integers(1, 3), st.booleans(), st.booleans(), st.integers(1, 9), CUTS)
def test_however_the_steps_are_cut(layers: int, bias: bool, batch_first: bool, rows: int, cuts: list[int]) -> None:
    net = Net(layers, bias, batch_first)
    x = torch.randn(rows, sum(cuts), 5)
    cell = LayerCell(net, INFO)
    read, state = cell.start(x, lengths=None)
    done, ys = 0, []
    for steps in cuts:
        before = [value.clone() for value in state]
        y, after = cell.stride(read[:, done : done + steps].transpose(0, 1), state)
        assert y is not None
        assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True)), "a unit may run again"
        state, done = after, done + steps
        ys.append(y)
    close(torch.cat(ys).transpose(0, 1), net(x))
    _, (hidden, memory) = net.layer(x if batch_first else x.transpose(0, 1))
    close(torch.stack(state), torch.cat((hidden, memory)))


@repeatable(10)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_a_batch_that_shrinks(lengths: list[int]) -> None:
    net = Net(2)
    model, _ = recurrent_model(by_its_layer(net, INFO), INFO)
    x = torch.randn(len(lengths), max(lengths), 5)
    (ys,) = model(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        close(ys[row, :length], net(x[row : row + 1, :length])[0])


def test_strides_are_short_while_a_row_could_still_gain_by_joining() -> None:
    cell = LayerCell(Net(1), INFO)
    assert [cell.longest_stride(rows, 300) for rows in (1, 2, 3, 8, 9, 64)] == [8, 8, 5, 2, 1, 1]
    assert [cell.longest_stride(rows, 21) for rows in (4, 5, 64)] == [4, 3, 1]


def test_strides_go_to_the_end_of_the_next_row_where_that_is_near() -> None:
    cell = LayerCell(Net(1), INFO)
    assert [cell.longest_stride(rows, 20) for rows in (1, 4, 5, 25, 32, 64)] == [8, 4, 20, 20, 16, 8]
    assert [cell.longest_stride(rows, 3) for rows in (1, 16, 64, 1000)] == [3, 3, 3, 1]


def test_it_is_for_large_float32_lstms() -> None:
    assert lstm_steps(nn.LSTM(5, 7)) is not None
    assert lstm_steps(nn.LSTM(5, 7).double()) is None
    assert lstm_steps(nn.GRU(5, 7)) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LEAST", 1 << 18)
        assert lstm_steps(nn.LSTM(5, 7)) is None
        assert lstm_steps(nn.LSTM(256, 256)) is not None


def test_where_it_cannot_be_done_the_cells_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: object) -> None:
        raise RuntimeError("not here")

    monkeypatch.setattr(steps_of, "_reordered", refuses)
    net, x = Net(2), torch.randn(3, 4, 5)
    model, _ = recurrent_model(by_its_layer(net, INFO), INFO)
    assert model.longest_stride(1, 20) == 1
    assert isinstance(model.cell._ready(), packing.PackedCells)
    close(model(x, torch.full((3,), 4))[0], net(x))


def test_what_it_is_not_made_for_raises() -> None:
    steps = lstm_steps(nn.LSTM(5, 7))
    assert steps is not None
    state = [torch.zeros(2, 7)] * 2
    for x in (torch.zeros(1, 2, 6), torch.zeros(1, 2, 5, dtype=torch.float64)):
        with pytest.raises(RuntimeError):
            steps(x, state)
