"""Whether rows are independent at every step of a recurrent model, where others join them and leave.

The row check runs rows that begin together. When served, a row's neighbours are at other steps, and change. So a few
rows first run alone, and what each step got and gave is recorded. Then the same steps are made together: rows begin one
after another, and leave as they end. Each joint step gets the recorded inputs, so that rounding errors do not
accumulate and one difference causes no others. Last, a row's neighbours are NaN and infinite at some of its steps.

The cell runs on the caller's thread, on the device where its weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.contract import Model, SampleRow
from app.models.checks.row_check import Answers, Cause, Finding, Tolerance, difference
from app.models.checks.samples import keywords, stack
from app.models.checks.stage_check import comparable, spec_of
from app.models.recurrent.cell_specs import State
from app.models.recurrent.cells import CellModel, Stepped

_ROWS = 3  # that run alone and then together
_STEPS = 32  # of a row: a cell that feeds itself may make many more, which show nothing else
_SPOILT = (torch.nan, torch.inf)


def check_cell(model: Model, rows: Sequence[SampleRow], tolerance: Tolerance) -> Finding | None:
    """The largest difference between a step made alone and in company, which names the step; None within `tolerance`.

    `rows` may share a batch, the longest first. Raises what the cell raises. Nothing is found of a model that answers
    the same rows differently twice, which the row check reports.
    """
    if model.info.batching.max_batch < 2:
        return None
    check = _Check(model, rows, tolerance)
    found = check.together() or check.spoilt()
    if found is None or not check.repeats():
        return None
    return Finding(Cause.MEMORY if check.remembers() else Cause.COMPANY, found)


@dataclass(slots=True)
class _Step:
    """A step of one row: what it was given, [1, ...], and what it gave."""

    x: torch.Tensor | None
    state: State
    made: Stepped

    @property
    def gave(self) -> list[torch.Tensor]:
        """Its ys, the next state, and whether the row ends."""
        return [*self.made.ys, *self.made.state, *([] if self.made.ended is None else [self.made.ended])]


class _Check:
    def __init__(self, model: Model, rows: Sequence[SampleRow], tolerance: Tolerance) -> None:
        assert isinstance(model.call, CellModel)
        self._model, self._cell, self._tolerance = model, model.call, tolerance
        self._most = model.info.batching.max_batch
        self._longest, *others = rows
        #: The steps of each row alone. The last of the rows is shorter, where lengths differ.
        self._alone = [self._run(row) for row in (self._longest, *others[::-1])[:_ROWS]]
        first = self._alone[0][0]
        ys = [spec.name for spec in model.info.outputs]
        if self._cell.finishes:
            ys = [f"y[{place}]" for place in range(len(first.made.ys))]
        names = [*ys, *(f"state[{place}]" for place in range(len(first.state))), "ended"]
        self._specs = [spec_of(name, value) for name, value in zip(names, first.gave, strict=False)]

    def _run(self, row: SampleRow) -> list[_Step]:
        inputs = [torch.as_tensor(value).to(self._cell.device) for value in stack(self._model.info.inputs, [row])]
        given, lengths = self._cell.taken(inputs)
        begun = self._cell.begin(given, lengths, **keywords(self._model, [row], 1))
        state, steps = begun.state, list[_Step]()
        for place in range(min(_STEPS, *self._cell.limits(begun, lengths))):
            steps.append(self._step(None if begun.x is None else begun.x[:, place], state))
            made = steps[-1].made
            state = made.state
            if made.ended is not None and bool(made.ended[0]):
                break
        return steps

    def _step(self, x: torch.Tensor | None, state: State) -> _Step:
        """On copies: a cell that writes into what it is given must not change what is kept here."""
        made = self._cell.step(None if x is None else x.clone(), tuple(value.clone() for value in state))
        return _Step(x, state, made._replace(state=tuple(value.clone() for value in made.state)))

    def together(self) -> str | None:
        """Each step in company of rows at other steps; what differs most, in words."""
        alone: list[Answers] = []
        got: list[Answers] = []
        how: list[str] = []
        for company in self._company():
            steps = [self._alone[row][step] for row, step in company]
            x = None if steps[0].x is None else torch.cat([one.x for one in steps if one.x is not None])
            joined = self._step(x, tuple(map(torch.cat, zip(*(one.state for one in steps), strict=True))))
            for position, (row, step) in enumerate(company):
                alone.append(_row(steps[position]))
                got.append(_row(joined, position))
                how.append(_at(step, [other for neighbour, other in company if neighbour != row]))
        return difference(self._specs, self._tolerance, alone, got, how)

    def _company(self) -> Iterator[list[tuple[int, int]]]:
        """Rows that share a step, by their places, with the step that each is at: all at the first, then each row
        begins a step after the one before, alternately before and after it in the batch.
        """
        yield [(row, 0) for row in range(len(self._alone))][: self._most]
        ends = [row + len(steps) for row, steps in enumerate(self._alone)]
        for now in range(1, max(ends)):
            running = [(row, now - row) for row, end in enumerate(ends) if row <= now < end][: self._most]
            if len(running) > 1:
                yield running[::-1] if now % 2 else running

    def spoilt(self) -> str | None:
        """The first, the middle and the last step of the longest row, whose neighbours are spoilt."""
        steps = self._alone[0]
        for place in sorted({0, len(steps) // 2, len(steps) - 1}):
            step = steps[place]
            x = None if step.x is None else self._beside(step.x)
            try:
                got = self._step(x, tuple(map(self._beside, step.state)))
            except Exception:  # a step may refuse any NaN
                continue
            how = f"at step {place + 1} with NaN and infinity in the place of its neighbours"
            if found := difference(self._specs, self._tolerance, [_row(step)], [_row(got)], how):
                return found
        return None

    def _beside(self, value: torch.Tensor) -> torch.Tensor:
        """A row [1, ...] and copies of it, which are NaN or infinite where there are such values."""
        batch = torch.cat([value] * min(1 + len(_SPOILT), self._most))
        if value.is_floating_point():
            for row, wrong in zip(batch[1:], _SPOILT, strict=False):
                row.fill_(wrong)
        return batch

    def repeats(self) -> bool:
        """Whether the longest row, alone and from its beginning, makes the same steps again."""
        return not self._changed(self._run(self._longest))

    def remembers(self) -> bool:
        """Whether single steps of it, made again after others, give something else."""
        return self._changed([self._step(step.x, step.state) for step in self._alone[0]])

    def _changed(self, again: Sequence[_Step]) -> bool:
        steps = self._alone[0]
        if len(steps) != len(again):
            return True
        return difference(self._specs, self._tolerance, [*map(_row, steps)], [*map(_row, again)], "") is not None


def _row(step: _Step, position: int = 0) -> Answers:
    return [np.atleast_1d(comparable(value)[position]) for value in step.gave]


def _at(step: int, others: Sequence[int]) -> str:
    """How a row's step was made, in words; steps count from 1."""
    steps = sorted({other + 1 for other in others})
    beside = f"step{'s' * (len(steps) > 1)} {' and '.join(map(str, steps))}"
    return f"at step {step + 1} beside {'a row' if len(others) == 1 else 'rows'} at {beside}"
