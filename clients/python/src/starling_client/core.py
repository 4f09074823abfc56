"""A call as steps: what to send, how long to wait, what to do together. Two drivers carry the steps out.

Each function here is a generator, a `Flow`. It yields `Send`, which is answered by an `Answer` or a `Failure`; `Wait`,
by nothing; `Together`, by the list of what those flows return. It returns its result or raises. So the synchronous and
the asynchronous client share all but the sockets, and a test plays a server without any.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from starling_client.errors import (
    BadAnswer,
    ConnectionLost,
    DeadlineUnreachable,
    NotConnected,
    Refused,
    ServerError,
    StarlingError,
    TimedOut,
    Unavailable,
)
from starling_client.types import Call, Metadata, Retry
from starling_client.wire import (
    Answer,
    Events,
    Request,
    decode_error,
    decode_json,
    decode_metadata,
    encode_text,
    model_path,
)

T = TypeVar("T")
_AWAY = (502, 504)  # of a gateway that has no answer of its server
_TELL_NOTHING = (401, 429, 503, *_AWAY)  # of what a server has


class Kind(Enum):
    """What is known of a request that got no answer."""

    REFUSED = "no connection was made, which may be different in a moment"
    UNREACHABLE = "no connection can be made: the name or the certificate is wrong"
    LOST = "the connection broke before the whole answer had come"
    TIMED_OUT = "no answer came in time"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: Kind
    cause: BaseException


@dataclass(frozen=True, slots=True)
class Send:
    """`timeout_s`: the whole of it, from connecting to the last byte of the answer; of one that `streams`, each wait.

    An answer of 200 that streams has its `response`, and no body.
    """

    request: Request
    timeout_s: float
    streams: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """In any order, as many at once as the driver likes. If one raises, the others are given up."""

    flows: Sequence[Flow[Any]]


@dataclass(frozen=True, slots=True)
class Streamed:
    """A stream that has begun: httpx's `response`, closed by whoever has entered it, and what reads its events."""

    response: Any
    events: Events
    deadline: float


Action: TypeAlias = Send | Wait | Together
Flow: TypeAlias = Generator[Action, Any, T]


