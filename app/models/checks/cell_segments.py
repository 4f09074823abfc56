"""The steps of a recurrent model as segments to check, where rows join others and leave.

A few rows run alone, and the tensors of each step are kept. The same steps then run in shared batches: rows begin one
after another, among them one of the longest length and one of length 1, and leave as they end. What comes before the
first step and after the last is run beside NaN.

The cell runs on the caller's thread, on the device where its weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.contract import Model, SampleRow, TensorSpec
from app.models.checks.row_check import Cause
from app.models.checks.samples import keywords, stack, stretched
from app.models.checks.segment_check import LoneRow, Segment, Shared, Tensors, alone_again, spec_of
from app.models.recurrent.cells import CellModel, CellStart, CellStep

_ROWS = 3  # run alone, then in shared batches
_STEPS = 32  # of a row, at most: a cell that feeds itself may make many more, which show nothing new


def cell_segments(model: Model, rows: Sequence[SampleRow]) -> Iterator[Segment]:
    """A step, then the start and the finish. `rows` may share a batch, the longest first. Raises what the cell raises.

    Not for a model that answers the same rows differently twice.
    """
    cell = _Cell(model)
    steps = [cell.alone(rows[0]), *cell.of_one_step(rows[0])]
    steps += [cell.alone(row) for row in rows[:0:-1]][: _ROWS - len(steps)]  # the last is shorter
    longest = steps[0]
    lone = [(longest[at], f"at step {at + 1}") for at in sorted({0, len(longest) // 2, len(longest) - 1})]
    shared = cell.shared(steps, model.info.batching.max_batch)
    yield Segment(cell.specs, shared, alone_again(cell.step, longest), Cause.MEMORY, cell.step, lone)
    yield cell.start(rows[0])
    yield from cell.finish(rows[0], longest)


class _Cell:
    """Runs rows alone. `specs` describe the tensors that a step returns, from the first step on."""

    def __init__(self, model: Model) -> None:
        assert isinstance(model.call, CellModel)
        self._model, self._cell = model, model.call
        self._ys = self._states = 0  # how many tensors of both a step returns
        self.specs: list[TensorSpec] = []

    def of_one_step(self, row: SampleRow) -> list[list[LoneRow]]:
        """The steps of the row cut to one. Empty where lengths do not differ, or the model takes none so short."""
        axis = self._cell.axis.name
        if row.lengths.get(axis, 1) == 1:
            return []
        try:
            return [self.alone(stretched(self._model.info.client_inputs, row, {**row.lengths, axis: 1}))]
        except Exception:  # a convolution before the cell, for example, may need more values than one
            return []

    def alone(self, row: SampleRow) -> list[LoneRow]:
        """The steps of a row."""
        begun, limit = self._begin(self._inputs(row), [row])
        state, self._states = begun.state, len(begun.state)
        steps: list[LoneRow] = []
        ended = False
        while not ended and len(steps) < min(_STEPS, limit):
            read = [] if begun.x is None else [begun.x[:, len(steps)]]
            stepped = self._stepped([*read, *state])
            self._ys, self.specs = len(stepped.ys), self.specs or self._specs(stepped)
            steps.append(LoneRow(row, [*read, *state], _made(stepped)))
            state, ended = stepped.state, stepped.ended is not None and bool(stepped.ended[0])
        return steps

    def step(self, given: Tensors, rows: Sequence[SampleRow]) -> list[torch.Tensor]:
        """One step of some rows. `given`: their x, unless the cell feeds itself, and their states."""
        return _made(self._stepped(given))

    def shared(self, steps: Sequence[Sequence[LoneRow]], most: int) -> Iterator[Shared]:
        """Batches of steps: first the first step of all rows; then each row begins one step after the row before it,
        and is alternately before and behind it in the batch.
        """
        ends = [row + len(own) for row, own in enumerate(steps)]
        batches = [[(row, 0) for row in range(len(steps))]]
        for now in range(1, max(ends)):
            going = [(row, now - row) for row, end in enumerate(ends) if row <= now < end][:most]
            batches += [going[::-1] if now % 2 else going] if len(going) > 1 else []
        for places in batches:
            lone = [steps[row][step] for row, step in places[:most]]
            at = [step for _, step in places[:most]]
            how = [_at(step, [*at[:own], *at[own + 1 :]]) for own, step in enumerate(at)]
            given = list(map(torch.cat, zip(*(one.given for one in lone), strict=True)))
            yield Shared(lone, partial(self.step, given, [one.row for one in lone]), how)

    def start(self, row: SampleRow) -> Segment:
        """What comes before the first step of a row."""

        def run(given: Tensors, rows: Sequence[SampleRow]) -> list[torch.Tensor]:
            begun, _ = self._begin(given, rows)
            return [*([] if begun.x is None else [begun.x]), *begun.state]

        inputs = self._inputs(row)
        made = run(inputs, [row])
        names = [f"state[{place}]" for place in range(self._states)]
        specs = list(map(spec_of, ["x", *names] if len(made) > self._states else names, made))
        return Segment(specs, run=run, lone=[(LoneRow(row, inputs, made), "before step 1")])

    def finish(self, row: SampleRow, steps: Sequence[LoneRow]) -> Iterator[Segment]:
        """What comes after the last step. Nothing without `finish`, or if `steps` are not all of them."""
        cell, states = self._cell, self._states
        if not cell.finishes or len(steps) == _STEPS < self._begin(self._inputs(row), [row])[1]:
            return

        def run(given: Tensors, rows: Sequence[SampleRow]) -> list[torch.Tensor]:
            ends = torch.tensor([len(steps)] * len(rows), device=cell.device)
            return cell.finish(tuple(given[:states]), given[states:], ends)

        ys = [torch.stack([step.made[place] for step in steps], 1) for place in range(self._ys)]
        given = [*steps[-1].made[self._ys :][:states], *ys]
        made = run(given, [row])
        specs = [spec_of(spec.name, value) for spec, value in zip(self._model.info.outputs, made, strict=True)]
        yield Segment(specs, run=run, lone=[(LoneRow(row, given, made), "after its last step")])

    def _inputs(self, row: SampleRow) -> list[torch.Tensor]:
        return [torch.as_tensor(value).to(self._cell.device) for value in stack(self._model.info.inputs, [row])]

    def _begin(self, inputs: Tensors, rows: Sequence[SampleRow]) -> tuple[CellStart, int]:
        """Rows before their first step, and how many the first of them makes at most."""
        begun = self._cell.begin(inputs, **keywords(self._model, rows, len(rows)))
        return begun, self._cell.limits(begun)[0]

    def _stepped(self, given: Tensors) -> CellStep:
        """A step on copies, returning copies: a cell may write into its arguments, and return the same memory again."""
        copies = [value.clone() for value in given]
        reads = len(given) - self._states
        stepped = self._cell.step(copies[0] if reads else None, tuple(copies[reads:]))
        return stepped._replace(ys=tuple(map(torch.clone, stepped.ys)), state=tuple(map(torch.clone, stepped.state)))

    def _specs(self, stepped: CellStep) -> list[TensorSpec]:
        names = [spec.name for spec in self._model.info.outputs]
        if self._cell.finishes:
            names = [f"y[{place}]" if len(stepped.ys) > 1 else "y" for place in range(len(stepped.ys))]
        names += [*(f"state[{place}]" for place in range(self._states)), "ended"]
        return [spec_of(name, value) for name, value in zip(names, _made(stepped), strict=False)]


def _made(stepped: CellStep) -> list[torch.Tensor]:
    return [*stepped.ys, *stepped.state, *([] if stepped.ended is None else [stepped.ended])]


def _at(step: int, others: Sequence[int]) -> str:
    """How a row's step was made, in words; steps count from 1."""
    steps = sorted({other + 1 for other in others})
    beside = f"step{'s' * (len(steps) > 1)} {' and '.join(map(str, steps))}"
    return f"at step {step + 1} beside {'a row' if len(others) == 1 else 'rows'} at {beside}"
