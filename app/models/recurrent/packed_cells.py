"""Steps of recurrent layers with large weights on a CPU: the weights in the order in which oneDNN multiplies by them.

An ordinary product brings the weights into such an order each time. A whole sequence pays for that once, but a step of
a few rows pays more for it than for the product: two LSTM layers of 512 take 1.5 to 2 times as long as with weights
that were packed beforehand, from 2 rows to 64. The packed weights are a copy, beside the module's own. For an LSTM
`lstm_steps` is faster, where it can be had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

#: Values of a layer's weights from which packing pays: a core's own cache keeps fewer (1 MiB), and then what a step
#: costs beyond the product is more than packing saves.
LEAST = 1 << 18
_ROWS = 32  # for which the order is chosen; products of any number of rows use it

States = tuple[torch.Tensor, ...]
#: What a layer reads and its states -> its next states, hidden first. The first layer is given the product of it.
Cell = Callable[[torch.Tensor, States], States]
Reads = Callable[[torch.Tensor], torch.Tensor]  # [rows, in] -> [rows, gates x hidden]
Products = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]  # of x and hidden state


class PackedCells(NamedTuple):
    """A layer's cells, one above the other, and what multiplies all that the first of them reads beforehand.

    What does not depend on the state need not wait for it: one product of all steps costs less than one for each step.
    """

    reads: Reads
    cells: list[Cell]


def packed_cells(layer: nn.RNNBase) -> PackedCells | None:
    """The cells of a layer; None where packing does not pay, or is not possible.

    Call it in inference mode. The cells keep the weights as they are now.
    """
    if not pays(layer):
        return None
    make = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _rnn, "RNN_RELU": _rnn}[layer.mode]
    first, *others = layer.all_weights
    try:
        inner, outer, *biases = first
        # A GRU's biases act at different places, the others' add up.
        apart = layer.mode == "GRU"
        reads = _Product(inner, None if not biases else biases[0] if apart else biases[0] + biases[1])
        recalls = _Product(outer, biases[1] if biases and apart else None)
        cells = [make(lambda x, hidden: (x, recalls(hidden)), layer.mode)]
        return PackedCells(reads, cells + [make(_both(weights, layer.mode), layer.mode) for weights in others])
    except (AttributeError, RuntimeError):  # a build of torch, or a processor, without these products
        return None


def pays(layer: nn.RNNBase) -> bool:
    """Whether weights made ready for steps are worth it: float32 on a CPU, and many."""
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


def _both(weights: Sequence[Any], mode: str) -> Products:
    """The products of what a layer reads and of its hidden state; one of both side by side where they only add up."""
    inner, outer, *biases = weights
    if mode == "GRU":
        reads, recalls = _Product(inner, biases[0] if biases else None), _Product(outer, biases[1] if biases else None)
        return lambda x, hidden: (reads(x), recalls(hidden))
    joint = _Product(torch.cat((inner, outer), 1), biases[0] + biases[1] if biases else None)
    return lambda x, hidden: (joint(torch.cat((x, hidden), 1)), None)


def _lstm(products: Products, mode: str) -> Cell:
    def cell(x: torch.Tensor, states: States) -> States:
        hidden, memory = states
        take, keep, new, show = _sum(products(x, hidden)).chunk(4, 1)
        memory = keep.sigmoid_().mul(memory).addcmul_(take.sigmoid_(), new.tanh_())
        return memory.tanh().mul_(show.sigmoid_()), memory

    return cell


def _rnn(products: Products, mode: str) -> Cell:
    def cell(x: torch.Tensor, states: States) -> States:
        hidden = _sum(products(x, states[0]))
        return (hidden.tanh_() if mode == "RNN_TANH" else hidden.relu_(),)

    return cell


def _gru(products: Products, mode: str) -> Cell:
    def cell(x: torch.Tensor, states: States) -> States:
        (hidden,) = states
        read, recalled = products(x, hidden)
        assert recalled is not None  # of a GRU they are apart
        reset, update, new = read.chunk(3, 1)
        reset_more, update_more, new_more = recalled.chunk(3, 1)
        reset, update = (reset + reset_more).sigmoid_(), (update + update_more).sigmoid_()
        return (torch.lerp(torch.addcmul(new, reset, new_more).tanh_(), hidden, update),)

    return cell


def _sum(products: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
    """In memory that the cell may write into: the first of two is not its own."""
    one, other = products
    return one if other is None else other.add_(one)
