"""A model that answers with its input, and requests to it on both ways in which they are taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import quote

import numpy as np
from connections import Connection, parsed
from starlette.types import Message, Receive, Scope, Send

from app.contract import CLASSES, Answer, GeneratedText, Klass, ModelCall, Waiter, wait
from app.errors import QueueFull
from app.http.asgi import HttpApp
from app.http.auth import Auth
from app.http.body import Limits
from app.http.inference_routes import X_CLASS
from app.http.resources import Resources
from app.lifecycle import Lifecycle

from .catalog import FakeCatalog, FakeServed

NO_HEADERS: Mapping[bytes, bytes] = {}
CHUNKED = ((b"transfer-encoding", b"chunked"),)
LIMITS = Limits(body=1000, json=800, inflight=2000, body_timeout_s=5, connections=3)


class EchoLease:
    """Holds its call's inputs; its waiter gets them back where `Echo.opened` says so, else what the test gives."""

    rows = (0,)
    on_close: Callable[[], None] | None = None
    on_piece: Callable[[int, GeneratedText], None] | None = None

    def __init__(self, model: Echo, inputs: Sequence[Any]) -> None:
        self._model = model
        self._rows = self.output(inputs[0]) if inputs else None
        self._waiter: Waiter
        self._closed = False
        model.open_leases += 1

    def output(self, values: Any) -> Any:
        """What the model makes of its first input."""
        return values if isinstance(values, np.ndarray) else np.frombuffer(values, "<f4").reshape(-1, 4)

    def submit(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._model.ran.set()
        if self._model.fails is not None:
            self.fail(self._model.fails)
        elif self._model.opened:
            self.answer([self._rows])

    def give(self, row: int, piece: GeneratedText) -> None:
        assert self.on_piece is not None
        self.on_piece(row, piece)

    def answer(self, arrays: list[Any]) -> None:
        self._waiter.set_result(Answer(arrays, 2_000_000, (1_000_000, 1_500_000, 500_000), 5))

    def fail(self, error: Exception) -> None:
        self._waiter.set_exception(error)

    def run(self) -> Awaitable[Any]:
        return wait(self)

    def abandon(self) -> bool:
        return False

    def __enter__(self) -> EchoLease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._model.open_leases -= 1
            if self.on_close is not None:
                self.on_close()


@dataclass
class Echo(FakeServed):
    """A model that answers with its input, or as its leases do, which are kept."""

    lease_type: type[EchoLease] = EchoLease
    leases: list[Any] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)  # tokens of pieces; 0 of the first
    opened: bool = True
    fails: Exception | None = None
    full: frozenset[str] = frozenset()  # classes whose queue is
    open_leases: int = 0
    ran: asyncio.Event = field(default_factory=asyncio.Event)
    asked: dict[str, Any] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)  # of those that have

    @property
    def klass(self) -> Klass:
        return CLASSES[self.info.batching.default_class]

    def has_room(self, klass: Klass, rows: int = 1) -> bool:
        return str(klass) not in self.full

    def admit(self, rows: int, klass: Klass, deadline_ns: int | None = None) -> None:
        if str(klass) in self.full:
            raise QueueFull("the queue is full", retry_after_s=4)

    def lease(self, asked: ModelCall, arrived_ns: int | None = None) -> EchoLease:
        klass = self.klass if asked.klass is None else asked.klass
        self.admit(asked.rows, klass)
        given = {one.name: getattr(asked, one.name) for one in fields(ModelCall) if one.name != "arrays"}
        self.asked = {**given, "klass": str(klass), "arrived_ns": arrived_ns}
        self.leases.append(self.lease_type(self, asked.arrays))
        return self.leases[-1]  # type: ignore[no-any-return]

    def first_piece(self, ns: int, klass: Klass) -> None:
        assert ns > 0
        self.sent.append(0)

    def next_piece(self, ns: int, tokens: int, klass: Klass) -> None:
        assert ns >= 0
        self.sent.append(tokens)

    def finish(self, outcome: str, total_ns: int, klass: Klass, answer: Answer | None = None, rows: int = 0) -> None:
        assert total_ns > 0
        assert (answer is not None and rows > 0) == (outcome == "ok")
        self.finished.append(outcome)
        self.classes.append(str(klass))


