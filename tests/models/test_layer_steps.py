"""Invariant: weights made ready for steps give the steps that the module makes, one or several, where they pay."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specs import info_of, spec
from torch import nn

from app.models import packed_weights
from app.models.recurrent import layer_steps
from app.models.recurrent.cells import CellModel
from app.models.recurrent.layer_steps import OneDnnSteps, PackedGruSteps, TorchSteps
from app.models.recurrent.rnn import LayerCell, by_its_layer
from tests.tiers import repeatable

INFO = info_of([spec("x", "FP32", ("steps", 30), 5)], [spec("y", "FP32", ("steps", 30), 7)], max_batch=4)
KINDS = {"lstm": (nn.LSTM, {}), "gru": (nn.GRU, {}), "tanh": (nn.RNN, {}), "relu": (nn.RNN, {"nonlinearity": "relu"})}
WAYS = [(OneDnnSteps, "lstm"), (PackedGruSteps, "gru"), *((TorchSteps, kind) for kind in KINDS)]


class Net(nn.Module):
    def __init__(self, kind, layers=2, bias=True, batch_first=True):
        super().__init__()
        make, more = KINDS[kind]
        torch.manual_seed(layers)
        self.layer = make(5, 7, layers, bias=bias, batch_first=batch_first, **more)
        self.batch_first = batch_first
        self.eval()

    def forward(self, x):
        steps = self.layer(x if self.batch_first else x.transpose(0, 1))[0]
        return steps if self.batch_first else steps.transpose(0, 1)


@pytest.fixture(autouse=True)
def always():
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(packed_weights, "LEAST_TO_PACK", 1)
        yield


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@repeatable(60)
@given(
    st.sampled_from(WAYS), st.integers(1, 3), st.booleans(), st.integers(1, 9),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)  # fmt: skip
def test_however_the_steps_are_cut(way, layers, bias, rows, cuts):
    make, kind = way
    net = Net(kind, layers, bias)
    steps, x = make(net.layer), torch.randn(rows, sum(cuts), 5)
    state = tuple(torch.zeros(rows, 7) for _ in range(layers * (2 if kind == "lstm" else 1)))
    read, done, ys = steps.reads(x, None), 0, []
    for size in cuts if make is OneDnnSteps else [1] * sum(cuts):
        before = [value.clone() for value in state]
        y, after = steps.stride(read[:, done : done + size].transpose(0, 1), state)
        assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True)), "a unit may run again"
        state, done = after, done + size
        ys.append(y)
    close(torch.cat(ys).transpose(0, 1), net(x))
    _, last = net.layer(x)
    close(torch.stack(state), torch.cat(last) if kind == "lstm" else last)


@repeatable(20)
@given(
    st.sampled_from([("lstm", None), ("lstm", "_reordered"), ("gru", None)]), st.booleans(),
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
)  # fmt: skip
def test_a_batch_that_shrinks(kind, batch_first, lengths):
    net = Net(kind[0], batch_first=batch_first)
    model = CellModel(by_its_layer(net, INFO), INFO)
    x = torch.randn(len(lengths), max(lengths), 5)
    with pytest.MonkeyPatch.context() as patch:
        if kind[1]:
            patch.setattr(layer_steps, kind[1], Mock(side_effect=RuntimeError("not here")))
        (ys,) = model(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        close(ys[row, :length], net(x[row : row + 1, :length])[0])


@pytest.mark.parametrize(
    ("left", "strides"),
    [
        # short while a row could still gain by joining
        (300, {1: 8, 2: 8, 3: 5, 8: 2, 9: 1, 64: 1}),
        (21, {4: 4, 5: 3, 64: 1}),
        # to the end of the next row where that is near
        (20, {1: 8, 4: 4, 5: 20, 25: 20, 32: 16, 64: 8}),
        (3, {1: 3, 16: 3, 64: 3, 1000: 1}),
    ],
)
def test_strides(left, strides):
    cell = LayerCell(Net("lstm"), INFO)
    assert {rows: cell.longest_stride(rows, left) for rows in strides} == strides
    assert LayerCell(Net("gru"), INFO).longest_stride(1, left) == 1
