"""A model that has been loaded, and where it is from: what the models package hands to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.contract.specs import Array, ModelInfo, SampleRow, TensorSpec


@dataclass(frozen=True, slots=True)
class Translated:
    """What a front made of the inputs of a call: one array [rows, ...] per input that the model itself takes.

    A row of the client may be several of the model, which then are the call's rows until the front answers it.
    Rows may differ in length: an array is as long as the longest, `lengths` gives each variable axis that length, and
    `own_lengths` the length of every row along it. `note` is the front's own, for when it answers the call.
    """

    arrays: list[Array]
    lengths: dict[str, int] = field(default_factory=dict)
    own_lengths: Mapping[str, Sequence[int]] | None = None
    note: Any = None


@dataclass(slots=True, eq=False)
class Front:
    """Translates between what clients send and get (texts, images, labels) and the tensors of a model.

    `sent`, `answered` and `own_axes` are the model as clients see it, as ModelInfo has them. Any thread may call `read`
    and `answer`, several at once. They take their time, so they are called on the event loop for nothing but short
    texts, and `answer` where it is `quick`.

    `read` makes the model's inputs of each call, from those that clients send: of bytes, [rows, ...]. It raises a leaf
    of StarlingError, such as BadRequest, if any of the calls is wrong. What it says of rows and places holds for a call
    that is read alone.

    `answer(outputs, note)` gives the outputs that clients get, and Answer.lengths, from what the model made of a call.
    Without a note each row is answered by itself and as long, so that rows of several calls may be.
    """

    sent: tuple[TensorSpec, ...]
    answered: tuple[TensorSpec, ...]
    read: Callable[[Sequence[Sequence[Array]]], list[Translated]]
    answer: Callable[[Sequence[Array], Any], tuple[list[Array], list[int] | None]]
    own_axes: tuple[str, ...] = ()
    #: Whether it reads texts: several calls at once take less than one by one, and 100 bytes some 50 us.
    reads_texts: bool = True
    #: Whether a few rows are answered in microseconds.
    quick: bool = True
    #: A row as clients send it, that the front reads: the owner's first, or a made-up one.
    example: SampleRow | None = None
    #: Of a model whose vectors are compared: the front of texts that gives the vectors themselves.
    embedder: Front | None = None
    #: Of a model that writes and has a chat template: the front of conversations, each the JSON of its messages.
    chat: Front | None = None

    def client_info(self, info: ModelInfo) -> ModelInfo:
        """The model as clients see it."""
        return replace(info, inputs=self.sent, outputs=self.answered, own_axes=self.own_axes)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One version of a model, loaded: what the models package hands to the engine.

    `call` takes one batch-first tensor per input in the order declared (BYTES: a numpy object array of bytes) and
    returns a tensor, a tuple in the order of the outputs, or a mapping by output name. `decode` and `present` serve
    the friendly route and are None where the model has none. `takes_parameters` says that `call` accepts a keyword
    `parameters`: one mapping per row, of the call's parameters that are not reserved. `takes_fields`: besides a content
    type and bytes, `decode` takes a keyword `fields`, the fields of the form that the file came in. `samples` are real
    rows that the owner gave to try the model with; `row_check` is "refuse", "warn" or "off", see models/row_check.py.
    `profile`: it may be measured while the server is idle. `allow_untried`: raising on every made-up row, it may still
    replace a version that works.

    `read_parameters`, of a model that takes parameters: raises BadRequest naming one that does not fit. `writes`: its
    answer is a text that it writes token by token, so that a call may read it piece by piece. `streams`: the outputs of
    a recurrent model, by position, of which a call may read each step when it has been made.

    `info` describes the tensors that `call` takes and returns. Where there is a `front`, clients send and get something
    else, which `Front.client_info` describes.

    `stages` are the parts of `call`, where rows may join and leave a batch between them: the first takes what `call`
    does, each next one what the last returned, and then what `again` names for it by position: of the inputs, and
    behind them of what `context` makes of the inputs of a batch. A model of one piece has none. What runs it whole uses
    `call`.
    """

    info: ModelInfo
    call: Callable[..., Any]
    decode: Callable[..., Mapping[str, Any]] | None = None
    present: Callable[[Mapping[str, Array]], Any] | None = None
    takes_parameters: bool = False
    takes_fields: bool = False
    read_parameters: Callable[[Mapping[str, Any]], object] | None = None
    writes: bool = False
    streams: tuple[int, ...] = ()
    samples: tuple[SampleRow, ...] = ()
    row_check: str = "refuse"
    profile: bool = True
    allow_untried: bool = False
    stages: tuple[Callable[..., Any], ...] = ()
    again: tuple[tuple[int, ...], ...] = ()
    context: Callable[..., Sequence[Any]] | None = None
    front: Front | None = None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one version of a model comes from: its folder, which holds model.toml."""

    name: str
    version: int
    folder: Path
