"""Steps of an nn.LSTM by oneDNN's own layer, of an nn.GRU by packed weights, or of any layer by torch's cells.

An ordinary product packs its weights each time (`packed_weights`). A whole sequence pays for that once, but a step of a
few rows pays more for packing than for the product: two LSTM layers of 512 take 1.5 to 2 times as long as with weights
packed beforehand, from 2 rows to 64, and steps of a GRU 1.5 to 1.9 times.

A step by torch's operations takes about six a layer, each of which releases the interpreter lock and takes it again.
oneDNN's LSTM layer is one operation; it multiplies input and state together and keeps the gates in the cache. It also
makes several steps in one call: with few rows a step then costs half, because the weights are read from nearer memory,
and with many an eighth less. Two layers of 512 on one core, microseconds a step:

    rows                                    1     2     4     8    16    32    64
    operations on packed weights          543   666   791  1335  1739  3396  6562
    a call for each step                  448   449   786   988  1878  3128  6174
    8 steps in a call                     176   437   440   748  1470  3324  5438

A row that arrives during a call waits until it ends. While the first row has many steps left, a call is therefore no
longer than a step of a large batch. When that row ends within _NEAR steps, more than _FEW rows make them in one call of
up to _ROW_STEPS rows times steps: a row that joined them would slow each of them for about as long as it saves itself.
Simulated with times of a core, policy `adaptive`, Poisson arrivals of rows of 20 steps, the median latency in ms. In
the last line the medians are without the bound of _ROW_STEPS, and the most rows/s with it.

    rows/s                                        181    301    422    500    most rows/s
    short calls throughout                       16.8   19.1   22.6   26.7            727
    long ones near the end, of any rows          17.7   19.7   21.0   22.0            829
    long ones near the end, of more than _FEW    16.4   17.5   18.5   19.4            805

OneDnnSteps and PackedGruSteps keep a packed copy of the weights as they are at construction. Their constructors raise
AttributeError or RuntimeError if torch's build or the processor does not support it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import nn

from app.models.packed_weights import LEAST_TO_PACK, PackedProduct

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

_TORCH_CELLS: dict[str, Callable[..., torch.Tensor]] = {
    "GRU": torch.gru_cell,
    "RNN_TANH": torch.rnn_tanh_cell,
    "RNN_RELU": torch.rnn_relu_cell,
}


def ready_steps(layer: nn.RNNBase) -> TorchSteps:
    """The fastest steps for this layer: packed for float32 on a CPU and many weights. Call it in inference mode."""
    make = {"LSTM": OneDnnSteps, "GRU": PackedGruSteps}.get(layer.mode, TorchSteps)
    if make is not TorchSteps and pays(layer):
        with suppress(AttributeError, RuntimeError):  # a build of torch, or a processor, without these operations
            return make(layer)
    return TorchSteps(layer)


def pays(layer: nn.RNNBase) -> bool:
    """Whether packing the weights makes steps faster."""
    first = layer.all_weights[0]
    on_cpu = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in layer.parameters())
    return on_cpu and first[0].numel() + first[1].numel() >= LEAST_TO_PACK


class TorchSteps:
    """The cells of an RNN's layers, by torch's own operations on the module's weights."""

    def __init__(self, layer: nn.RNNBase) -> None:
        self.layer = layer

    def reads(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """[rows, length, in] -> [rows, length, ...]: the input of the first cell at each step."""
        return x

    def longest(self, rows: int, left: int) -> int:
        """How many steps one `stride` of so many rows should make; the first of them ends after `left` steps."""
        return 1

    def step(self, x: torch.Tensor, state: State) -> LayerStep:
        """`x` [rows, ...] -> [rows, hidden]."""
        layers, weights = self.layer.num_layers, self.layer.all_weights
        hidden: list[torch.Tensor] = []
        memory: list[torch.Tensor] = []
        for at in range(layers):
            if self.layer.mode == "LSTM":
                x, cell = torch.lstm_cell(x, (state[at], state[layers + at]), *weights[at])
                memory.append(cell)
            else:
                x = _TORCH_CELLS[self.layer.mode](x, state[at], *weights[at])
            hidden.append(x)
        return x, (*hidden, *memory)

    def stride(self, x: torch.Tensor, state: State) -> LayerStep:
        """As many steps as `longest` says: `x` [steps, rows, ...] -> [steps, rows, hidden]."""
        y, after = self.step(x[0], state)
        return y[None], after


class OneDnnSteps(TorchSteps):
    """The layers of an LSTM by one operation each. Call it in inference mode."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__(layer)
        self._hidden = layer.hidden_size
        self._weights = [
            (
                *_reordered(inner, outer, self._hidden, layer.bias),
                *(biases or (outer, outer)),  # not read without biases
            )
            for inner, outer, *biases in layer.all_weights
        ]
        zeros = [torch.zeros(1, self._hidden)] * 2 * len(self._weights)
        self.stride(torch.zeros(1, 1, layer.input_size), tuple(zeros))  # raises where it cannot be done

    def longest(self, rows: int, left: int) -> int:
        if left <= _NEAR and rows > _FEW:
            return max(1, min(left, _ROW_STEPS // rows))
        return max(1, min(left, _STEPS, _STRIDE // rows))

    def step(self, x: torch.Tensor, state: State) -> LayerStep:
        ys, after = self.stride(x[None], state)
        return ys[0], after

    def stride(self, x: torch.Tensor, state: State) -> LayerStep:
        layers = len(self._weights)
        hidden: list[torch.Tensor] = []
        memory: list[torch.Tensor] = []
        x = x.contiguous()  # the operation assumes contiguous memory
        for at, weights in enumerate(self._weights):
            x, last, cell, _ = torch.ops.aten.mkldnn_rnn_layer(
                x, *weights, state[at].contiguous(), state[layers + at].contiguous(), False, [], _LSTM, self._hidden, 1,
                self.layer.bias, False, False, False,
            )  # fmt: skip
            hidden.append(last)
            memory.append(cell)
        return x, (*hidden, *memory)


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

    def step(self, x: torch.Tensor, state: State) -> LayerStep:
        after: list[torch.Tensor] = []
        for place, (hidden, (reads, recalls)) in enumerate(zip(state, self._products, strict=True)):
            after.append(_gru(reads(x) if place else x, recalls(hidden), hidden))
            x = after[-1]
        return x, tuple(after)


def _gru(read: torch.Tensor, recalled: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The next hidden state, from the products of a layer's input and of its hidden state."""
    reset, update, new = read.chunk(3, 1)
    reset_more, update_more, new_more = recalled.chunk(3, 1)
    reset, update = (reset + reset_more).sigmoid_(), (update + update_more).sigmoid_()
    return torch.lerp(torch.addcmul(new, reset, new_more).tanh_(), hidden, update)
