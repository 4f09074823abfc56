"""uvicorn's HTTP protocol, changed in four places. What it relies on inside uvicorn is held by tests/test_protocol.py.

An answer in one piece. uvicorn writes the head of an answer when the application starts it and the body when it comes:
two system calls, two chances for a worker thread to take the interpreter lock, and two regular expressions per header.
The inference path, whose headers are its own, hands over head and body together through the ASGI extension
`starling.answer`; everything else goes uvicorn's way.

First requests. When the server stops, uvicorn closes connections on which it has seen no request. One that was opened
a moment ago has its first request on the way, and its client would see a broken connection: it is given a moment.

Pipelined requests of a client that hangs up. uvicorn tells only the request that it read last; the one that is being
answered would compute to its end and write to a closed connection, which raises.

Malformed requests. uvicorn answers them in plain text; every error of this server is JSON.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION = "starling.answer"
_FIRST_REQUEST_S = 0.5
_STATUS = b"HTTP/1.1 200 OK\r\n"
_MALFORMED = json.dumps({"error": "the request is not valid HTTP/1.1"}).encode()
_MALFORMED_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
) % (len(_MALFORMED), _MALFORMED)


class OneWriteProtocol(HttpToolsProtocol):
    """One connection."""

    #: The request that is being answered. uvicorn's `cycle` is the one that was read last.
    _answering: RequestResponseCycle | None = None

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        scope: Any = self.scope  # the application's task, just created, has not run yet
        scope["extensions"] = {EXTENSION: partial(answer, self.cycle)}

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()  # whoever waits for the client hears that it is gone
        self.pipeline.clear()  # nobody waits for these answers
        super().connection_lost(exc)

    def shutdown(self) -> None:
        cycle: Any = self.cycle  # uvicorn declares it as always there; it is None before the first request
        if cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_REQUEST_S, super().shutdown)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_MALFORMED_ANSWER)
        self.transport.close()


def answer(cycle: RequestResponseCycle, head: bytes, body: bytes, close: bool) -> bool:
    """Write a whole 200 answer. `head` is header lines, known to be sound, content-length among them.

    False where uvicorn's own way must be taken: the client reads too slowly or is gone, a HEAD request, an access log.
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
    # What uvicorn's `send` leaves behind after the last message.
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
