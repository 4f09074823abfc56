"""`recurrent = true`: runs a module that contains an nn.LSTM, nn.GRU or nn.RNN as a recurrent model.

The part before the layer makes `x` from the inputs, a step runs the cells of its layers, and the part behind it makes
the outputs. Each row gets the same result as alone and unpadded: a part that may look at several steps, such as a
convolution or a mean, only runs rows of one length together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from app.contract import ModelInfo
from app.errors import ConfigError
from app.models.base import normalise
from app.models.recurrent.layer_steps import State, TorchSteps, ready_steps
from app.models.recurrent.recurrent import Recurrent, leads
from app.models.recurrent.rnn_graph import CutModule


def by_its_layer(module: Any, info: ModelInfo) -> Recurrent:
    """The module, in eval mode, as a recurrent model of these inputs and outputs.

    Raises ConfigError `recurrent: expected ..., got ...` where it cannot be taken apart.
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"recurrent: expected a source that returns an nn.Module, got {type(module).__name__}")
    cell = LayerCell(module, info)
    return Recurrent(cell, tuple((cell.layer.hidden_size,) for _ in range(cell.states)))


class LayerCell(CutModule):
    """The cell of such a module. Its state: the hidden state of each layer, then an LSTM's cell states."""

    def __init__(self, module: nn.Module, info: ModelInfo) -> None:
        axis = next((axis for spec in info.inputs for axis in spec.axes if axis), None)
        along = [
            (place, dim)
            for place, spec in enumerate(info.inputs)
            for dim, name in enumerate(spec.axes, 1)
            if axis and name == axis
        ]
        super().__init__(module, len(info.inputs), along)
        self._along = along  # the inputs with the axis of the steps, and in which dimension
        self.states = self.layer.num_layers * (2 if self.layer.mode == "LSTM" else 1)
        self._outputs = info.outputs
        # outputs along the steps are as long as `ys`, so these are needed
        self.reads_steps = self.reads_steps or any(leads(spec) for spec in info.outputs)
        self.packs = True  # False if the step is compiled: packed products would break its graph
        self._steps = TorchSteps(self.layer)
        self._ready = self._steps  # with packed weights, from the first use on
        self._ready_for: tuple[Any, ...] = ()

    def start(
        self, *inputs: torch.Tensor, lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        if lengths is None or self.before_stepwise:
            x, state = self._start(inputs)
        else:
            place, dim = self._along[0]

            def start(rows: torch.Tensor, length: int) -> list[torch.Tensor]:
                group = [value.index_select(0, rows) for value in inputs]
                for at, axis in self._along:
                    group[at] = group[at].narrow(axis, 0, length)
                x, state = self._start(group)
                if x.shape[1] != length:
                    raise ConfigError(
                        f"recurrent: expected as many steps as the inputs are long, {length}, got {x.shape[1]}"
                    )
                return [x, *state]

            x, *own = _by_length(lengths, start, inputs[place].shape[dim], [(1,), *[()] * self.states])
            state = tuple(own)
        return self._fastest().reads(x, lengths), state

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor | None, State]:
        ys, after = self.stride(x[None], state)
        return None if ys is None else ys[0], after

    def longest_stride(self, rows: int, left: int) -> int:
        """How many steps of so many rows one `stride` should make; the first of them ends after `left` steps."""
        return self._fastest().longest(rows, left)

    def stride(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor | None, State]:
        """Steps: `x` [steps, rows, ...] -> y [steps, rows, ...] or None, and the state after the last."""
        ys, after = self._fastest().stride(x, state)
        return ys if self.reads_steps else None, after

    def _fastest(self) -> TorchSteps:
        """The steps with packed weights, packed again if the module has been moved or cast."""
        if not self.packs or not torch.is_inference_mode_enabled():
            return self._steps
        weight: Any = self.layer.weight_ih_l0
        which = (weight.data_ptr(), weight.dtype)
        if self._ready_for != which:
            self._ready = ready_steps(self.layer)
            self._ready_for = which
        return self._ready

    def finish(self, state: Sequence[torch.Tensor], ys: torch.Tensor | None, lengths: torch.Tensor) -> Any:
        if ys is None or self.behind_stepwise:
            return self._finish(state, ys)

        def finish(rows: torch.Tensor, length: int) -> list[torch.Tensor]:
            own = self._finish([value.index_select(0, rows) for value in state], ys.index_select(0, rows)[:, :length])
            return normalise(own, self._outputs)

        vary = [[dim for dim, axis in enumerate(spec.axes, 1) if axis] for spec in self._outputs]
        return _by_length(lengths, finish, ys.shape[1], vary)

    def _start(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The layer's input, rows first, and its first state."""
        x, hx = self.before.forward(*inputs)  # without hooks: calling the module costs more
        if not isinstance(x, torch.Tensor) or x.ndim != 3:
            got = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise ConfigError(f"recurrent: expected the layer to read a tensor of three dimensions, got {got}")
        x = x if self.layer.batch_first else x.transpose(0, 1)
        if hx is None:
            zeros = x.new_zeros((len(x), self.layer.hidden_size))
            return x, (zeros,) * self.states
        both = hx if self.layer.mode == "LSTM" else (hx,)
        # the module may make the state itself, in its own precision
        return x, tuple(layer.to(x.dtype) for part in both for layer in part.unbind(0))

    def _finish(self, state: Sequence[torch.Tensor], ys: torch.Tensor | None) -> Any:
        """The outputs of rows, from the results that the layer would have returned."""
        layers = self.layer.num_layers
        last: Any = torch.stack(list(state[:layers]))
        if self.layer.mode == "LSTM":
            last = last, torch.stack(list(state[layers:]))
        steps = ys if ys is None or self.layer.batch_first else ys.transpose(0, 1)
        return self.behind.forward((steps, last), len(state[0]), None if ys is None else ys.shape[1])


def _by_length(
    lengths: torch.Tensor, run: Callable[..., list[torch.Tensor]], steps: int, vary: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Call `run(rows, length)` for the rows (INT64 [n]) of each length, and join its results, rows first. Zeros pad
    the dimensions of a result that `vary` to so many steps.
    """
    places: dict[int, list[int]] = {}
    for row, length in enumerate(lengths.tolist()):
        places.setdefault(length, []).append(row)
    batch: list[torch.Tensor] = []
    for length, own in places.items():
        rows = torch.tensor(own, device=lengths.device)
        made = run(rows, length)
        batch = batch or [
            value.new_zeros((len(lengths), *(steps if dim in dims else n for dim, n in enumerate(value.shape[1:], 1))))
            for value, dims in zip(made, vary, strict=True)
        ]
        for values, value in zip(batch, made, strict=True):
            values[:, *map(slice, value.shape[1:])].index_copy_(0, rows, value)
    return batch
