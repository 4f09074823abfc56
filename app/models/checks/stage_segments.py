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
from app.models.checks.row_check import batches_together
from app.models.checks.samples import keywords, longest, stack
from app.models.checks.segment_check import LoneRow, Segment, Tensors, spec_of
from app.models.stages.staged import SecondAxes, passed_on, resized


def stage_segments(model: Model, rows: Sequence[SampleRow]) -> Iterator[Segment]:
    """A segment for each stage. `rows` may share a batch, the longest first.

    Raises what a stage raises, and ConfigError where one passes on what it must not.
    """
    stages = _Stages(model, rows)
    batches = list(batches_together(rows, model.info.batching.max_batch))
    for stage in range(len(model.stages)):
        where = f"at stage {stage}"
        yield Segment(
            stages.specs(stage),
            [stages.alone(stage, place, where) for place in range(len(rows))],
            partial(stages.run, stage),
            [replace(batch, how=[f"{how} {where}" for how in batch.how]) for batch in batches],
            beside_nan=[0],
        )


class _Stages:
    """A segment takes what the stage before passed on. Stages take the inputs and their context again from the rows."""

    def __init__(self, model: Model, rows: Sequence[SampleRow]) -> None:
        self._model = model
        self._rows = rows
        self._device = device_of(model.call)
        self._results = [self._from(0, (), [row]) for row in rows]
        self._axes = SecondAxes()
        for row, results in zip(rows, self._results, strict=True):
            for stage, passed in enumerate(results):
                self._axes.learn(stage, passed, row.lengths)

    def alone(self, stage: int, place: int, where: str) -> LoneRow:
        results = self._results[place]
        passed = results[stage - 1] if stage else []
        return LoneRow(self._rows[place], passed, list(chain.from_iterable(results[stage:])), where)

    def run(self, stage: int, lone: Sequence[LoneRow]) -> Tensors:
        """The results of a stage and of all later ones."""
        rows = [one.row for one in lone]
        passed = []
        for number, pieces in enumerate(zip(*(one.given for one in lone), strict=True)):
            axis = self._axes.of(stage - 1, number)
            passed.append(torch.cat([resized(piece, longest(rows)[axis]) for piece in pieces] if axis else pieces))
        return list(chain.from_iterable(self._from(stage, passed, rows)))

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

    def _from(self, first: int, passed: Tensors, rows: Sequence[SampleRow]) -> list[list[torch.Tensor]]:
        """The results of each stage from `first` on, copied."""
        model, parts = self._model, self._model.stages
        inputs = [torch.as_tensor(value).to(self._device) for value in stack(model.info.inputs, rows)]
        given = [*inputs, *parts.given([value.clone() for value in inputs])[len(inputs) :]]
        passed = passed if first else inputs
        results = []
        for stage in range(first, len(parts)):
            arguments = parts.arguments(stage, passed, given)
            named = keywords(model, rows, len(rows)) if stage == 0 else {}
            result = parts.calls[stage](*(value.clone() for value in arguments), **named)
            if stage + 1 < len(parts):
                values: Iterable[torch.Tensor] = passed_on(result, stage, len(rows))
            else:
                values = map(torch.as_tensor, normalise(result, model.info.outputs))
            passed = [value.clone() for value in values]
            results.append([*passed])
        return results
