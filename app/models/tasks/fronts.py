"""Makes the model of a task: its module, and a front of a reader (preprocessing) and answers (postprocessing)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from app.contract import Array, Checks, Front, Model, ModelInfo, SampleRow, TensorSpec, TextCut, Translated
from app.models.tasks.task_answers import Answers


class Reader:
    """Preprocessing: from the inputs that clients send to those of the model. Threads may share a reader."""

    sent: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    reads_texts = True
    read_cut: Callable[[Sequence[Array], TextCut], Translated] | None = None  # see contract.Front

    def read(self, calls: Sequence[Sequence[Array]]) -> list[Translated]:
        """See contract.Front."""
        raise NotImplementedError

    def example(self) -> SampleRow | None:
        """A made-up row that `read` accepts; None if there is none."""
        return None


def front_of(reader: Reader, answers: Answers, **fronts: Front | None) -> Front:
    """A front of these parts; `fronts`: those that belong to it. Its example is made up, unless [warmup] gives real
    rows."""
    return Front(
        sent=reader.sent,
        answered=answers.outputs,
        read=reader.read,
        answer=answers.answer,
        with_parameters=answers.with_parameters,
        own_axes=answers.own_axes,
        reads_texts=reader.reads_texts,
        quick=answers.quick,
        example=reader.example(),
        read_cut=reader.read_cut,
        **fronts,
    )


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
    see `front_of`."""
    return Model(
        info=replace(info, inputs=reader.inputs, outputs=outputs),
        call=module.eval(),
        present=answers.present,
        read_parameters=read_parameters,
        writes=read_parameters is not None,
        checks=Checks(samples),
        front=front_of(reader, answers, **fronts),
    )