@dataclass
class Reply:
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The body has it and nothing else."""
        found = self.json()
        assert list(found) == ["error"]
        return found["error"]


class Caller:
    """Sends requests to an HttpApp whose other routes read a body and answer 299: by ASGI alone, or as a client of the
    protocol.

    `way`: "asgi", or "direct" for the HTTP protocol, which takes plain requests the fast path. `options`: of Resources.
    """

    def __init__(self, model: Echo, way: str, **options: Any) -> None:
        self.model, self.way = model, way
        self.health = Lifecycle()
        self.gone = asyncio.Event()
        self.resources = Resources(LIMITS, **{"auth": Auth(), "connections": lambda: 1, **options})
        self.app = HttpApp(self._other, self.resources)
        self.state = {"catalog": FakeCatalog({"echo": {"1": model, "2": None}}), "health": self.health}

    def connection(self) -> Connection:
        """A new one to the HTTP protocol."""
        return Connection(self.app, self.app.fast_path.take, self.state)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def __call__(
        self, path: str, body: bytes = b"", headers: Mapping[bytes, bytes] = NO_HEADERS, method: str = "POST"
    ) -> Reply:
        lines = [(b"content-length", b"%d" % len(body)), *headers.items()]
        call = self._by_protocol if self.way == "direct" else self._by_asgi
        return await call(path, body, lines, method)

    async def _by_asgi(self, path: str, body: bytes, lines: list[tuple[bytes, bytes]], method: str) -> Reply:
        rest = [body]

        async def receive() -> Message:
            if rest:
                return {"type": "http.request", "body": rest.pop(), "more_body": False}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        return await self.asgi(path, receive, lines, method)

    async def asgi(
        self, path: str, receive: Receive, lines: Sequence[tuple[bytes, bytes]] = CHUNKED, method: str = "POST"
    ) -> Reply:
        """A request by ASGI whose body is what it receives."""
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": lines,
            "state": self.state,
        }  # fmt: skip
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start, *parts = sent
        assert start["type"] == "http.response.start"
        return Reply(start["status"], dict(start["headers"]), b"".join(part["body"] for part in parts))

    async def _by_protocol(self, path: str, body: bytes, lines: list[tuple[bytes, bytes]], method: str) -> Reply:
        connection = self.connection()
        others = self.resources.connections() - 1
        connection.state.connections |= {Connection(self.app) for _ in range(others)}  # type: ignore[arg-type]
        head = b"".join(b"%s: %s\r\n" % line for line in lines)
        connection.send(
            b"%s %s HTTP/1.1\r\nHost: a\r\n%s\r\n%s"
            % (method.encode(), quote(path, safe="/?=&%#").encode(), head, body)
        )
        gone = asyncio.create_task(self.gone.wait())
        wrote = asyncio.create_task(connection.transport.wrote.wait())
        await asyncio.wait([gone, wrote], return_when="FIRST_COMPLETED")
        for task in (gone, wrote):
            task.cancel()
        if self.gone.is_set():
            connection.hang_up()
            return Reply(0, {}, b"")
        await connection.done()
        status, names, text = parsed(connection.transport.written, method)
        return Reply(status, {name.encode(): value.encode("latin-1") for name, value in names.items()}, text)


MakeCaller = Callable[..., Caller]


def body(rows: int = 1, **fields: Any) -> bytes:
    data = [float(n) for n in range(4 * rows)]
    tensor = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor], **fields}).encode()


INFER = "/v2/models/echo/infer"
FRIENDLY = "/predict/echo"
BULK = {X_CLASS: b"best_effort"}
A_TEXT = {b"content-type": b"text/plain"}


def with_code(model: Echo, **code: Any) -> Echo:
    """The model, with `decode` and `present` of its own."""
    return Echo(model.info, replace(model.model, **code))


def of_default_class(model: Echo, klass: str) -> Echo:
    """The model, whose requests are of this class unless they name one."""
    model.info = replace(model.info, batching=model.info.batching.model_copy(update={"default_class": klass}))
    return model
