"""Steps of an nn.LSTM on a CPU by oneDNN's own layer: one call for each layer, of one step or of several.

A step by torch's operations is about six a layer, and each of them lets go of the interpreter lock and takes it again.
oneDNN's layer is one, reads what the layer reads along with the state, and keeps gates in the cache. It also makes
several steps at once: of few rows a step then costs half, as the weights are read from nearer memory, and of many an
eighth less. Two layers of 512 on one core, microseconds a step:

    rows                                    1     2     4     8    16    32    64
    operations on packed weights          543   666   791  1335  1739  3396  6562
    a call for each step                  448   449   786   988  1878  3128  6174
    8 steps in a call                     176   437   440   748  1470  3324  5438

A row that arrives during a call waits until it ends. While the first row has many steps left, a call is therefore no
longer than a step of a large batch. When that row ends within _NEAR steps, more than _FEW rows make them in one call of
up to _ROW_STEPS rows times steps: a row that joined them would slow each of them for about as long as it saves itself.
Simulated with times of a core, policy `adaptive`, Poisson arrivals of rows of 20 steps, the median latency in ms. The
medians of the last line are of calls without the bound of _ROW_STEPS; the most rows/s there, with it.

    rows/s                                        181    301    422    500    most rows/s
    short calls throughout                       16.8   19.1   22.6   26.7            727
    long ones near the end, of any rows          17.7   19.7   21.0   22.0            829
    long ones near the end, of more than _FEW    16.4   17.5   18.5   19.4            805

The weights are a copy, in the order in which oneDNN reads them, beside the module's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from app.models.recurrent.packed_cells import pays

#: oneDNN's name of an LSTM, see at::native's RNN parameters.
_LSTM = 2
_ROWS = 8  # for which the order of the weights is chosen; calls of any number of rows and steps use it
#: Rows times steps, and steps, of a call far from the end of a row: up to 16 take as long as a step of 32 rows.
_STRIDE = 16
_STEPS = 8
_NEAR = 20  # steps
_FEW = 4  # rows
_ROW_STEPS = 512  # 8 steps of 64 rows; more at once are hardly faster

State = Sequence[torch.Tensor]


class LstmSteps:
    """The layers of an LSTM one above the other. Call it in inference mode; it keeps the weights as they are now."""

    def __init__(self, layer: nn.LSTM) -> None:
        """Raises AttributeError or RuntimeError where a build of torch, or a processor, cannot do it."""
        self._hidden = layer.hidden_size
        self._biased = layer.bias
        self._layers = [
            (
                *_reordered(inner, outer, self._hidden, layer.bias),
                *(biases or (outer, outer)),
            )  # then these are not read
            for inner, outer, *biases in layer.all_weights
        ]
        # raises where it cannot be done; float32, see `pays`
        self(torch.zeros(1, 1, layer.input_size), [torch.zeros(1, self._hidden)] * 2 * len(self._layers))

    def __call__(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """`x` [steps, rows, in]; `state` [rows, hidden], hidden states of all layers and then their cell states.

        Returns the last layer's hidden states [steps, rows, hidden], and the state behind the last step.
        """
        layers = len(self._layers)
        hidden: list[torch.Tensor] = []
        memory: list[torch.Tensor] = []
        x = x.contiguous()  # the operation reads memory as it lies
        for at, weights in enumerate(self._layers):
            x, shown, kept, _ = torch.ops.aten.mkldnn_rnn_layer(
                x, *weights, state[at].contiguous(), state[layers + at].contiguous(), False, [], _LSTM, self._hidden, 1,
                self._biased, False, False, False,
            )  # fmt: skip
            hidden.append(shown)
            memory.append(kept)
        return x, (*hidden, *memory)

    def longest(self, rows: int, left: int) -> int:
        """How many steps one call should make of so many rows, the first of which ends after `left` steps."""
        if left <= _NEAR and rows > _FEW:
            return max(1, min(left, _ROW_STEPS // rows))
        return max(1, min(left, _STEPS, _STRIDE // rows))


def lstm_steps(layer: nn.RNNBase) -> LstmSteps | None:
    """None for another kind of layer, where it does not pay, and where it cannot be done. Call it in inference mode."""
    if not isinstance(layer, nn.LSTM) or not pays(layer):
        return None
    try:
        return LstmSteps(layer)
    except (AttributeError, RuntimeError):  # a build of torch, or a processor, without this operation
        return None


def _reordered(inner: torch.Tensor, outer: torch.Tensor, hidden: int, biased: bool) -> Sequence[torch.Tensor]:
    """The weights of what a layer reads and of its hidden state, as oneDNN has them."""
    shape = [1, _ROWS, inner.shape[1]]
    weights: Sequence[torch.Tensor] = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(
        inner, outer, hidden, False, biased, False, shape
    )
    return weights