class Core:
    """What both clients know of a server, and its simple questions. Safe for several threads: it only ever caches."""

    def __init__(self, server: str, retry: Retry, *, binary: bool | None) -> None:
        self.server = server
        self.retry = retry
        self.clock: Callable[[], float] = time.monotonic  # tests have their own, and their own chance
        self._chance: Callable[[], float] = random.random
        self._binary = binary
        self._metadata: dict[tuple[str, str | None], Metadata] = {}

    def deadline(self, seconds: float | None = None) -> float:
        """When a call that begins now must have ended."""
        return self.clock() + (self.retry.deadline_s if seconds is None else seconds)

    def ask(self, request: Request, deadline: float, *, streams: bool = False) -> Flow[tuple[Answer, int]]:
        """Send a request until it is answered with 200, and return that with the number of tries.

        Raises what the last try met: a ServerError, NotConnected, ConnectionLost or TimedOut.
        """
        tries = 0
        while True:
            left = deadline - self.clock()
            if left <= 0:
                raise _counted(TimedOut("deadline_s passed before the request could be sent"), tries)
            reply: Answer | Failure = yield Send(request, left, streams)
            tries += 1
            if isinstance(reply, Answer) and reply.status == 200:
                return reply, tries
            error = _counted(self._error(reply, request), tries)
            pause = self._pause(error, reply, request, tries)
            if pause is None or tries >= self.retry.attempts or self.clock() + pause >= deadline:
                raise error from (reply.cause if isinstance(reply, Failure) else None)
            yield Wait(pause)

    def _pause(self, error: StarlingError, reply: Answer | Failure, request: Request, tries: int) -> float | None:
        """Seconds until the next try; None where there is none. What may be sent again is said at `Retry`."""
        again = isinstance(error, Refused | Unavailable) and not isinstance(error, DeadlineUnreachable)
        if isinstance(reply, Failure):
            lost = reply.kind is Kind.LOST and (self.retry.lost or request.method == "GET")
            again = lost or reply.kind is Kind.REFUSED
        elif reply.status in _AWAY:
            again = request.method == "GET"
        if not again:
            return None
        backoff = min(self.retry.longest_wait_s, self.retry.first_wait_s * 2.0 ** min(tries - 1, 60))
        # a server that says 0 is not asked without end, nor at once
        pause = backoff if error.retry_after_s is None else max(error.retry_after_s, self.retry.first_wait_s)
        return pause * (1 + self.retry.jitter * self._chance())

    def _error(self, reply: Answer | Failure, request: Request) -> StarlingError:
        """What a reply that is no success means."""
        if isinstance(reply, Answer):
            return decode_error(reply)
        unsure = "; the model may have run" if request.method == "POST" else ""
        if reply.kind is Kind.TIMED_OUT:
            return TimedOut(f"deadline_s passed before {self.server} had answered{unsure}")
        why = str(reply.cause) or type(reply.cause).__name__
        if reply.kind is Kind.LOST:
            return ConnectionLost(f"the connection to {self.server} broke before the whole answer: {why}{unsure}")
        return NotConnected(f"no connection to {self.server}: {why}")

    def stream(self, call: Call, text: str) -> Flow[Streamed]:
        """What a model writes: a stream that has begun."""
        deadline = self.deadline(call.deadline_s)
        answer, _ = yield from self.ask(encode_text(call, text), deadline, streams=True)
        return Streamed(answer.response, Events(), deadline)

    def broken(self, reply: Failure | None, deadline: float) -> StarlingError | None:
        """Why a stream ends here: it broke, as `reply` says, or the deadline has passed. None: it does not."""
        if reply is not None and reply.kind is not Kind.TIMED_OUT:
            return ConnectionLost(f"the connection to {self.server} broke before the whole answer")
        if reply is not None or self.clock() > deadline:
            return TimedOut(f"the whole answer did not come from {self.server} before the deadline")
        return None

    # what a server tells

    def metadata(self, key: tuple[str, str | None], deadline: float, *, fresh: bool = False) -> Flow[Metadata]:
        """The metadata of a model and version, remembered unless `fresh`."""
        known = self._metadata.get(key)
        if known is None or fresh:
            answer, _ = yield from self.ask(Request("GET", model_path(*key)), deadline)
            known = self._metadata[key] = decode_metadata(answer)
        return known

    def knows(self, key: tuple[str, str | None]) -> bool:
        return key in self._metadata

    def models(self, deadline: float) -> Flow[list[str]]:
        answer, _ = yield from self.ask(Request("GET", "/v2/models"), deadline)
        names = _member(decode_json(answer), "models")
        if not isinstance(names, list):
            raise BadAnswer("the answer has no list of models")
        return [str(name) for name in names]

    def ready(self, model: str | None, version: str | None, deadline: float) -> Flow[bool]:
        """Whether a server, a model or a version is ready: asked once. One that cannot be reached is not.

        Raises NotFound for an unknown model, Unauthorized, or NotConnected where waiting would not help.
        """
        path = "/v2/health/ready" if model is None else model_path(model, version, "/ready")
        left = deadline - self.clock()
        request = Request("GET", path)
        reply: Answer | Failure = yield Send(request, left)
        if isinstance(reply, Failure):
            if reply.kind is Kind.UNREACHABLE:
                raise self._error(reply, request) from reply.cause
            return False
        if reply.status in (200, 503, *_AWAY):
            return reply.status == 200
        raise decode_error(reply)

    def speaks_binary(self, deadline: float) -> Flow[bool]:
        """Whether the server takes tensors as bytes: it says so among its extensions, or the caller has said it."""
        if self._binary is None:
            try:
                answer, _ = yield from self.ask(Request("GET", "/v2"), deadline)
                found = decode_json(answer)
                extensions = _member(found, "extensions")
                self._binary = isinstance(extensions, list) and "binary_tensor_data" in extensions
            except ServerError as error:
                if error.status in _TELL_NOTHING:
                    raise
                self._binary = False  # JSON is what every server of V2 takes
        return self._binary

    def configured_rows(self, key: tuple[str, str | None], deadline: float) -> Flow[tuple[int | None, int | None]]:
        """The most rows of a request, and the most that run together, as the model's configuration has them."""
        try:
            answer, _ = yield from self.ask(Request("GET", model_path(*key, "/config")), deadline)
        except ServerError as error:
            if error.status in _TELL_NOTHING:
                raise
            return None, None  # the extension is Triton's: not all servers have it
        found = decode_json(answer)
        told = _member(_member(_member(found, "parameters"), "max_request_rows"), "string_value")
        return _positive(told), _positive(_member(found, "max_batch_size"))


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None


def _positive(value: object) -> int | None:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() and int(value) > 0 else None


def _counted(error: StarlingError, tries: int) -> StarlingError:
    error.tries = tries
    return error
