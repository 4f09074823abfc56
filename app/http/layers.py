"""What is wrapped around the road of a call, each layer knowing nothing of the others: CORS, and the log and the trace.

A layer is a handler around another one, made when the server starts, and only if its setting is on. The access log has
a line for each HTTP request, whether it is a call or not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from app.http.cors import Cors
from app.http.request import Handler, Request, Response
from app.http.resources import Resources
from app.observe.logs import ACCESS, fields

if TYPE_CHECKING:
    from app.observe.tracing.spans import Tracer

log = logging.getLogger("starling.http")
access = logging.getLogger(ACCESS)

_LONGEST_PATH = 2048  # characters: a client may send more
_LONGEST_NAME = 256  # characters of the name of a model or version in the log: a client may send more
_TRACEPARENT = b"traceparent: %s\r\n"


def layered(handler: Handler, resources: Resources) -> Handler:
    """The handler with those layers around it that the settings ask for."""
    if resources.cors is not None:
        handler = partial(with_cors, handler, resources.cors)
    if resources.tracer is not None:
        handler = partial(with_span, handler, resources.tracer)
    if resources.access_log:
        handler = partial(with_log, handler)
    return handler


async def with_cors(handler: Handler, cors: Cors, request: Request) -> Response:
    """Say which pages may read the answer."""
    request.lines += cors.lines(request.headers.get(b"origin"))
    return await handler(request)


async def with_span(handler: Handler, tracer: Tracer, request: Request) -> Response:
    """Record the call as a span, and name it in the answer."""
    path = request.path or request.url.partition(b"?")[0].decode("latin-1")
    span = tracer.begin(
        request.headers, method=request.method, path=path, route=request.route.template, model=request.route.model,
        request_id=request.request_id,
    )  # fmt: skip
    request.lines += _TRACEPARENT % span.traceparent
    response = await handler(request)
    with _answered_all_the_same():
        info = None if request.served is None else request.served.info
        span.end(info, request.klass, request.rows, request.outcome, response[0])
    return response


async def with_log(handler: Handler, request: Request) -> Response:
    """Write a line of the access log when the call is answered."""
    response = await handler(request)
    with _answered_all_the_same():
        served = request.served
        name, version = request.route.model, request.route.version or ""
        if served is not None:
            name, version = served.info.name, served.info.version
        call = {
            "model": name[:_LONGEST_NAME], "version": version[:_LONGEST_NAME], "rows": request.rows,
            "class": str(request.klass),
        }  # fmt: skip
        path, client = request.url.partition(b"?")[0], request.connection.client
        write_line(request.method, path, response[0], request.arrived, client, request.request_id, **call)
    return response


@contextmanager
def _answered_all_the_same() -> Iterator[None]:
    """Log what is raised: a fault of the log or the trace takes nobody's answer."""
    try:
        yield
    except Exception:
        log.exception("a call is answered that the access log or the trace does not have")


def write_line(
    method: str, path: bytes, status: int, arrived: int, client: tuple[str, int] | None, request_id: bytes, **call: Any
) -> None:
    """One line. `path` is as the client sent it, without its query; `arrived`: monotonic nanoseconds."""
    shown = path[:_LONGEST_PATH].decode("ascii", "backslashreplace")
    duration_ms = round((time.monotonic_ns() - arrived) / 1e6, 3)
    line = {
        "method": method, "path": shown, "status": status, "duration_ms": duration_ms,
        "request_id": request_id.decode(), "client": _address(client), **call,
    }  # fmt: skip
    access.info("%s %s %d", method, shown, status, **fields(**line))


def _address(client: tuple[str, int] | None) -> str:
    """As in a URL; "" where the client has left before it was asked for."""
    if client is None:
        return ""
    host, port = client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
