"""The synchronous client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import getpid
from time import monotonic, sleep
from types import TracebackType
from typing import Self, TypeVar, Unpack, overload

import httpx
import numpy.typing as npt

from starling_client.batches import Calls, Inputs
from starling_client.core import Action, Failure, Flow, Send, Wait
from starling_client.errors import BadAnswer
from starling_client.http import address, answer_of, common_headers, failure_of, timeout
from starling_client.types import DEFAULT_RETRY, Array, Call, Metadata, Options, Result, Retry
from starling_client.wire import Answer

T = TypeVar("T")
_PIECE = 1 << 18  # bytes of a body between two looks at the clock


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A large body, given up at `end`: httpx bounds each write, not their sum."""

    body: bytes
    end: float

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self.body), _PIECE):
            if monotonic() > self.end:
                raise TimeoutError("the request was taken too slowly")
            yield self.body[start : start + _PIECE]


class Client:
    """A server of the Open Inference Protocol, for use from any number of threads, and in a process that was forked.

    `url` is its address, with a path where an ingress has one. `api_key` goes with each request, as X-API-Key, and so
    do `headers`. `retry` says what is sent again, and for how long. `max_rows` bounds the rows of one request in place
    of what the server tells; larger batches are cut and joined again. `binary`: True or False in place of asking the
    server whether it takes tensors as bytes; without them they go as JSON. `http` is a client of the caller's own, for
    proxies, certificates or limits; it is not closed here, and no process forked later may use it. Raises ValueError
    for an address that is none, and for a key or header that cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: Retry = DEFAULT_RETRY,
        max_rows: int | None = None,
        binary: bool | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        self._url = address(url)
        self._calls = Calls(self._url, retry, binary=binary, max_rows=max_rows)
        self._headers = common_headers(api_key, headers)
        self._own = http is None
        self._process = getpid()
        self._http = httpx.Client() if http is None else http
        self._sleep = sleep

    @overload
    def predict(
        self, model: str, inputs: Mapping[str, npt.ArrayLike], **options: Unpack[Options]
    ) -> dict[str, Array]: ...
    @overload
    def predict(self, model: str, inputs: npt.ArrayLike, **options: Unpack[Options]) -> Array: ...
    def predict(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Array | dict[str, Array]:
        """Run a model on a batch.

        `inputs` is one array [rows, ...], or a list that makes one, for a model of one input, and the answer is the one
        output [rows, ...]; or it is a dict of such arrays by input name, and the answer a dict of all outputs, or of
        those in `outputs`. BYTES are str or bytes going in, bytes coming out. Rows keep their order, and either all of
        them are answered or this raises. `options`: see `Options`.

        Raises ValueError for inputs that do not fit the model, else a leaf of StarlingError.
        """
        found: Array | dict[str, Array] = self._run(self._calls.predict(Call(model, **options), inputs))
        return found

    def infer(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Result:
        """As `predict`, with the version, times and lengths of rows beside the outputs by name."""
        return self._run(self._calls.infer(Call(model, **options), inputs))

    def stream(self, model: str, text: str, **options: Unpack[Options]) -> Generator[str]:
        """What a model writes to a text, piece by piece, as it is written.

        Nothing is sent before the first piece is asked for, and nothing is sent again behind it. `options`: see
        `Options`; `parameters` are those of the model, such as max_new_tokens. Close the generator to end it early.
        Raises what `predict` raises, or Interrupted where the server ends the text with an error.
        """
        stream = self._run(self._calls.stream(Call(model, **options), text))
        with stream.response as response:
            for chunk in self._chunks(response, stream.deadline):
                yield from stream.events.read(chunk)
        if not stream.events.ended:
            raise BadAnswer("the stream ended before the answer had")

    def _chunks(self, response: httpx.Response, deadline: float) -> Iterator[bytes]:
        try:
            for chunk in response.iter_bytes():
                if (error := self._calls.broken(None, deadline)) is not None:
                    raise error
                yield chunk
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise self._calls.broken(failure_of(exc), deadline) or exc from exc

    def ready(self, model: str | None = None, version: str | int | None = None, *, timeout_s: float = 5.0) -> bool:
        """Whether the server is ready, or a model, or one version of it. Asked once, for at most `timeout_s` seconds.

        False also where nobody answers. Raises NotFound for an unknown model, Unauthorized, or NotConnected for a name
        that is not known or a certificate that is not trusted.
        """
        wanted = None if version is None else str(version)
        return self._run(self._calls.ready(model, wanted, self._calls.deadline(timeout_s)))

    def models(self) -> list[str]:
        """Names of the models that have a version ready. Raises a leaf of StarlingError."""
        return self._run(self._calls.models(self._calls.deadline()))

    def metadata(self, name: str, version: str | int | None = None) -> Metadata:
        """A model's inputs and outputs, asked for anew, and remembered for calls. Raises a leaf of StarlingError."""
        key = name, None if version is None else str(version)
        return self._run(self._calls.metadata(key, self._calls.deadline(), fresh=True))

    def close(self) -> None:
        """Close the connections, unless they are the caller's own client's."""
        if self._own:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # the driver

    def _run(self, flow: Flow[T]) -> T:
        """Carry out the steps of a call. What goes wrong in one is the flow's to handle."""
        step: Callable[[], Action] = partial(flow.send, None)
        try:
            while True:
                action = step()
                try:
                    step = partial(flow.send, self._carry_out(action))
                except Exception as exc:
                    step = partial(flow.throw, exc)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            flow.close()

    def _carry_out(self, action: Action) -> object:
        if isinstance(action, Send):
            return self._send(action)
        if isinstance(action, Wait):
            self._sleep(action.seconds)
            return None
        return [self._run(flow) for flow in action.flows]

    def _send(self, send: Send) -> Answer | Failure:
        """httpx bounds each read, not their sum: so the deadline is looked at between them, too."""
        request, end = send.request, monotonic() + send.timeout_s
        if self._own and self._process != getpid() and not self._http.is_closed:
            # its connections are the parent's, and so are answers on them; other threads may look at `_process`
            self._http, self._process = httpx.Client(), getpid()
        headers, whole = {**self._headers, **request.headers}, request.body
        if large := len(whole) > _PIECE:
            headers["content-length"] = str(len(whole))
        try:
            response = self._http.send(
                self._http.build_request(
                    request.method, self._url + request.path, headers=headers,
                    content=_Pieces(whole, end) if large else whole, timeout=timeout(send),
                ),
                stream=True,
            )  # fmt: skip
            if send.streams and response.status_code == 200:
                return Answer(200, {}, b"", contextlib.closing(response))
            with contextlib.closing(response):
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if monotonic() > end:
                        raise TimeoutError("the answer came too slowly")
                return answer_of(response, bytes(body))
        except (httpx.TransportError, httpx.DecodingError, TimeoutError) as exc:
            return failure_of(exc)
