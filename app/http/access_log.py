"""The access log, one line per HTTP request; and the observer of a call, which writes its line and its trace span."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.contract import Answer, Served
from app.http.auth import PROBES
from app.http.body import ASGIApp, Message, Receive, Scope, Send, client_request_id
from app.http.inference_routes import Route
from app.http.prefix import strip_prefix
from app.observe.logs import ACCESS, fields

if TYPE_CHECKING:
    from app.observe.tracing.spans import CallSpan, Tracer

log = logging.getLogger(ACCESS)

_GONE = 499  # the client has left: the status of ClientGone
_LONGEST_PATH, _LONGEST_NAME = 2048, 256  # characters: a client may send more
_TRACEPARENT = b"traceparent: %s\r\n"


class AccessLog:
    """Writes the lines; probes have none. `root_path`: the prefix that an ingress may leave on paths."""

    def __init__(self, root_path: str = "") -> None:
        self._root_path = root_path

    def write(
        self,
        method: str,
        path: bytes,
        status: int,
        arrived: int,
        client: tuple[str, int] | None,
        request_id: bytes | None,
        call: Mapping[str, object] | None = None,
    ) -> None:
        """One line. `path` is as the client sent it, without its query; `arrived`: monotonic nanoseconds."""
        shown = path[:_LONGEST_PATH].decode("ascii", "backslashreplace")
        duration_ms = round((time.monotonic_ns() - arrived) / 1e6, 3)
        line: dict[str, object] = {"method": method, "path": shown, "status": status, "duration_ms": duration_ms}
        if request_id is not None:
            line["request_id"] = request_id.decode("latin-1")
        if client is not None:
            line["client"] = f"{client[0]}:{client[1]}"
        log.info("%s %s %d", method, shown, status, **fields(**line, **(call or {})))

    async def log_request(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `app` answer a request that is not an inference call, then write its line."""
        if strip_prefix(self._root_path, scope["path"]) in PROBES:
            await app(scope, receive, send)
            return
        arrived = time.monotonic_ns()
        status = _GONE

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, watched)
        finally:
            path = scope.get("raw_path") or scope["path"].encode()
            request_id = client_request_id(dict(scope["headers"]))
            self.write(scope["method"], path, status, arrived, scope.get("client"), request_id)


class CallObserver:
    """Writes the log line and the trace span of one call. Only made if the server has an access log or a tracer.

    `url`: as the client sent it. `path`: for the span, if it differs from the URL's; else None.
    """

    __slots__ = ("_arrived", "_client", "_log", "_method", "_path", "_request_id", "_route", "_span")

    def __init__(
        self,
        access_log: AccessLog | None,
        tracer: Tracer | None,
        route: Route,
        headers: Mapping[bytes, bytes],
        *,
        method: str,
        url: bytes,
        path: str | None,
        request_id: bytes,
        arrived: int,
        client: tuple[str, int] | None,
    ) -> None:
        self._log = access_log
        self._route = route
        self._method = method
        self._path = url.partition(b"?")[0]
        self._request_id = request_id
        self._arrived = arrived
        self._client = client
        self._span: CallSpan | None = None
        if tracer is not None:
            path = self._path.decode("latin-1") if path is None else path
            self._span = tracer.begin(
                headers, method=method, path=path, route=route.template, model=route.model, request_id=request_id
            )

    def begun(self) -> bytes:
        """The first piece of a streamed answer is sent. Returns more header lines for it."""
        return b"" if self._span is None else _TRACEPARENT % self._span.traceparent

    def succeeded(self, served: Served, klass: str, rows: int, answer: Answer) -> bytes:
        """The call has its answer. Returns more header lines for it. `klass` "": the model's default."""
        self._write(200, served, klass, rows)
        return b"" if self._span is None else _TRACEPARENT % self._span.succeeded(served.info, klass, rows, answer)

    def failed(self, served: Served | None, klass: str, rows: int, exc: Exception, status: int) -> bytes:
        """The call is answered with an error. `served` None: no model was found; `rows` 0: they are not known."""
        self._write(status, served, klass, rows)
        info = None if served is None else served.info
        return b"" if self._span is None else _TRACEPARENT % self._span.failed(info, klass, rows, exc, status)

    def _write(self, status: int, served: Served | None, klass: str, rows: int) -> None:
        if self._log is None:
            return
        name = self._route.model if served is None else served.info.name
        call: dict[str, object] = {"model": name[:_LONGEST_NAME]}
        if served is not None:
            call["version"] = served.info.version
            klass = klass or served.info.batching.default_class
        if rows:
            call["rows"] = rows
        if klass:
            call["class"] = klass
        self._log.write(self._method, self._path, status, self._arrived, self._client, self._request_id, call)
