"""What all protocols of the inference path share: the decoded call, and what a protocol has.

A new protocol is a subclass of `Codec`, and a path in `app/http/inference_routes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.contract import Answer, Array, FinishedBatch, Front, ModelInfo, Served, Translated
from app.errors import BadText, StarlingError
from app.http.body import Limits
from app.http.codecs.events import Stream

RequestHeaders = dict[bytes, bytes]

OFF_LOOP_BYTES = 128 << 10  # JSON bytes from which decoding leaves the event loop: they take about a millisecond
OFF_LOOP_ROWS = 16  # rows of labels, or of a model's own `present`, from which encoding leaves it


@dataclass(slots=True)
class DecodedCall:
    """One inference request, whatever protocol it came in.

    `arrays` holds one tensor [rows, ...] for each of `client_inputs`, in that order: an array, or its bytes. `lengths`
    gives each variable axis its length, as a lease wants it. `priority`, the timeouts, `klass` and `parameters` are
    what the body asked for; the defaults mean that it asked for nothing.
    """

    rows: int
    arrays: list[Array | memoryview]
    lengths: dict[str, int]
    priority: int = 0
    timeout_us: int | None = None
    parameters: dict[str, Any] | None = None
    #: V2: the request's id, which the answer repeats.
    id: str | None = None
    #: V2: (index of the output, as binary?) in the order asked for. None: all outputs, as JSON.
    outputs: list[tuple[int, bool]] | None = None
    #: The friendly route: one row came without a leading dimension, so the answer is one value and not a list.
    single: bool = False
    klass: str = ""
    #: Of a model with a front: see contract.Translated.
    own_lengths: Mapping[str, Sequence[int]] | None = None
    note: Any = None
    total_timeout_us: int | None = None
    #: The answer is sent piece by piece. None: whole.
    stream: Stream | None = None

    def take_translated(self, read: Translated) -> None:
        """What a front made of the arrays, in place of them."""
        self.arrays, self.lengths, self.rows = list(read.arrays), read.lengths, len(read.arrays[0])
        self.own_lengths, self.note = read.own_lengths, read.note


class Codec:
    """One protocol: how its bodies become calls, and answers become bodies."""

    #: Whether bodies may name the class of their call.
    names_class = False
    #: Whether answers may be streams: such requests are left to ASGI.
    may_stream = False

    def may_name_class(self, body: bytes) -> bool:
        """Whether this body may do so: one that does is never missed. Quicker than decoding it."""
        return False

    def front(self, served: Served) -> Front | None:
        """What reads the arrays of a decoded call, and makes the answer of the model's outputs; None: nothing does."""
        return served.model.front

    def bad_text_error(self, error: BadText) -> StarlingError:
        """What the client gets if the front refuses a text."""
        return error

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        """Whether `decode` takes longer than the event loop should stand still."""
        return len(body) > OFF_LOOP_BYTES

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        """The call that a body means, before its front reads it. Raises a leaf of StarlingError."""
        raise NotImplementedError

    def slow_to_encode(self, served: Served, call: DecodedCall) -> bool:
        """Whether `encode` takes longer than the event loop should stand still."""
        return False

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        """The answer's body, and the length of its JSON part where binary tensors follow it."""
        raise NotImplementedError


def is_made(info: ModelInfo, name: object) -> bool:
    """Whether the server makes the input of this name itself, so that no client may send it."""
    return any(spec.made and spec.name == name for spec in info.inputs)


def slow_to_encode(served: Served, codec: Codec, call: DecodedCall) -> bool:
    """Whether `encode` takes longer than the event loop should stand still."""
    front = codec.front(served)
    slow = front is not None and (call.rows > OFF_LOOP_ROWS or not front.quick)
    return slow or codec.slow_to_encode(served, call)


def encode(served: Served, codec: Codec, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
    """As the codec's, from the outputs of the model behind a front."""
    front = codec.front(served)
    if front is not None:
        answer = _answered(front, call, answer)
        call.rows = len(answer.outputs[0])
    return codec.encode(served, call, answer)


def _answered(front: Front, call: DecodedCall, answer: Answer) -> Answer:
    """The outputs of the front. Rows without a note are answered with all others of their batch."""
    batch = answer.finished
    if batch is None or call.note is not None:
        outputs, lengths = front.answer(answer.outputs, call.note)
        return Answer(outputs, answer.queue_ns, answer.times, answer.batch, lengths=lengths)
    if front not in batch.answered:
        batch.answered[front] = FinishedBatch(front.answer(batch.arrays, None)[0])
    return Answer(None, answer.queue_ns, answer.times, answer.batch, batch.answered[front], answer.row)
