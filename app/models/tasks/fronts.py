"""What opening a model for a task gives: its module, and the front that clients see, of a reader and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from app.contract import Array, ModelInfo, SampleRow, TensorSpec, Translated
from app.models.tasks.answers import Answers, Outputs


class Reader:
    """From what clients send, `sent`, to the model's own `inputs`. Any number of threads may use it at once."""

    sent: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    reads_texts = True

    def read(self, calls: Sequence[Sequence[Array]]) -> list[Translated]:
        """See contract.Front."""
        raise NotImplementedError

    def example(self) -> SampleRow | None:
        """A made-up row that `read` takes, if there is one."""
        return None


class TaskFront:
    """Implements contract.Front: a reader of what clients send, and the answers that they get.

    `example` is made up, unless the owner has given real rows: then it is the first of them.
    """

    def __init__(
        self,
        reader: Reader,
        answers: Answers,
        embedder: TaskFront | None = None,
        chat: TaskFront | None = None,
    ) -> None:
        self.reader = reader
        self.embedder = embedder
        self.chat = chat
        self.example = reader.example()
        self.reads_texts = reader.reads_texts
        self.quick = answers.quick
        self.present: Callable[[Mapping[str, Array]], Any] | None = answers.present
        self._answers = answers

    def face(self, info: ModelInfo) -> ModelInfo:
        answers = self._answers
        return replace(info, inputs=self.reader.sent, outputs=answers.outputs, own_axes=answers.own_axes)

    def read(self, calls: Sequence[Sequence[Array]]) -> list[Translated]:
        return self.reader.read(calls)

    def answer(self, outputs: Sequence[Array], note: Any) -> Outputs:
        return self._answers.answer(outputs, note)


@dataclass(frozen=True, slots=True)
class OpenedTask:
    """A model of a task. `outputs`: the module's own. `read_parameters`: see contract.Model."""

    module: nn.Module
    front: TaskFront
    outputs: tuple[TensorSpec, ...]
    samples: tuple[SampleRow, ...]
    read_parameters: Callable[[Mapping[str, Any]], object] | None = None
