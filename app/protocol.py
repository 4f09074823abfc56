"""uvicorn's HTTP protocol with four changes. tests/test_protocol.py checks the internals of uvicorn that they rely on.

Answers in one write. uvicorn writes the head of an answer when the application starts it, and the body when it comes.
These are two system calls, two chances for a worker thread to take the interpreter lock, and two regular expressions
per header. The inference path makes its own headers and hands over head and body together, through the ASGI extension
`starling.answer`. All other answers take uvicorn's way.

First requests. When the server stops, uvicorn closes connections on which it has seen no request. The first request of
a connection that was just opened may be on its way, so such a connection stays open for a moment longer.

Disconnects of pipelining clients. uvicorn notifies only the request that it read last. Without the change, the request
that is being answered would run to its end and then write to a closed connection, which raises.

Malformed requests. uvicorn answers them in plain text; all errors of this server are JSON.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION = "starling.answer"
_FIRST_REQUEST_S = 0.5  # how long a connection without a request stays open when the server stops
_STATUS = b"HTTP/1.1 200 OK\r\n"
_MALFORMED = json.dumps({"error": "the request is not valid HTTP/1.1"}).encode()
_MALFORMED_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
) % (len(_MALFORMED), _MALFORMED)


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client."""

    #: The request that is being answered. uvicorn's `cycle` is the one that was read last.
    _answering: RequestResponseCycle | None = None

    # These two run on every request: to name the class costs half as much as `super()`.

    def on_headers_complete(self) -> None:
        HttpToolsProtocol.on_headers_complete(self)
        scope: Any = self.scope  # the application's task has been created and has not run yet
        scope["extensions"] = {EXTENSION: partial(answer, self.cycle)}

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        HttpToolsProtocol._start_asgi_task(self, cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()  # wakes `receive`, which then tells of the disconnect
        self.pipeline.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        cycle: Any = self.cycle  # None before the first request, although uvicorn's type says otherwise
        if cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_REQUEST_S, super().shutdown)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_MALFORMED_ANSWER)
        self.transport.close()


def answer(cycle: RequestResponseCycle, head: bytes, body: bytes, close: bool) -> bool:
    """Write a whole 200 answer. `head` is valid header lines that include content-length.

    Returns False if the answer must take uvicorn's way: the client reads too slowly or has disconnected, the request is
    a HEAD, or there is an access log.
    """
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_started or cycle.access_log:
        return False
    if cycle.scope["method"] == "HEAD":
        return False
    if close or not cycle.keep_alive:
        cycle.keep_alive = False
        head += b"connection: close\r\n"
    lines = b"".join([b"%s: %s\r\n" % header for header in cycle.default_headers])
    cycle.transport.write(b"%s%s%s\r\n%s" % (_STATUS, lines, head, body))
    # The state in which uvicorn's `send` leaves a request after the last message.
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
