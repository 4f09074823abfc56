"""The steps of a recurrent model as segments to check, where rows join others and leave.

A few rows run alone, and the tensors of each step are kept. The same steps then run in shared batches: rows begin one
after another, and leave as they end. What comes before the first step and after the last is run beside NaN.

The cell runs on the caller's thread, on the device where its weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import torch

from app.contract import Model, SampleRow
from app.models.checks.row_check import Batch, Cause
from app.models.checks.samples import keywords, stack
from app.models.checks.segment_check import LoneRow, Segment, Tensors, beside, spec_of
from app.models.recurrent.cells import CellModel, CellStart

_ROWS = 3  # run alone, then in shared batches
_STEPS = 32  # of a row, at most: a cell that feeds itself may make many more, which show nothing new


def cell_segments(model: Model, rows: Sequence[SampleRow]) -> Iterator[Segment]:
    """A step, then the start and the finish. `rows` may share a batch, the longest first. Raises what the cell raises.

    Not for a model that answers the same rows differently twice.
    """
    cell = _Cell(model)
    first = rows[0]
    steps = [cell.alone(row) for row in (first, *rows[:0:-1], first)[:_ROWS]]  # the last is shorter
    lone, last = list(chain.from_iterable(steps)), len(steps[0]) - 1
    names = [spec.name for spec in model.info.outputs]
    if cell.finishes:
        names = [f"y[{place}]" if cell.ys > 1 else "y" for place in range(cell.ys)]
    states = [f"state[{place}]" for place in range(cell.states)]
    specs = list(map(spec_of, [*names, *states, "ended"], lone[0].made))
    batches = list(_batches(steps, lone, model.info.batching.max_batch))
    ends = sorted({0, last // 2, last})
    yield Segment(specs, lone, cell.step, batches, ends, lambda one: cell.step([one]), Cause.MEMORY)
    begun = LoneRow(first, (), cell.start([LoneRow(first, (), ())]), "before step 1")
    names = ["x", *states] if len(begun.made) > cell.states else states
    yield Segment(list(map(spec_of, names, begun.made)), [begun], cell.start, beside_nan=[0])
    if cell.finishes and last + 1 < _STEPS:
        ended = cell.after(steps[0])
        specs = [spec_of(spec.name, made) for spec, made in zip(model.info.outputs, ended.made, strict=True)]
        yield Segment(specs, [ended], cell.finish, beside_nan=[0])


def _batches(steps: Sequence[Sequence[LoneRow]], lone: Sequence[LoneRow], most: int) -> Iterator[Batch]:
    """Batches of steps: first the first step of all rows; then each row begins one step after the row before it,
    and is alternately before and behind it in the batch. `lone` has the steps of all rows.
    """
    begins = list(accumulate(map(len, steps), initial=0))
    yield beside(lone, begins[:-1][:most])
    for now in range(1, len(steps) + max(map(len, steps))):
        places = [begins[row] + now - row for row, own in enumerate(steps) if 0 <= now - row < len(own)][:most]
        if len(places) > 1:
            yield beside(lone, places[::-1] if now % 2 else places)


class _Cell:
    """Runs a cell on copies: it may write into its arguments, and return the same memory again."""

    def __init__(self, model: Model) -> None:
        assert isinstance(model.call, CellModel)
        self._model, self._cell = model, model.call
        self.finishes = model.call.finishes
        self.ys = self.states = self._made = 0  # tensors of both that a step returns; the steps of the last row

    def alone(self, row: SampleRow) -> list[LoneRow]:
        """The steps of a row."""
        begun = self._begin([row])
        limit = min(_STEPS, self._cell.limits(begun)[0])
        self.states, state = len(begun.state), begun.state
        steps: list[LoneRow] = []
        ended = False
        while not ended and len(steps) < limit:
            one = LoneRow(row, [*([] if begun.x is None else [begun.x[:, len(steps)]]), *state], ())
            made = self.step([one])
            steps.append(LoneRow(row, one.given, made, f"at step {len(steps) + 1}"))
            state = tuple(made[self.ys :][: self.states])
            ended = len(made) > self.ys + self.states and bool(made[-1][0])
        return steps

    def start(self, lone: Sequence[LoneRow]) -> Tensors:
        """What comes before the first step."""
        begun = self._begin([one.row for one in lone])
        return [*([] if begun.x is None else [begun.x]), *begun.state]

    def step(self, lone: Sequence[LoneRow]) -> Tensors:
        """One step of some rows: their ys, states, and which have ended if the cell says so."""
        given = _joined(lone)
        reads = len(given) - self.states
        stepped = self._cell.step(given[0] if reads else None, tuple(given[reads:]))
        self.ys = len(stepped.ys)
        ended = [] if stepped.ended is None else [stepped.ended]
        return [value.clone() for value in (*stepped.ys, *stepped.state, *ended)]

    def after(self, steps: Sequence[LoneRow]) -> LoneRow:
        """What comes after the last of all steps of a row."""
        self._made = len(steps)
        ys = [torch.stack([step.made[place] for step in steps], 1) for place in range(self.ys)]
        one = LoneRow(steps[0].row, [*steps[-1].made[self.ys :][: self.states], *ys], ())
        return LoneRow(one.row, one.given, self.finish([one]), "after its last step")

    def finish(self, lone: Sequence[LoneRow]) -> Tensors:
        given = _joined(lone)
        ends = torch.tensor([self._made] * len(lone), device=self._cell.device)
        return self._cell.finish(tuple(given[: self.states]), given[self.states :], ends)

    def _begin(self, rows: Sequence[SampleRow]) -> CellStart:
        inputs = [torch.as_tensor(value).to(self._cell.device) for value in stack(self._model.info.inputs, rows)]
        return self._cell.begin(inputs, **keywords(self._model, rows, len(rows)))


def _joined(lone: Sequence[LoneRow]) -> list[torch.Tensor]:
    """What these rows were given as a batch, in memory of its own."""
    return list(map(torch.cat, zip(*(one.given for one in lone), strict=True)))
