"""Whether rows are independent at every step of a recurrent model, where others join them and leave.

The row check runs rows that begin together. When served, a row's neighbours are at other steps, and change. So a few
rows first run alone, and what each step got and gave is recorded. Then the same steps are made together: rows begin one
after another, among them one of the longest length and one of length 1, and leave as they end. Each joint step gets the
recorded inputs, so that rounding errors do not accumulate and one difference causes no others. Last, a row's neighbours
are replaced by NaN and infinity: before its first step, at some of its steps, and after the last.

The cell runs on the caller's thread, on the device where its weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from app.contract import Model, SampleRow, TensorSpec
from app.models.checks.row_check import Answers, Cause, Finding, Tolerance, difference
from app.models.checks.samples import stack, stretched
from app.models.checks.stage_check import comparable, spec_of
from app.models.recurrent.cell_specs import State
from app.models.recurrent.cells import Begun, CellModel

_ROWS = 3  # that run alone and then together
_STEPS = 32  # of a row: a cell that feeds itself may make many more, which show nothing else
_SPOILT = (torch.nan, torch.inf)
_SPOILT_HOW = "with NaN and infinity in the place of its neighbours"

Tensors = Sequence[torch.Tensor]


def check_cell(model: Model, rows: Sequence[SampleRow], tolerance: Tolerance) -> Finding | None:
    """The largest difference between a step made alone and in company, which names the step; None within `tolerance`.

    `rows` may share a batch, the longest first. Raises what the cell raises. Nothing is found of a model that answers
    the same rows differently twice, which the row check reports.
    """
    if model.info.batching.max_batch < 2:
        return None
    check = _Check(model, rows, tolerance)
    found = check.together() or check.spoilt_steps() or check.spoilt_start() or check.spoilt_finish()
    if found is None or not check.repeats():
        return None
    return Finding(Cause.MEMORY if check.remembers() else Cause.COMPANY, found)


@dataclass(slots=True)
class _Made:
    """A step of one row: what it was given, [1, ...], and what it gave: ys, the next state, whether the row ends."""

    x: torch.Tensor | None
    state: State
    ys: Tensors
    after: State
    ended: torch.Tensor | None

    @property
    def given(self) -> list[torch.Tensor]:
        return [*self.state] if self.x is None else [self.x, *self.state]

    @property
    def out(self) -> list[torch.Tensor]:
        return [*self.ys, *self.after, *([] if self.ended is None else [self.ended])]


@dataclass(slots=True)
class _Alone:
    """A row that ran alone. `whole`: it has made all of its steps."""

    row: SampleRow
    begun: Begun
    steps: list[_Made]
    whole: bool


class _Check:
    def __init__(self, model: Model, rows: Sequence[SampleRow], tolerance: Tolerance) -> None:
        assert isinstance(model.call, CellModel)
        self._model, self._cell, self._tolerance = model, model.call, tolerance
        longest, *others = rows
        self._alone = [self._run(longest), *self._shortest(longest)]
        self._alone += [self._run(row) for row in others[::-1]][: _ROWS - len(self._alone)]  # the last is shorter
        first = self._alone[0].steps[0]
        names = [spec.name for spec in model.info.outputs]
        if self._cell.finishes:
            names = [f"y[{place}]" if len(first.ys) > 1 else "y" for place in range(len(first.ys))]
        names += [f"state[{place}]" for place in range(len(first.after))]
        self._specs = [spec_of(name, value) for name, value in zip([*names, "ended"], first.out, strict=False)]

    def _shortest(self, row: SampleRow) -> list[_Alone]:
        """The row cut to one step. None where lengths do not differ, or the model takes none so short."""
        axis = self._cell.axis.name
        if row.lengths.get(axis, 1) == 1:
            return []
        try:
            return [self._run(stretched(self._model.info.client_inputs, row, {**row.lengths, axis: 1}))]
        except Exception:  # a convolution before the cell, for example, may need more values than one
            return []

    def _inputs(self, rows: Sequence[SampleRow]) -> list[torch.Tensor]:
        return [torch.as_tensor(value).to(self._cell.device) for value in stack(self._model.info.inputs, rows)]

    def _begin(self, inputs: Sequence[torch.Tensor], row: SampleRow) -> tuple[Begun, int]:
        """Copies of a row before their first step, and how many steps it makes at most."""
        given, lengths = self._cell.taken(inputs)
        keywords: dict[str, Any] = {}
        if self._model.takes_parameters:
            keywords["parameters"] = [dict(row.parameters)] * len(inputs[0])
        begun = self._cell.begin(given, lengths, **keywords)
        return begun, self._cell.limits(begun, lengths)[0]

    def _run(self, row: SampleRow) -> _Alone:
        begun, limit = self._begin(self._inputs([row]), row)
        alone = _Alone(row, begun, [], False)
        state = begun.state
        while not alone.whole and len(alone.steps) < _STEPS:
            made = self._step(None if begun.x is None else begun.x[:, len(alone.steps)], state)
            alone.steps.append(made)
            state = made.after
            alone.whole = len(alone.steps) == limit or (made.ended is not None and bool(made.ended[0]))
        return alone

    def _step(self, x: torch.Tensor | None, state: State) -> _Made:
        """On copies: a cell that writes into what it is given must not change what is kept here."""
        stepped = self._cell.step(None if x is None else x.clone(), tuple(value.clone() for value in state))
        return _Made(x, state, stepped.ys, tuple(value.clone() for value in stepped.state), stepped.ended)

    def _joined(self, made: Sequence[_Made]) -> _Made:
        """The step of rows that are alone in `made`, together."""
        x = None if made[0].x is None else torch.cat([one.x for one in made if one.x is not None])
        return self._step(x, tuple(map(torch.cat, zip(*(one.state for one in made), strict=True))))

    def together(self) -> str | None:
        """Each step in company of rows at other steps; what differs most, in words."""
        alone: list[Answers] = []
        got: list[Answers] = []
        how: list[str] = []
        for places in self._company():
            made = [self._alone[row].steps[step] for row, step in places]
            joined = self._joined(made)
            alone += [_row(one.out, 0) for one in made]
            got += [_row(joined.out, position) for position in range(len(places))]
            how += [_at(step, [other for position, (_, other) in enumerate(places) if position != own])
                    for own, (_, step) in enumerate(places)]  # fmt: skip
        return difference(self._specs, self._tolerance, alone, got, how)

    def _company(self) -> Iterator[list[tuple[int, int]]]:
        """Rows that share a step, by their places, with the step that each is at: all at the first, then each row
        begins a step after the one before, alternately before and after it in the batch.
        """
        most = self._model.info.batching.max_batch
        yield [(row, 0) for row in range(len(self._alone))][:most]
        ends = [row + len(alone.steps) for row, alone in enumerate(self._alone)]
        for now in range(1, max(ends)):
            going = [(row, now - row) for row, end in enumerate(ends) if row <= now < end][:most]
            if len(going) > 1:
                yield going[::-1] if now % 2 else going

    def spoilt_steps(self) -> str | None:
        """The first, the middle and the last step of the longest row, whose neighbours are spoilt."""
        steps = self._alone[0].steps
        for place in sorted({0, len(steps) // 2, len(steps) - 1}):
            made = steps[place]
            if not any(value.is_floating_point() for value in made.given):
                continue
            x = None if made.x is None else self._spoilt(made.x)
            try:
                got = self._step(x, tuple(map(self._spoilt, made.state)))
            except Exception:  # a step may refuse any NaN
                continue
            if found := self._one(self._specs, made.out, got.out, f"at step {place + 1} {_SPOILT_HOW}"):
                return found
        return None

    def spoilt_start(self) -> str | None:
        """What `start` makes of the longest row, whose neighbours are spoilt."""
        row, begun = self._alone[0].row, self._alone[0].begun
        inputs = self._inputs([row])
        if not self._cell.starts or not any(value.is_floating_point() for value in inputs):
            return None
        try:
            spoilt, _ = self._begin([self._spoilt(value) for value in inputs], row)
        except Exception:  # it may refuse any NaN
            return None
        clean, got = ([*([] if one.x is None else [one.x]), *one.state] for one in (begun, spoilt))
        names = [*([] if begun.x is None else ["x"]), *(f"state[{at}]" for at in range(len(begun.state)))]
        specs = [spec_of(name, value) for name, value in zip(names, clean, strict=True)]
        return self._one(specs, clean, got, f"before step 1 {_SPOILT_HOW}")

    def spoilt_finish(self) -> str | None:
        """What `finish` makes of the longest row, if it has made all of its steps."""
        alone, cell = self._alone[0], self._cell
        if not (cell.finishes and alone.whole):
            return None
        state = alone.steps[-1].after
        ys = [torch.stack([made.ys[place] for made in alone.steps], 1) for place in range(len(alone.steps[0].ys))]
        ends = torch.tensor([len(alone.steps)], device=cell.device)
        answers = cell.finish(state, ys, ends)
        try:
            spoilt = cell.finish(tuple(map(self._spoilt, state)), list(map(self._spoilt, ys)), self._spoilt(ends))
        except Exception:  # it may refuse any NaN
            return None
        return self._one(self._model.info.outputs, answers, spoilt, f"after its last step {_SPOILT_HOW}")

    def _spoilt(self, value: torch.Tensor) -> torch.Tensor:
        """A row [1, ...] and copies of it, which are NaN or infinite where there are such values."""
        batch = torch.cat([value] * min(1 + len(_SPOILT), self._model.info.batching.max_batch))
        if value.is_floating_point():
            for row, wrong in zip(batch[1:], _SPOILT, strict=False):
                row.fill_(wrong)
        return batch

    def _one(self, specs: Sequence[TensorSpec], clean: Tensors, got: Tensors, how: str) -> str | None:
        return difference(specs, self._tolerance, [_row(clean, 0)], [_row(got, 0)], how)

    def repeats(self) -> bool:
        """Whether the longest row, alone and from its beginning, makes the same steps again."""
        return not self._changed(self._run(self._alone[0].row).steps)

    def remembers(self) -> bool:
        """Whether single steps of it, made again after others, give something else."""
        return self._changed([self._step(made.x, made.state) for made in self._alone[0].steps])

    def _changed(self, again: Sequence[_Made]) -> bool:
        steps = self._alone[0].steps
        if len(steps) != len(again):
            return True
        first, second = ([_row(made.out, 0) for made in run] for run in (steps, again))
        return difference(self._specs, self._tolerance, first, second, "") is not None


def _row(values: Tensors, position: int) -> Answers:
    return [np.atleast_1d(comparable(value)[position]) for value in values]


def _at(step: int, others: Sequence[int]) -> str:
    """How a row's step was made, in words; steps count from 1."""
    steps = sorted({other + 1 for other in others})
    beside = f"step{'s' * (len(steps) > 1)} {' and '.join(map(str, steps))}"
    return f"at step {step + 1} beside {'a row' if len(others) == 1 else 'rows'} at {beside}"
