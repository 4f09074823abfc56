"""A loaded model, its front, and its source: what the models package passes to the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.contract.specs import Array, ModelInfo, SampleRow, TensorSpec


@dataclass(frozen=True, slots=True)
class Translated:
    """The result of `Reader.read` for a call: one array [rows, ...] per input of the model itself.

    One row of the client may become several rows of the model. These are then the call's rows until the front answers.
    If rows differ in length, an array is as long as the longest. `lengths` gives each variable axis that length, and
    `own_lengths` the length of every row along it. `Answers` get `note` back when they answer the call.
    """

    arrays: list[Array]
    lengths: dict[str, int] = field(default_factory=dict)
    own_lengths: Mapping[str, Sequence[int]] | None = None
    note: Any = None


@dataclass(frozen=True, slots=True)
class TextCut:
    """A request's wish to have long texts cut: to `most` tokens, or to as many as the model takes.

    `left`: at the beginning; None: as the model's tokenizer does. `last`: only the last text of a pair, and `most` does
    not count its special tokens. `name`: of the request's field.
    """

    most: int | None = None
    left: bool | None = None
    last: bool = False
    name: str = "truncate"


class Reader(ABC):
    """Preprocessing: from what clients send (texts, images) to the tensors of a model. Several threads may use it.

    `sent`: the inputs of clients, `inputs`: those of the model itself.
    """

    sent: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    #: Whether it reads texts: reading several calls at once is faster, and 100 bytes take some 50 us.
    reads_texts = True
    #: Whether `read` can cut texts.
    cuts = False

    @abstractmethod
    def read(self, calls: Sequence[Sequence[Array]], cut: TextCut | None = None) -> list[Translated]:
        """The model's inputs, from the client's: per call, BYTES arrays [rows, ...]. Long texts are cut as `cut` says.

        It is slow: the event loop only reads short texts. Raises a leaf of StarlingError, such as BadRequest, if any of
        the calls is wrong. The row numbers in its message are only right if it is given one call.
        """

    def rows(self, sent: Sequence[Array]) -> int:
        """How many rows of the model the inputs of a call become at least."""
        return len(sent[0])

    def example(self) -> SampleRow | None:
        """A made-up row that `read` accepts; None if there is none."""
        return None

    def samples(self) -> tuple[SampleRow, ...]:
        """Rows of the model itself to try it with; none: they are made up."""
        return ()


class Answers:
    """Postprocessing: from the outputs of a model to those of clients. This one returns them unchanged.

    Several threads may use it. `outputs`: of the model as clients see it. Rows differ in length along variable axes.
    """

    #: Whether `answer` takes microseconds for a few rows. Others are not called on the event loop.
    quick = True
    #: Makes JSON of one row's outputs; None: the outputs themselves are the answer.
    present: Callable[[Mapping[str, Array]], Any] | None = None

    def __init__(self, outputs: tuple[TensorSpec, ...]) -> None:
        self.outputs = outputs

    def answer(self, outputs: Sequence[Array], note: Any) -> tuple[list[Array], list[int] | None]:
        """The outputs for the client and Answer.lengths, from the model's outputs and the reader's note.

        Without a note it treats each row alone and keeps lengths, so rows of several calls may be answered together.
        """
        return list(outputs), None

    def with_parameters(self, note: Any, parameters: Mapping[str, Any]) -> Any:
        """The note of a call, with what its parameters ask of the answer. Raises BadRequest."""
        return note

    def presenter(self, note: Any) -> Callable[[Mapping[str, Array]], Any] | None:
        """`present` for the rows of a call with this note."""
        return self.present


@dataclass(slots=True, eq=False)
class Front:
    """Translates between what clients send and get (texts, images, labels) and the tensors of a model."""

    reader: Reader
    answers: Answers
    #: A row as clients send it: the owner's first sample, or a made-up one.
    example: SampleRow | None = None
    #: For a model that compares vectors of texts: the front that returns the vectors themselves.
    embedder: Front | None = None
    #: For a text-generating model with a chat template: the front of conversations, each the JSON of its messages.
    chat: Front | None = None
    #: For a text-generating model: the front of prompts as tokens, each the JSON of a list of ids.
    ids: Front | None = None

    def client_info(self, info: ModelInfo) -> ModelInfo:
        """The model's info as clients see it."""
        outputs = self.answers.outputs
        own_axes = dict.fromkeys(axis for spec in outputs for axis in spec.axes if axis)
        return replace(info, inputs=self.reader.sent, outputs=outputs, own_axes=tuple(own_axes))


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """The parts of a model between which rows may join and leave a batch. A model in one piece has none.

    The first of `calls` takes the inputs; each next one takes what the last returned, followed by what `again` lists
    for it: positions in the inputs, continued by the results of `context`, which takes the inputs of a batch.
    """

    calls: tuple[Callable[..., Any], ...] = ()
    again: tuple[tuple[int, ...], ...] = ()
    context: Callable[..., Sequence[Any]] | None = None

    def __len__(self) -> int:
        return len(self.calls)

    def given(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of a batch and their context: what stages may take again."""
        return [*inputs] if self.context is None else [*inputs, *self.context(*inputs)]

    def arguments(self, stage: int, passed: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """What a stage takes: what was `passed` on, or the inputs for the first, and of what is `given` some again."""
        return [*passed, *(given[place] for place in self.again[stage])]


@dataclass(frozen=True, slots=True)
class Checks:
    """How a model is tried before it serves.

    `samples`: real rows that the owner gave. `row_check`: "refuse", "warn" or "off", see models/checks/row_check.py.
    `profile`: it may be measured while the server is idle. `allow_untried`: it may replace a working version even if it
    raises on every made-up row.
    """

    samples: tuple[SampleRow, ...] = ()
    row_check: str = "refuse"
    profile: bool = True
    allow_untried: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One loaded version of a model.

    `info` describes the tensors that `call` takes and returns. If there is a `front`, clients send and get something
    else, which `Front.client_info` describes.

    `call` takes one batch-first tensor per input in declared order (BYTES: a numpy object array of bytes). It returns a
    tensor, a tuple in the order of the outputs, or a mapping by output name.

    `decode` and `present` are the owner's functions for the friendly route, or None. `takes_fields`: `decode` accepts a
    keyword `fields`, the other fields of the form with the file. `read_parameters`: `call` accepts a keyword
    `parameters`, one mapping per row of the call's parameters that are not reserved; it raises BadRequest that names a
    parameter which does not fit. None: `call` takes none.

    `writes`: the answer is a text that is generated token by token, so a call may stream it.

    `close` is called once it serves no more. `note`: what its load could not do; shown in the index and logged.
    """

    info: ModelInfo
    call: Callable[..., Any]
    decode: Callable[..., Mapping[str, Any]] | None = None
    present: Callable[[Mapping[str, Array]], Any] | None = None
    takes_fields: bool = False
    read_parameters: Callable[[Mapping[str, Any]], object] | None = None
    writes: bool = False
    checks: Checks = Checks()
    stages: Stages = Stages()
    front: Front | None = None
    close: Callable[[], object] = _nothing
    note: str = ""

    @property
    def takes_parameters(self) -> bool:
        return self.read_parameters is not None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one version of a model comes from: its folder, which contains model.toml.

    `error`: why that cannot be read.
    """

    name: str
    version: int
    folder: Path
    error: str = ""
