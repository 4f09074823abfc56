"""The access log: a line per HTTP request, on both ways; probes only where they are asked for."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from app.contract import Served
from app.http.access import PROBES
from app.http.body import ASGIApp, Message, Receive, Scope, Send, given_id
from app.http.prefix import without
from app.observe.logs import ACCESS, fields

log = logging.getLogger(ACCESS)

#: Where the ASGI scope of a request has its Line.
LINE = "starling.line"
_GONE = 499  # nobody reads the answer; as ClientGone has it
_LONGEST_PATH, _LONGEST_NAME = 2048, 256  # characters: a client may send more


@dataclass(slots=True)
class Line:
    """What whoever answers a request knows of it: its id, and the fields of the call that it makes."""

    request_id: bytes | None = None
    call: dict[str, object] = field(default_factory=dict)

    def about(self, request_id: bytes, model: str, served: Served | None, rows: int, klass: str) -> None:
        """It is an inference with a model of this name; `served` None: none that serves.

        `rows` 0: they are not known; `klass` "": the model's default.
        """
        self.request_id = request_id
        self.call["model"] = model[:_LONGEST_NAME]
        if served is not None:
            self.call["version"] = served.info.version
            klass = klass or served.info.batching.default_class
        if rows:
            self.call["rows"] = rows
        if klass:
            self.call["class"] = klass


class AccessLog:
    """Writes the lines. `probes`: of probes, too; `root_path`: the prefix that an ingress may leave on paths."""

    def __init__(self, *, probes: bool = False, root_path: str = "") -> None:
        self._root_path = root_path
        self._left_out = frozenset() if probes else PROBES

    def write(
        self, method: str, path: bytes, status: int, arrived: int, client: tuple[str, int] | None, line: Line
    ) -> None:
        """One line. `path` is as the client sent it, without its query; `arrived`: monotonic nanoseconds."""
        shown = path[:_LONGEST_PATH].decode("ascii", "backslashreplace")
        duration_ms = round((time.monotonic_ns() - arrived) / 1e6, 3)
        told: dict[str, object] = {"method": method, "path": shown, "status": status, "duration_ms": duration_ms}
        if line.request_id is not None:
            told["request_id"] = line.request_id.decode("latin-1")
        if client is not None:
            told["client"] = f"{client[0]}:{client[1]}"
        log.info("%s %s %d", method, shown, status, **fields(**told, **line.call))

    async def around(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `app` answer an HTTP request, and write its line when that is done."""
        if without(self._root_path, scope["path"]) in self._left_out:
            await app(scope, receive, send)
            return
        arrived = time.monotonic_ns()
        status = _GONE
        line = scope[LINE] = Line(given_id(dict(scope["headers"])))

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, watched)
        finally:
            path = scope.get("raw_path") or scope["path"].encode()
            self.write(scope["method"], path, status, arrived, scope.get("client"), line)
