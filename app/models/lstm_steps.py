"""Steps of an nn.LSTM on a CPU by oneDNN's own layer: one call for each layer, of one step or of several.

A step by torch's operations is about six a layer, and each of them lets go of the interpreter lock and takes it again.
oneDNN's layer is one, reads what the layer reads along with the state, and keeps gates in the cache. It also makes
several steps at once: of few rows a step then costs half, as the weights are read from nearer memory. Two layers of 512
on one core, microseconds a step:

    rows                                    1     2     4     8    16    32    64
    operations on packed weights          543   666   791  1335  1739  3396  6562
    a call for each step                  448   449   786   988  1878  3128  6174
    8 steps in a call                     176   437   440   748  1470  3324  5438

The weights are a copy, in the order in which oneDNN reads them, beside the module's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from app.models.packed_cells import pays

#: oneDNN's name of an LSTM, see at::native's RNN parameters.
_LSTM = 2
_ROWS = 8  # for which the order of the weights is chosen; calls of any number of rows and steps use it
#: Rows times steps of a call. A row that comes meanwhile waits for its end, so it is to be no longer than a step of a
#: large batch: up to 16 take as long as a step of 32 rows. A row of 20 steps saves more than that.
_STRIDE = 16
_STEPS = 8  # more at once are no faster

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

    def longest(self, rows: int) -> int:
        """How many steps of so many rows are worth a call, where rows that come are to wait no longer than for one."""
        return max(1, min(_STEPS, _STRIDE // rows))


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
