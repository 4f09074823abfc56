"""A request on the fast path, and who has one for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

RequestHeaders = dict[bytes, bytes]


class Connection(Protocol):
    """What an exchange needs of its connection."""

    #: All that the server has open.
    connections: set[Any]
    #: The state of the application's lifespan.
    app_state: dict[str, Any]
    #: Tasks that the server waits for when it stops.
    tasks: set[Any]
    loop: Any
    #: Address and port of the other side, where it has them.
    client: Any

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        """Write a whole answer. `head` is header lines, content-length among them; `date` and `connection` are added.

        It is held while the client reads too slowly, and dropped where it has gone.
        """
        ...


class _Unheard:
    """In place of the event by which uvicorn wakes who waits for a request's messages: nobody does."""

    def set(self) -> None: ...


class Exchange(ABC):
    """One request and its answer. To uvicorn's own code it looks like one of its cycles."""

    __slots__ = ("connection", "disconnected", "keep_alive", "refused", "response_complete", "whole")

    message_event: ClassVar[_Unheard] = _Unheard()

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False
        self.whole = False  # the body has come
        self.refused = False  # the answer waits for its turn, and the body is dropped

    @abstractmethod
    def received(self, body: bytes) -> bool:
        """The body is there. False: the request is to go uvicorn's way after all, and nothing of it was done."""

    @abstractmethod
    def late(self) -> None:
        """The body did not come in time: answer with 408."""

    @abstractmethod
    def left(self) -> None:
        """The client has gone before it had its answer."""

    @abstractmethod
    def closes(self) -> bool:
        """Whether the connection closes with this answer; asked when it is written."""


class Handler(Protocol):
    """Who has exchanges for requests."""

    body_timeout_s: float

    def take(self, connection: Connection, url: bytes, headers: RequestHeaders, length: int) -> Exchange | None:
        """The exchange for a POST whose head has come, `length` its Content-Length; None: it goes uvicorn's way.

        `headers` must not be changed: a later request may bring the same.
        """
        ...
