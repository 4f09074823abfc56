"""The asynchronous client, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import httpx
import numpy.typing as npt

from starling_client.batches import Calls, Inputs
from starling_client.core import Action, Failure, Flow, Send, Wait
from starling_client.errors import BadAnswer
from starling_client.http import address, answer_of, common_headers, failure_of, timeout
from starling_client.types import DEFAULT_RETRY, Array, Call, Metadata, Options, Result, Retry
from starling_client.wire import Answer

T = TypeVar("T")


class AsyncClient:
    """As `Client`, which documents its arguments and methods, with `await`. To be used in one event loop at a time.

    Of a batch that was cut, up to `parallel` parts are under way at once. A call that is cancelled ends its requests,
    and the server forgets rows that still wait.
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
        parallel: int = 4,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        if parallel < 1:
            raise ValueError(f"parallel: expected at least 1, got {parallel}")
        self._url = address(url)
        self._calls = Calls(self._url, retry, binary=binary, max_rows=max_rows)
        self._headers = common_headers(api_key, headers)
        self._parallel = parallel
        self._own = http is None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http = httpx.AsyncClient() if http is None else http
        self._sleep = asyncio.sleep

    @overload
    async def predict(
        self, model: str, inputs: Mapping[str, npt.ArrayLike], **options: Unpack[Options]
    ) -> dict[str, Array]: ...
    @overload
    async def predict(self, model: str, inputs: npt.ArrayLike, **options: Unpack[Options]) -> Array: ...
    async def predict(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Array | dict[str, Array]:
        """Run a model on a batch: see `Client.predict`."""
        found: Array | dict[str, Array] = await self._run(self._calls.predict(Call(model, **options), inputs))
        return found

    async def infer(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Result:
        """As `predict`, with the version, times and lengths of rows beside the outputs by name."""
        return await self._run(self._calls.infer(Call(model, **options), inputs))

    async def stream(self, model: str, text: str, **options: Unpack[Options]) -> AsyncGenerator[str]:
        """What a model writes to a text, piece by piece: see `Client.stream`."""
        stream = await self._run(self._calls.stream(Call(model, **options), text))
        async with stream.response as response, contextlib.aclosing(self._chunks(response, stream.deadline)) as chunks:
            async for chunk in chunks:
                for piece in stream.events.read(chunk):
                    yield piece
        if not stream.events.ended:
            raise BadAnswer("the stream ended before the answer had")

    async def _chunks(self, response: httpx.Response, deadline: float) -> AsyncGenerator[bytes]:
        try:
            async for chunk in response.aiter_bytes():
                if (error := self._calls.broken(None, deadline)) is not None:
                    raise error
                yield chunk
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise self._calls.broken(failure_of(exc), deadline) or exc from exc

    async def ready(
        self, model: str | None = None, version: str | int | None = None, *, timeout_s: float = 5.0
    ) -> bool:
        """Whether the server is ready, or a model, or one version of it: see `Client.ready`."""
        wanted = None if version is None else str(version)
        return await self._run(self._calls.ready(model, wanted, self._calls.deadline(timeout_s)))

    async def models(self) -> list[str]:
        """Names of the models that have a version ready."""
        return await self._run(self._calls.models(self._calls.deadline()))

    async def metadata(self, name: str, version: str | int | None = None) -> Metadata:
        """A model's inputs and outputs, asked for anew, and remembered for calls."""
        key = name, None if version is None else str(version)
        return await self._run(self._calls.metadata(key, self._calls.deadline(), fresh=True))

    async def aclose(self) -> None:
        """Close the connections, unless they are the caller's own client's."""
        if self._own:
            await self._of_loop().aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # the driver

    async def _run(self, flow: Flow[T]) -> T:
        """Carry out the steps of a call. What goes wrong in one is the flow's to handle."""
        step: Callable[[], Action] = partial(flow.send, None)
        try:
            while True:
                action = step()
                try:
                    step = partial(flow.send, await self._carry_out(action))
                except Exception as exc:
                    step = partial(flow.throw, exc)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            flow.close()

    async def _carry_out(self, action: Action) -> object:
        if isinstance(action, Send):
            return await self._send(action)
        if isinstance(action, Wait):
            await self._sleep(action.seconds)
            return None
        return await self._together(action.flows)

    async def _together(self, flows: Sequence[Flow[Any]]) -> list[Any]:
        """What the flows return, in their order. The first that raises ends the others, and this."""
        results: list[Any] = [None] * len(flows)
        waiting = iter(enumerate(flows))

        async def work() -> None:
            for index, flow in waiting:
                results[index] = await self._run(flow)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._parallel, len(flows))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        return results

    def _of_loop(self) -> httpx.AsyncClient:
        """The connections of this event loop: those of one that has ended, as of asyncio.run, ended with it."""
        loop = asyncio.get_running_loop()
        if self._own and self._loop not in (None, loop) and not self._http.is_closed:
            self._http = httpx.AsyncClient()
        self._loop = loop
        return self._http

    async def _send(self, send: Send) -> Answer | Failure:
        request, http = send.request, self._of_loop()
        try:
            async with asyncio.timeout(None if send.streams else send.timeout_s):
                response = await http.send(
                    http.build_request(
                        request.method, self._url + request.path, headers={**self._headers, **request.headers},
                        content=request.body, timeout=timeout(send),
                    ),
                    stream=True,
                )  # fmt: skip
                if send.streams and response.status_code == 200:
                    return Answer(200, {}, b"", _closing(response))
                async with _closing(response):
                    return answer_of(response, await response.aread())
        except (httpx.TransportError, httpx.DecodingError, TimeoutError) as exc:
            return failure_of(exc)


@contextlib.asynccontextmanager
async def _closing(response: httpx.Response) -> AsyncIterator[httpx.Response]:
    try:
        yield response
    finally:
        await response.aclose()
