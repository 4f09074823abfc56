"""Makes the model of a task: its module, behind a reader (preprocessing) and answers (postprocessing)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from app.contract import Answers, Checks, Front, Model, ModelInfo, Reader, SampleRow, TensorSpec


def task_model(
    info: ModelInfo,
    module: nn.Module,
    reader: Reader,
    answers: Answers,
    outputs: tuple[TensorSpec, ...],
    samples: tuple[SampleRow, ...] = (),
    *,
    read_parameters: Callable[[Mapping[str, Any]], object] | None = None,
    **fronts: Front | None,
) -> Model:
    """`outputs`: the module's own. `samples`: rows to try it with. `read_parameters`: of a model that writes. `fronts`:
    the further ones of its Front. Its example is made up, unless [warmup] gives real rows."""
    return Model(
        info=replace(info, inputs=reader.inputs, outputs=outputs),
        call=module.eval(),
        present=answers.present,
        read_parameters=read_parameters,
        writes=read_parameters is not None,
        checks=Checks(samples),
        front=Front(reader, answers, reader.example(), **fronts),
    )
