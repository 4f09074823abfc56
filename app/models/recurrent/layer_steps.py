"""Steps of an nn.LSTM by oneDNN's own layer, of an nn.GRU by packed weights, or of any layer by torch's cells.

docs/theory/steps.md says why these are fast, and how many steps one call makes. OneDnnSteps and PackedGruSteps keep a
packed copy of the weights as they are at construction. Their constructors raise AttributeError or RuntimeError if
torch's build or the processor does not support it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from app.models.packed_weights import PackedProduct, pays

_REORDERED_FOR = 8  # rows for which the order of weights is chosen; any number of rows works
#: oneDNN's name of an LSTM, see at::native's RNN parameters.
_LSTM = 2
#: Rows times steps, and steps, of a call far from the end of a row: up to 16 take as long as a step of 32 rows.
_STRIDE = 16
_STEPS = 8
_NEAR = 20  # steps
_FEW = 4  # rows
_ROW_STEPS = 512  # 8 steps of 64 rows; more at once are hardly faster

State = tuple[torch.Tensor, ...]  # [rows, hidden] each: hidden states of all layers, then an LSTM's cell states
LayerStep = tuple[torch.Tensor, State]  # the last layer's hidden states, and the state after the last step


def ready_steps(layer: nn.RNNBase) -> TorchSteps:
    """The fastest steps for this layer: packed for float32 on a CPU and many weights. Call it in inference mode."""
    make = {"LSTM": OneDnnSteps, "GRU": PackedGruSteps}.get(layer.mode, TorchSteps)
    inner, outer, *_ = layer.all_weights[0]
    if make is not TorchSteps and pays(layer.parameters(), inner.numel() + outer.numel()):
        with suppress(AttributeError, RuntimeError):  # a build of torch, or a processor, without these operations
            return make(layer)
    return TorchSteps(layer)


class TorchSteps:
    """The cells of an RNN's layers, by torch's own operations on the module's weights."""

    def __init__(self, layer: nn.RNNBase) -> None:
        self.layer = layer
        self._cell: Callable[..., Any] = getattr(torch, f"{layer.mode.lower()}_cell")

    def reads(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """[rows, length, in] -> [rows, length, ...]: the input of the first cell at each step."""
        return x

    def longest(self, rows: int, left: int) -> int:
        """How many steps one `stride` of so many rows should make; the first of them ends after `left` steps."""
        return 1

    def stride(self, x: torch.Tensor, state: State) -> LayerStep:
        """As many steps as `longest` says: `x` [steps, rows, ...] -> [steps, rows, hidden]."""
        layers = self.layer.num_layers
        hidden: list[torch.Tensor] = []
        memory: list[torch.Tensor] = []
        for at in range(layers):
            x, *after = self.run(at, x, *state[at::layers])
            hidden.append(after[0])
            memory += after[1:]
        return x, (*hidden, *memory)

    def run(self, at: int, x: torch.Tensor, *state: torch.Tensor) -> Sequence[torch.Tensor]:
        """The same steps of layer `at`, and its state after the last: its hidden state, then an LSTM's cell state."""
        after = self._cell(x[0], state if len(state) > 1 else state[0], *self.layer.all_weights[at])
        after = after if len(state) > 1 else (after,)
        return after[0][None], *after


class OneDnnSteps(TorchSteps):
    """The layers of an LSTM by one operation each. Call it in inference mode."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__(layer)
        self._hidden = layer.hidden_size
        self._weights = [
            (*_reordered(inner, outer, self._hidden, layer.bias), *(biases or (outer, outer)))  # without: not read
            for inner, outer, *biases in layer.all_weights
        ]
        zeros = [torch.zeros(1, self._hidden)] * 2 * len(self._weights)
        self.stride(torch.zeros(1, 1, layer.input_size), tuple(zeros))  # raises where it cannot be done

    def longest(self, rows: int, left: int) -> int:
        if left <= _NEAR and rows > _FEW:
            return max(1, min(left, _ROW_STEPS // rows))
        return max(1, min(left, _STEPS, _STRIDE // rows))

    def run(self, at: int, x: torch.Tensor, *state: torch.Tensor) -> Sequence[torch.Tensor]:
        x, last, cell, _ = torch.ops.aten.mkldnn_rnn_layer(  # which assumes contiguous memory
            x.contiguous(), *self._weights[at], *(value.contiguous() for value in state), False, [], _LSTM,
            self._hidden, 1, self.layer.bias, False, False, False,
        )  # fmt: skip
        return x, last, cell


def _reordered(inner: torch.Tensor, outer: torch.Tensor, hidden: int, biased: bool) -> Sequence[torch.Tensor]:
    """The weights of a layer's input and of its hidden state, in oneDNN's order."""
    shape = [1, _REORDERED_FOR, inner.shape[1]]
    weights: Sequence[torch.Tensor] = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(
        inner, outer, hidden, False, biased, False, shape
    )
    return weights


class PackedGruSteps(TorchSteps):
    """A GRU whose products use packed weights. The product of the first layer's input does not depend on the state, so
    one product for all steps replaces one for each.
    """

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__(layer)
        #: Of each layer, the products of its input and of its hidden state.
        self._products = [
            (PackedProduct(inner, biases[0] if biases else None), PackedProduct(outer, biases[1] if biases else None))
            for inner, outer, *biases in layer.all_weights
        ]

    def reads(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        rows, longest, width = x.shape
        product, _ = self._products[0]
        if lengths is None or rows == 1:
            return product(x.reshape(-1, width)).view(rows, longest, -1)
        own = torch.arange(longest) < lengths[:, None]
        read = product(x[own])
        batch = read.new_zeros((rows, longest, read.shape[1]))  # 0 behind a row's end
        batch[own] = read
        return batch

    def run(self, at: int, x: torch.Tensor, *state: torch.Tensor) -> Sequence[torch.Tensor]:
        reads, recalls = self._products[at]
        after = _gru(reads(x[0]) if at else x[0], recalls(state[0]), state[0])
        return after[None], after


def _gru(read: torch.Tensor, recalled: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The next hidden state, from the products of a layer's input and of its hidden state."""
    reset, update, new = read.chunk(3, 1)
    reset_more, update_more, new_more = recalled.chunk(3, 1)
    reset, update = (reset + reset_more).sigmoid_(), (update + update_more).sigmoid_()
    return torch.lerp(torch.addcmul(new, reset, new_more).tanh_(), hidden, update)
