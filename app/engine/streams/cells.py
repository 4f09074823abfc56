"""Runs a recurrent model on a device of streams, step by step: rows of one step may have made different numbers of
steps.

The inputs, states and outputs of rows are in slabs with a place for each slot, so one graph per size serves any rows.
Each row has two places for its state, read and written alternately. How many steps a row makes is known on the host
from its length, unless the cell ends rows itself: then it returns a flag for each row, which is copied to the host
behind the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from app.contract import Array, Model
from app.engine.executor import Kept
from app.engine.pool import Allocate, Slots, padded
from app.engine.step_slabs import FirstStep, StepSlabs
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.executor import Longest, StreamExecutor
from app.errors import ConfigError
from app.models.recurrent.cells import CellModel

#: Rows of the index after the lengths. For each row of a step: the places of its state before and after, of its input
#: and its output in the slabs of all steps, and of outputs of which only the last is kept. For each row that has ended:
#: its place, its state, and the steps that it has made.
_READ, _WRITE, _X, _Y, _KEEP, _END, _END_STATE, _END_STEPS = range(8)


def stepwise(model: Model) -> bool:
    """Whether the model has a cell, and bounded inputs."""
    cell, bounded = model.call, all(spec.bounded for spec in model.info.client_inputs)
    return isinstance(cell, CellModel) and bounded and (cell.axis.most is not None or not cell.axis.name)


class CellSlabs(StepSlabs):
    """Device memory of rows, with an additional place for padding: also two places per row for each state.

    `last`: by output, places for those of which only the last step is kept.
    """

    def __init__(self, rows: int, first: FirstStep, empty: Allocate) -> None:
        """`empty` allocates device memory. Raises OutOfMemoryError."""
        places, (ys, state, _) = rows + 1, first.stepped
        super().__init__(places, first.longest, first, empty)
        self.state = [empty((2 * places, *value.shape[1:]), value.dtype) for value in state]
        self.last = {
            place: empty((places, *y.shape[1:]), y.dtype) for place, y in enumerate(ys) if place not in first.every
        }
        self.row_bytes += sum(value.nbytes for value in (*self.state, *self.last.values())) // places


class CellStreamExecutor(StreamExecutor):
    """For a model that is `stepwise`. `steps` is None until a row has been tried."""

    def __init__(self, model: Model, pool: StreamPool, runtime: CudaRuntime, graphs: bool) -> None:
        super().__init__(model, pool, runtime, graphs)
        assert isinstance(model.call, CellModel)
        self.cell = model.call
        self.graphs, self.padded_axis, self.padded_bound = graphs, "", 0  # what a step computes has no length
        self._slots = pool.end
        self.slabs: CellSlabs  # once it has been tried
        self.rows = Kept[int]()  # the steps that each row has made
        self._first = self.index_rows  # the first row of the index that is used for a cell
        self.index_rows += 8

    # before it serves

    def rehearse_row(self, slots: Slots) -> None:
        """Run the first step of a row, once, and allocate the memory of all slots' rows."""
        if self.steps is not None:
            return
        index, row = self.memories[0].index, slots[:1]
        self.put_index(index, row, 1)
        first = FirstStep.of(self.cell, self.gather(index, row, 1, self.lengths_of(row)[1]), self.keywords(row))
        self.slabs = CellSlabs(self._slots, first, self.runtime.empty)
        self.flags = first.stepped.ended is not None
        self.activations, self.rows.place_bytes = self.rows, self.slabs.row_bytes
        self.steps = first.steps

    def rehearse(self, index: torch.Tensor, slots: Slots, size: int, longest: Longest) -> None:
        """Rows begin, make one step and end."""
        table = torch.zeros(index.shape, dtype=torch.int64)
        rows = padded(slots, size)
        self.write_index(slots, size, table.numpy())
        self.write_step(rows, [0] * size, size, table.numpy())
        self.write_ends(rows, [1] * size, table.numpy())
        index.copy_(table)
        self.begin(index, rows)
        self.step(0, (), index, rows, size, longest)
        self._finish(index, size, 1)

    # what units need, on the host

    def limits(self, slots: Slots) -> list[int]:
        """How many steps each row makes, unless the cell ends it earlier."""
        axis, steps = self.cell.axis, self.slabs.steps
        if self.slabs.x is None or not axis.name:
            return [steps] * len(slots)
        return [min(int(length), steps) for length in self.pool.lengths[axis.name][list(slots)]]

    def write_step(self, slots: Slots, done: Sequence[int], size: int, table: Array) -> None:
        """Write the index of a step: these rows, which have made `done` steps, as a batch of `size`."""
        rows, given, count = table[self._first :], len(slots), self.slabs.steps
        at, made = np.array(slots), np.array(done)
        rows[_READ, :given] = 2 * at + made % 2
        rows[_WRITE, :given] = 2 * at + (made + 1) % 2
        rows[_X, :given] = rows[_Y, :given] = at * count + made
        rows[_KEEP, :given] = at
        for row in (_READ, _X):
            rows[row, given:size] = rows[row, given - 1]
        for row, value in ((_WRITE, 2 * self._slots), (_Y, self._slots * count), (_KEEP, self._slots)):
            rows[row, given:size] = value

    def write_ends(self, slots: Slots, made: Sequence[int], table: Array) -> None:
        """Write the index of rows that have ended, after `made` steps each."""
        rows, given = table[self._first :], len(slots)
        at, steps = np.array(slots), np.array(made)
        rows[_END, :given], rows[_END_STATE, :given], rows[_END_STEPS, :given] = at, 2 * at + steps % 2, steps

    # on a stream

    def begin(self, index: torch.Tensor, slots: Slots) -> None:
        """These rows, the first of the index, begin: write their inputs and their first state to their places."""
        inputs = self.gather(index, slots, len(slots), self.lengths_of(slots)[1])
        begun = self.cell.begin(inputs, **self.keywords(slots))
        slabs, places = self.slabs, index[0, : len(slots)]
        if begun.x is not None:
            slabs.fill(places, begun.x)
        for slab, value in zip(slabs.state, begun.state, strict=True):
            slab.index_copy_(0, 2 * places, value)

    def step(
        self, stage: int, passed: Sequence[torch.Tensor], index: torch.Tensor, slots: Slots, size: int, longest: Longest
    ) -> list[torch.Tensor]:
        """One step of the first `size` rows of the index. Returns the cell's flags (bool [size]), if any.

        If the cell has raised on every row that it was tried with, rows run whole: nothing is known of their steps.
        """
        if self.steps is None:
            return self.run(stage, passed, index, slots, size, longest)
        slabs, (read, write, x_at, y_at, keep) = self.slabs, index[self._first : self._first + _END, :size]
        stepped = self.cell.step(slabs.read(x_at), tuple(slab.index_select(0, read) for slab in slabs.state))
        if (stepped.ended is not None) != self.flags:
            raise ConfigError("step: expected `ended` of each step or of none")
        for slab, value in zip(slabs.state, stepped.state, strict=True):
            slab.index_copy_(0, write, value)
        for place, y in enumerate(stepped.ys):
            if place in slabs.last:
                slabs.last[place].index_copy_(0, keep, y)
            else:
                slabs.write(place, y_at, y)
        return [] if stepped.ended is None else [stepped.ended]

    def finish(self, index: torch.Tensor, slots: Slots, made: Sequence[int]) -> list[torch.Tensor]:
        """The outputs of these rows, which have ended after `made` steps each. `write_ends` has written the index."""
        return self.outputs(self._finish(index, len(slots), max(made)), len(slots), self.lengths_of(slots)[1])

    def _finish(self, index: torch.Tensor, rows: int, steps: int) -> list[torch.Tensor]:
        slabs, (places, states, lengths) = self.slabs, index[self._first + _END :, :rows]
        ys = [
            slabs.last[place].index_select(0, places)
            if place in slabs.last
            else slabs.written(place, places, steps, lengths)
            for place in range(len(slabs.ys) + len(slabs.last))
        ]
        state = tuple(slab.index_select(0, states) for slab in slabs.state)
        return self.cell.finished(state, ys, lengths, steps)
