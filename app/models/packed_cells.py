"""Steps of recurrent layers with large weights on a CPU: the weights in the order in which oneDNN multiplies by them.

An ordinary product brings the weights into such an order each time. A whole sequence pays for that once, but a step of
a few rows pays more for it than for the product: two LSTM layers of 512 take 1.5 to 2 times as long as with weights
that were packed beforehand, from 2 rows to 64. The packed weights are a copy, beside the module's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

#: Values of a layer's weights from which packing pays: a core's own cache keeps fewer (1 MiB), and then what a step
#: costs beyond the product is more than packing saves.
LEAST = 1 << 18
_ROWS = 32  # for which the order is chosen; products of any number of rows use it

States = tuple[torch.Tensor, ...]
Cell = Callable[[torch.Tensor, States], States]  # what a layer reads and its states -> its next states, hidden first


def packed_cells(layer: nn.RNNBase) -> list[Cell] | None:
    """A cell for each of its layers, one above the other; None where packing does not pay, or is not possible.

    Call it in inference mode. The cells keep the weights as they are now.
    """
    if not _pays(layer):
        return None
    make = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _rnn, "RNN_RELU": _rnn}[layer.mode]
    try:
        return [make(weights, layer.mode) for weights in layer.all_weights]
    except (AttributeError, RuntimeError):  # a build of torch, or a processor, without these products
        return None


def _pays(layer: nn.RNNBase) -> bool:
    first = layer.all_weights[0]
    on_cpu = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in layer.parameters())
    return on_cpu and first[0].numel() + first[1].numel() >= LEAST


class _Product:
    """[rows, in] -> [rows, out]: times the weight, plus the bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._bias = bias
        self(weight.new_zeros((1, weight.shape[1])))  # raises where it cannot be done

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return result


def _joint(weights: Sequence[Any]) -> _Product:
    """One product of what a layer reads and of its hidden state side by side."""
    inner, outer, *biases = weights
    return _Product(torch.cat((inner, outer), 1), biases[0] + biases[1] if biases else None)


def _lstm(weights: Sequence[Any], mode: str) -> Cell:
    product = _joint(weights)

    def cell(x: torch.Tensor, states: States) -> States:
        hidden, memory = states
        take, keep, new, show = product(torch.cat((x, hidden), 1)).chunk(4, 1)
        memory = keep.sigmoid_().mul(memory).addcmul_(take.sigmoid_(), new.tanh_())
        return memory.tanh().mul_(show.sigmoid_()), memory

    return cell


def _rnn(weights: Sequence[Any], mode: str) -> Cell:
    product = _joint(weights)

    def cell(x: torch.Tensor, states: States) -> States:
        hidden = product(torch.cat((x, states[0]), 1))
        return (hidden.tanh_() if mode == "RNN_TANH" else hidden.relu_(),)

    return cell


def _gru(weights: Sequence[Any], mode: str) -> Cell:
    inner, outer, *biases = weights
    reads, recalls = _Product(inner, biases[0] if biases else None), _Product(outer, biases[1] if biases else None)

    def cell(x: torch.Tensor, states: States) -> States:
        (hidden,) = states
        reset, update, new = reads(x).chunk(3, 1)
        reset_more, update_more, new_more = recalls(hidden).chunk(3, 1)
        new = new.addcmul_(reset.add_(reset_more).sigmoid_(), new_more).tanh_()
        return (torch.lerp(new, hidden, update.add_(update_more).sigmoid_()),)

    return cell
