"""The interface of the protocols: `Codec` turns bodies into a `DecodedCall`, and answers into bodies.

A new protocol is a subclass of `Codec` and a path in `app/http/inference_routes.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.contract import (
    QUICK_VALUES,
    Answer,
    FinishedBatch,
    Front,
    GeneratedText,
    ModelCall,
    ModelInfo,
    Served,
    Translated,
)
from app.errors import BadRequest, BadText, StarlingError
from app.http.body import Limits, RequestHeaders

OFF_LOOP_BYTES = 128 << 10  # larger JSON is decoded off the event loop: it takes more than about a millisecond
OFF_LOOP_ROWS = 16  # answers of more rows with labels or texts are encoded off the event loop


# streamed answers: pieces that rows produce are sent as server-sent events while the rows run


def event(data: bytes) -> bytes:
    """One server-sent event. `data` is JSON, which has no line breaks."""
    return b"data: %s\n\n" % data


class Stream:
    """The events of one call. The pieces of a row wait here until they become one event."""

    def __init__(self, events: Callable[[int, GeneratedText, bool], bytes]) -> None:
        """`events(row, piece, first)` makes the events of a piece; `first`: of this row."""
        self._events = events
        self._pending: dict[int, list[GeneratedText]] = {}  # by row
        self.sent: Counter[int] = Counter()  # by row: the characters in events so far

    def add(self, row: int, piece: GeneratedText) -> None:
        """Append a piece of the row."""
        self._pending.setdefault(row, []).append(piece)

    @property
    def waits(self) -> bool:
        """Whether there are pieces that have not become events."""
        return bool(self._pending)

    def waiting(self) -> bytes:
        """The events of all waiting pieces."""
        return b"".join(self._taken(row) for row in sorted(self._pending))

    def rest(self, row: int) -> int:
        """The row has ended. Returns how much of it is in events; the caller puts the rest into the last events."""
        self._pending.pop(row, None)
        return self.sent[row]

    def _taken(self, row: int) -> bytes:
        """One event of all waiting pieces of a row."""
        pieces = self._pending.pop(row)
        piece = pieces[-1]._replace(text="".join(piece.text for piece in pieces))
        first, self.sent[row] = not self.sent[row], self.sent[row] + len(piece.text)
        return self._events(row, piece, first)


# calls and their answers


@dataclass(slots=True)
class DecodedCall(ModelCall):
    """A call as its body says it, and what its answer must be like."""

    #: V2: the request's id, which the answer repeats.
    id: str | None = None
    #: V2: (index of the output, whether as binary) in the requested order. None: all outputs, as JSON.
    outputs: list[tuple[int, bool]] | None = None
    #: The friendly route: one row without a leading dimension, so the answer is one value instead of a list.
    single: bool = False
    #: Of a model with a front: see contract.Translated.
    note: Any = None
    #: Set if the answer is streamed.
    stream: Stream | None = None

    def take_translated(self, read: Translated) -> None:
        """Replace the arrays by what a front made of them."""
        self.arrays, self.lengths, self.rows = list(read.arrays), read.lengths, len(read.arrays[0])
        self.own_lengths, self.note = read.own_lengths, read.note


class Codec(ABC):
    """One protocol: decodes bodies into calls, and encodes answers into bodies."""

    #: Whether bodies may name the class of their call.
    names_class = False
    #: Whether answers may be streams. Such requests take the ASGI path.
    may_stream = False
    #: Whether a codec of its own reads each body before it is decoded: see TextCodec.
    reads_first = False
    #: Whether answers are made by a model's own `present`.
    presents = False

    def front(self, served: Served) -> Front | None:
        """The front that reads the decoded arrays and answers from the model's outputs; None: there is none."""
        return served.model.front

    def bad_text_error(self, error: BadText) -> StarlingError:
        """The error for the client if the front refuses a text."""
        return error

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        """Whether `decode` would block the event loop for too long, so that a helper thread runs it."""
        return served.model.decode is not None or len(body) > OFF_LOOP_BYTES

    @abstractmethod
    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        """Decode a body into a call, which a front may read afterwards. Raises a leaf of StarlingError."""

    @abstractmethod
    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        """The body of the answer, and the length of its JSON part if binary tensors follow it, else None."""


def check_rows(info: ModelInfo, rows: int) -> None:
    """Raise BadRequest for more rows than the queue holds. To pad and read so many may take minutes."""
    most = info.batching.max_queue
    if rows > most:
        raise BadRequest(
            f"{rows} rows in one request: the queue of model {info.name!r} holds {most}; send at most {most} at a "
            "time, or raise max_queue (--max-queue, or in model.toml)"
        )


def slow_to_encode(served: Served, codec: Codec, call: DecodedCall, answer: Answer) -> bool:
    """Whether `encode` would block the event loop for too long, so that a helper thread runs it."""
    if (front := codec.front(served)) is None:
        own = codec.presents and served.model.present is not None  # a user's code, which may take any time
        asked = call.outputs or [(index, False) for index in range(len(answer.outputs))]
        return own or sum(answer.outputs[index].size for index, binary in asked if not binary) > QUICK_VALUES
    return call.rows > OFF_LOOP_ROWS or not front.answers.quick


def encode(served: Served, codec: Codec, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
    """Like `Codec.encode`; a front, if there is one, first answers from the model's outputs."""
    front = codec.front(served)
    if front is not None:
        answer = _answered(front, call, answer)
        call.rows = len(answer.outputs[0])
    return codec.encode(served, call, answer)


def _answered(front: Front, call: DecodedCall, answer: Answer) -> Answer:
    """The outputs of the front. If rows have no note, it answers all rows of their batch in one call."""
    batch = answer.finished
    if batch is None or call.note is not None:
        outputs, lengths = front.answers.answer(answer.outputs, call.note)
        return Answer(outputs, answer.queue_ns, answer.times, answer.batch, lengths=lengths)
    if front not in batch.answered:
        batch.answered[front] = FinishedBatch(front.answers.answer(batch.arrays, None)[0])
    return Answer(None, answer.queue_ns, answer.times, answer.batch, batch.answered[front], answer.row)
