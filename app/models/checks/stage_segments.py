"""The stages of a model as segments to check. Rows that ran alone so far share a batch from a stage on, padded with 0
as the server does; the results of that stage and all later ones are compared.

The stages run on the caller's thread, each on copies of its arguments, on the device where the weights are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch

from app.contract import Model, SampleRow, TensorSpec
from app.models.base import device_of, normalise
from app.models.checks.row_check import Cause
from app.models.checks.samples import keywords, longest, stack
from app.models.checks.segment_check import LoneRow, Segment, Shared, Tensors, spec_of
from app.models.stages.staged import SecondAxes, passed_on, resized

_ROWS = 4  # that share a batch


def stage_segments(model: Model, rows: Sequence[SampleRow]) -> Iterator[Segment]:
    """A segment for each stage. `rows` may share a batch, the longest first.

    Raises what a stage raises, and ConfigError where one passes on what it must not.
    """
    runner = _Stages(model, rows)
    for stage in range(len(model.stages)):
        run, lone = partial(runner.run, stage), [(runner.alone(stage, 0), f"at stage {stage}")]
        yield Segment(runner.specs(stage), runner.shared(stage), run=run, lone=lone)


class _Stages:
    """A segment's tensors are those that the stage before passed on, if there is one, then the inputs and their
    context, which stages may take again.
    """

    def __init__(self, model: Model, rows: Sequence[SampleRow]) -> None:
        self._model = model
        self._rows = rows
        self._device = device_of(model.call)
        self._inputs = [self._context([row]) for row in rows]
        self._results = [self._from(0, given, [row]) for given, row in zip(self._inputs, rows, strict=True)]
        self._axes = SecondAxes()
        for row, results in zip(rows, self._results, strict=True):
            for stage, passed in enumerate(results):
                self._axes.learn(stage, passed, row.lengths)

    def run(self, stage: int, given: Tensors, rows: Sequence[SampleRow]) -> list[torch.Tensor]:
        """The results of a stage and of all later ones."""
        return list(chain.from_iterable(self._from(stage, given, rows)))

    def alone(self, stage: int, place: int) -> LoneRow:
        given = [*self._passed(stage, place), *self._inputs[place]]
        return LoneRow(self._rows[place], given, list(chain.from_iterable(self._results[place][stage:])))

    def shared(self, stage: int) -> Iterator[Shared]:
        """Rows of one length that share a batch from this stage on, and then some beside shorter ones."""
        most, places = min(_ROWS, self._model.info.batching.max_batch), range(len(self._rows))
        same = [place for place in places if self._rows[place].lengths == self._rows[0].lengths]
        yield self._together(stage, same[:most] if len(same) > 1 else [0, 0], "", Cause.COMPANY)
        if len(same) < len(places):  # the last rows are the shortest
            padded = ", where what it brings is padded with 0,"
            yield self._together(stage, [0, *places[1:][1 - most :]], padded, Cause.PADDING)

    def specs(self, stage: int) -> list[TensorSpec]:
        """Of the results from this stage on, with the stage in each name."""
        *inner, last = range(len(self._model.stages))
        found = []
        for number in inner[stage:]:
            values = self._results[0][number]
            for place, value in enumerate(values):
                name = f"stage {number}" if len(values) == 1 else f"stage {number}, value {place}"
                found.append(spec_of(name, value, self._axes.of(number, place)))
        return [*found, *(replace(spec, name=f"stage {last}, {spec.name}") for spec in self._model.info.outputs)]

    def _together(self, stage: int, places: Sequence[int], padded: str, cause: Cause) -> Shared:
        rows = [self._rows[place] for place in places]
        passed = []
        for number, pieces in enumerate(zip(*(self._passed(stage, place) for place in places), strict=True)):
            axis = self._axes.of(stage - 1, number)
            passed.append(torch.cat([resized(piece, longest(rows)[axis]) for piece in pieces] if axis else pieces))
        run = partial(self.run, stage, [*passed, *self._context(rows)], rows)
        how = f"in company that it joins at stage {stage}{padded}"
        return Shared([self.alone(stage, place) for place in places], run, [how] * len(places), cause)

    def _passed(self, stage: int, place: int) -> Tensors:
        """The tensors that the stage before passed on for a row."""
        return self._results[place][stage - 1] if stage else []

    def _context(self, rows: Sequence[SampleRow]) -> list[torch.Tensor]:
        """The rows as a batch, and its context."""
        inputs = [torch.as_tensor(value).to(self._device) for value in stack(self._model.info.inputs, rows)]
        return [*inputs, *self._model.stages.given([value.clone() for value in inputs])[len(inputs) :]]

    def _from(self, first: int, given: Tensors, rows: Sequence[SampleRow]) -> list[list[torch.Tensor]]:
        """The results of each stage from `first` on, copied."""
        model, info = self._model, self._model.info
        inputs = given[-len(self._inputs[0]) :]
        passed = inputs[: len(info.inputs)] if first == 0 else given[: -len(inputs)]
        results = []
        for stage in range(first, len(model.stages)):
            arguments = model.stages.arguments(stage, passed, inputs)
            named = keywords(model, rows, len(rows)) if stage == 0 else {}
            result = model.stages.calls[stage](*(value.clone() for value in arguments), **named)
            if stage + 1 < len(model.stages):
                values: Iterable[torch.Tensor] = passed_on(result, stage, len(rows))
            else:
                values = map(torch.as_tensor, normalise(result, info.outputs))
            passed = [value.clone() for value in values]
            results.append([*passed])
        return results
