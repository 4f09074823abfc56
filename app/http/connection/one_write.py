"""Lets an answer of uvicorn leave in one write."""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class OneWrite:
    """What a cycle of uvicorn writes to, in place of its transport; `end` closes the connection.

    uvicorn writes the head of an answer and then its body: two segments, and clients that look at the status alone
    (tritonclient.aio's `is_model_ready`) never release a connection whose body came apart from its head. This keeps the
    head until the body comes, or the end of an answer without one.
    """

    __slots__ = ("_cycle", "_end", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, end: Callable[[], None]) -> None:
        self._cycle = cycle
        self._end = end
        self._transport = cycle.transport
        self._head: bytes | None = b""  # None: it has been written

    def write(self, data: bytes) -> None:
        if self._head is None or not self._cycle.response_started:  # 100 Continue comes before an answer
            self._transport.write(data)
        elif self._head:
            self._transport.write(self._head + data)
            self._head = None
        else:
            self._head = data

    def flush(self) -> None:
        """The answer is over: that to a HEAD has no body."""
        if self._head:
            self._transport.write(self._head)
            self._head = None

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._end()
