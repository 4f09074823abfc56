"""uvicorn's HTTP protocol, offering the application one thing more and taking one thing slower.

An answer in one piece. uvicorn writes the head of an answer when the application starts it and the body when it comes:
two system calls, two chances for a worker thread to take the interpreter lock, and two regular expressions per header.
The inference path, whose headers are its own, hands over head and body together through the ASGI extension
`starling.answer`; everything else goes uvicorn's way.

First requests. When the server stops, uvicorn closes connections on which it has seen no request. One that was opened
a moment ago has its first request on the way, and its client would see a broken connection: it is given a moment.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION = "starling.answer"
_FIRST_REQUEST_S = 0.5
_STATUS = b"HTTP/1.1 200 OK\r\n"


class OneWriteProtocol(HttpToolsProtocol):
    """HttpToolsProtocol with the extension, and patient with a connection's first request."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        scope: Any = self.scope  # the application's task, just created, has not run yet
        scope["extensions"] = {EXTENSION: partial(answer, self.cycle)}

    def shutdown(self) -> None:
        cycle: Any = self.cycle  # uvicorn declares it as always there; it is None before the first request
        if cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_REQUEST_S, super().shutdown)
        else:
            super().shutdown()


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
