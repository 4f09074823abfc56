"""Whether rows are independent at every boundary of a model in stages, where batches change.

Beyond what the row check does with a whole model: what each stage passes on is compared for a row alone, in company, in
another order and padded. Rows that were alone join at each stage, padded there as the server does it, with 0. And a
row's neighbours are replaced by NaN before each stage.

The stages run on the caller's thread, each on copies of its arguments, on the device where the weights are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from app.contract import Array, Model, SampleRow, TensorSpec
from app.models.base import TORCH_DTYPES, as_array, normalise
from app.models.checks.row_check import Cause, Finding, Tolerance, check_rows, cut, difference
from app.models.checks.samples import keywords, longest, stack
from app.models.stages.staged import SecondAxes, passed_on, resized

_DATATYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_ROWS = 4  # that join

Tensors = Sequence[torch.Tensor]


def check_stages(model: Model, rows: Sequence[SampleRow], tolerance: Tolerance) -> Finding | None:
    """The first stage found whose results depend on a row's batch, if there is one; its name is in the difference.

    `rows` may share a batch. Raises what a stage raises, and ConfigError where one passes on what it must not.
    """
    if model.info.batching.max_batch < 2:
        return None
    check = _Check(model, rows)
    specs = [spec for stage in check.specs[:-1] for spec in stage]
    info = replace(model.info, outputs=tuple(specs))

    def run(chosen: Sequence[SampleRow], size: int) -> list[Array]:
        return [comparable(value) for stage in check.run(chosen, size)[:-1] for value in stage]

    return check_rows(info, rows, run, tolerance) or check.joined(tolerance)


class _Check:
    """A model in stages and rows to check it with. Results are lists by stage; the last stage's are the outputs."""

    def __init__(self, model: Model, rows: Sequence[SampleRow]) -> None:
        self._model = model
        self._rows = rows
        weights = model.call.parameters() if isinstance(model.call, nn.Module) else iter(())
        self._device = next((weight.device for weight in weights), torch.device("cpu"))
        self._axes = SecondAxes()
        self._stages = len(model.stages)
        #: Of each row alone, by stage.
        self._alone = [self.run([row], 1) for row in rows]
        self.specs = [
            *([self._spec(stage, number, value) for number, value in enumerate(values)]
              for stage, values in enumerate(self._alone[0][:-1])),
            list(model.info.outputs),
        ]  # fmt: skip

    def run(self, rows: Sequence[SampleRow], size: int) -> list[list[torch.Tensor]]:
        """What each stage returns for the rows as a batch of `size`."""
        inputs = self._inputs(rows, size)
        passed: Tensors = inputs
        results: list[list[torch.Tensor]] = []
        for stage in range(self._stages):
            results.append(self.stage(stage, self._arguments(stage, passed, inputs), rows, size))
            passed = results[-1]
            self._axes.learn(stage, passed, longest(rows))
        return results

    def stage(self, stage: int, arguments: Tensors, rows: Sequence[SampleRow], size: int) -> list[torch.Tensor]:
        """What one stage returns for these arguments, in memory of its own."""
        named = keywords(self._model, rows, size) if stage == 0 else {}
        result = self._model.stages[stage](*(value.clone() for value in arguments), **named)
        if stage + 1 < self._stages:
            return [value.clone() for value in passed_on(result, stage, size)]
        outputs = self._model.info.outputs
        return [torch.as_tensor(value).clone() for value in normalise(result, outputs, self._model.info.name)]

    def _inputs(self, rows: Sequence[SampleRow], size: int) -> list[torch.Tensor]:
        """The rows as a batch, and its context."""
        inputs = [torch.as_tensor(value).to(self._device) for value in stack(self._model.info.inputs, rows, size)]
        context = self._model.context
        return inputs if context is None else [*inputs, *context(*(value.clone() for value in inputs))]

    def _arguments(self, stage: int, passed: Tensors, inputs: Tensors) -> list[torch.Tensor]:
        """What a stage takes: the model's inputs or what the last stage passed on, and what it gets again."""
        first = inputs[: len(self._model.info.inputs)] if stage == 0 else passed
        return [*first, *(inputs[place] for place in self._model.again[stage])]

    def joined(self, tolerance: Tolerance) -> Finding | None:
        """Rows that came alone share a batch from each stage on, the longest first, among them the shortest. And before
        each stage the neighbours of the first are NaN.
        """
        places = [0, *range(1, len(self._rows))[1 - _ROWS :]] if len(self._rows) > 1 else [0, 0]
        places = places[: self._model.info.batching.max_batch]
        rows = [self._rows[place] for place in places]
        shorter = any(row.lengths != longest(rows) for row in rows)
        inputs = self._inputs(rows, len(rows))
        for joins in range(self._stages):
            passed: Tensors = self._together(joins - 1, places, longest(rows)) if joins else inputs
            if found := self._poisoned(joins, self._arguments(joins, passed, inputs), rows, tolerance):
                return Finding(Cause.COMPANY, found)
            padded = ", where what it brings is padded with 0," if shorter else ""
            how = f"in company that it joins at stage {joins}{padded}"
            for stage in range(joins, self._stages if joins else 0):
                passed = self.stage(stage, self._arguments(stage, passed, inputs), rows, len(rows))
                alone = [self._answers(stage, self._alone[place][stage], [self._rows[place]])[0] for place in places]
                found = difference(self._named(stage), tolerance, alone, self._answers(stage, passed, rows), how)
                if found is not None:
                    return Finding(Cause.PADDING if shorter else Cause.COMPANY, found)
        return None

    def _poisoned(self, stage: int, arguments: Tensors, rows: Sequence[SampleRow], tolerance: Tolerance) -> str | None:
        """What differs of the first row where the other rows are NaN."""
        if not any(value.is_floating_point() for value in arguments):
            return None
        try:
            got = self.stage(stage, [_with_nan(value) for value in arguments], rows, len(rows))
        except Exception:  # a stage may refuse any NaN
            return None
        alone = self._answers(stage, self._alone[0][stage], rows[:1])
        how = "with NaN in the place of its neighbours"
        return difference(self._named(stage), tolerance, alone, self._answers(stage, got, rows)[:1], how)

    def _together(self, stage: int, places: Sequence[int], lengths: Mapping[str, int]) -> list[torch.Tensor]:
        """What a stage passed on of rows that were alone, as one batch."""
        passed = []
        for number in range(len(self._alone[0][stage])):
            axis = self._axes.of(stage, number)
            pieces = [self._alone[place][stage][number] for place in places]
            passed.append(torch.cat([resized(piece, lengths[axis]) for piece in pieces] if axis else pieces))
        return passed

    def _answers(self, stage: int, values: Tensors, rows: Sequence[SampleRow]) -> list[list[Array]]:
        """What a stage returned, taken apart: a list of arrays per row, as long as the row itself."""
        arrays = [comparable(value) for value in values]
        return [
            [cut(spec, value[position], row) for spec, value in zip(self.specs[stage], arrays, strict=True)]
            for position, row in enumerate(rows)
        ]

    def _named(self, stage: int) -> list[TensorSpec]:
        """What a stage returns, with the stage in each name."""
        if stage + 1 < self._stages:
            return self.specs[stage]
        return [replace(spec, name=f"stage {stage}, {spec.name}") for spec in self.specs[stage]]

    def _spec(self, stage: int, number: int, value: torch.Tensor) -> TensorSpec:
        name = f"stage {stage}" if len(self._alone[0][stage]) == 1 else f"stage {stage}, value {number}"
        return spec_of(name, value, self._axes.of(stage, number))


def spec_of(name: str, value: torch.Tensor, axis: str = "") -> TensorSpec:
    """What the row check must know of a tensor, rows first; `axis` is the second one's name."""
    axes = tuple(axis if dim == 0 else "" for dim in range(value.ndim - 1))
    shape = tuple(value.shape[1:])
    return TensorSpec(name, _DATATYPES.get(value.dtype, "FP64"), shape, axes, shape)


def comparable(value: torch.Tensor) -> Array:
    """A tensor as the row check takes it: of a type that V2 does not have, the real part."""
    if value.dtype not in _DATATYPES:
        value = (value.real if value.is_complex() else value).to(torch.float64)
    return as_array(value)


def _with_nan(value: torch.Tensor) -> torch.Tensor:
    """All rows but the first are NaN, where there is such a value."""
    if value.is_floating_point() and len(value) > 1:
        value = value.clone()
        value[1:] = np.nan
    return value
