"""What clients and operators do to a server that it must survive, on a schedule that a seed fixes."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import MeasurementError, Server

MODEL, TEXT = "soak", "writer"
EXTRA, BROKEN = "extra", "broken"  # loaded and unloaded meanwhile; the second has no code
MARKER = 1e30  # the first value of a row on which the model fails; its model.py has the same
WIDTH = 64
#: Mean seconds between two faults of a kind. In a short soak each kind comes about four times.
GAPS_S = {
    "leave": 1.0, "leave early": 2.0, "bad row": 1.0, "bad shape": 4.0, "bad JSON": 4.0, "no model": 4.0,
    "slow reader": 4.0, "stream": 3.0, "leave stream": 3.0,
    "reload": 15.0, "load and unload": 15.0, "broken load": 15.0,
}  # fmt: skip
SELDOM = {"slow reader", "reload", "load and unload", "broken load"}  # a tenth as often in a rehearsal: they take long
#: What each request that is wrong must be answered.
STATUS = {"bad row": 500, "bad shape": 400, "bad JSON": 400, "no model": 404}
PROMPT = "The ferry"
BESIDE = 8  # calls that are under way when a model is unloaded
ROWS = 200  # of an answer of 0.3 MB
PIECE, PAUSE_S = 1 << 15, 0.1  # bytes that a slow reader takes, and then does not read for
LIMIT_S = 60.0  # for any answer


MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    at_s: float
    kind: str


@dataclass
class Told:
    """What the faults were answered: how many were sent, by kind, and those whose answer was not the right one."""

    sent: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    reloads_s: list[float] = field(default_factory=list)
    text: str = ""  # that the first stream made
    #: Held while `EXTRA` is loaded and unloaded.
    extra: asyncio.Lock = field(default_factory=asyncio.Lock)

    def expect(self, kind: str, right: bool, what: object) -> None:
        """Count an answer as wrong unless it is right."""
        if not right:
            self.wrong[f"{kind}: {what}"[:120]] += 1

    def figures(self) -> dict[str, Any]:
        return {"sent": self.sent, "wrong": self.wrong, "reloads_s": self.reloads_s}


def schedule(seconds: float, seed: int) -> list[Fault]:
    """Poisson arrivals of each kind, in order of time; the same for the same arguments."""
    found = []
    for kind, gap_s in GAPS_S.items():
        draw = random.Random(f"{seed} {kind}")
        mean_s = min(gap_s, seconds / 4)
        at_s = draw.uniform(0, mean_s)  # so that there is one at least
        while at_s < seconds:
            found.append(Fault(at_s, kind))
            at_s += draw.expovariate(1 / mean_s)
    return sorted(found)


def body(first: float = 1.0, width: int = WIDTH, rows: int = 1) -> bytes:
    data = ([first] + [0.5] * (width - 1)) * rows
    tensor = {"name": "x", "shape": [rows, width], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def prepare(repository: Path) -> None:
    """Put the models into the folder that the steady server is started with."""
    shutil.copytree(MODELS / MODEL, repository / MODEL)
    shutil.copytree(ROOT / "loadtest" / "models" / TEXT, repository / TEXT)


def add_models(repository: Path) -> None:
    """Those that are loaded later: a server with a model of its start that cannot be loaded is not ready."""
    shutil.copytree(MODELS / MODEL, repository / EXTRA)
    (repository / BROKEN).mkdir()
    shutil.copy(MODELS / "broken.toml", repository / BROKEN / "model.toml")


async def inject(server: Server, faults: list[Fault], told: Told) -> None:
    """Do each fault to the server at its time, beside one another where they take long."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - loop.time()))
            group.create_task(_do(server, fault.kind, told))


async def _do(server: Server, kind: str, told: Told) -> None:
    """A connection that ends early, an answer that does not come and one that cannot be read count as wrong."""
    try:
        await _DO[kind](server, kind, told)
    except (OSError, EOFError, HTTPException, ValueError, LookupError) as exc:
        told.sent[kind] += 1
        told.expect(kind, False, repr(exc))


async def rehearse(server: Server, reloads: int) -> None:
    """Each fault many times before the load: what a process keeps of its first ones is not growth.

    Measured alone, memory stood after 20 reloads and after 600 clients that had left, 5 and 4 MiB higher.
    """
    told = Told()
    for kind in _DO:
        for _ in range(reloads if kind in SELDOM else 10 * reloads):
            await _do(server, kind, told)
    if told.wrong:
        raise MeasurementError(f"not answered as they must be: {dict(told.wrong)}")


def request(path: str, payload: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


async def _leave(server: Server, kind: str, told: Told) -> None:
    """Ask and hang up: with the whole request sent, in the middle of it, or after the first event of a stream."""
    sent = _stream_request() if kind == "leave stream" else request(f"/v2/models/{MODEL}/infer", body())
    reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
    writer.write(sent[: len(sent) // 2] if kind == "leave early" else sent)
    await writer.drain()
    if kind == "leave stream":
        async with asyncio.timeout(LIMIT_S):
            await reader.readuntil(b"data:")
    writer.transport.abort()
    told.sent[kind] += 1


def _stream_request() -> bytes:
    asked = {"text_input": PROMPT, "parameters": {"temperature": 0}}
    return request(f"/v2/models/{TEXT}/generate_stream", json.dumps(asked).encode())


async def _read_stream(server: Server, kind: str, told: Told) -> None:
    """Read a stream to its end: each makes the text of the first."""
    reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
    writer.write(_stream_request())
    async with asyncio.timeout(LIMIT_S):
        answer = await reader.read(-1)
    writer.close()
    events = [json.loads(line[5:]) for line in answer.splitlines() if line.startswith(b"data:")]
    text = "".join(event.get("text_output", "") for event in events)
    told.sent[kind] += 1
    told.text = told.text or text
    final = bool(events) and events[-1].get("finish_reason")
    told.expect(kind, bool(final and text == told.text), f"{len(events)} events, {answer[-80:]!r}")


async def _read_slowly(server: Server, kind: str, told: Told) -> None:
    """A large answer to a client that reads some of it, pauses, and reads on."""
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE // 4)
        mine.setblocking(False)
        await asyncio.get_running_loop().sock_connect(mine, (LOOPBACK, server.port))
        reader, writer = await asyncio.open_connection(sock=mine, limit=PIECE)
        writer.write(request(f"/v2/models/{MODEL}/infer", body(rows=ROWS)))
        answer = b""
        async with asyncio.timeout(LIMIT_S):
            while piece := await reader.read(PIECE):
                answer += piece
                await asyncio.sleep(PAUSE_S)
        writer.close()
    told.sent[kind] += 1
    head, _, rest = answer.partition(b"\r\n\r\n")
    right = head.startswith(b"HTTP/1.1 200") and json.loads(rest)["outputs"][0]["shape"] == [ROWS, WIDTH]
    told.expect(kind, right, answer[:80])


async def _ask(server: Server, path: str, payload: bytes) -> tuple[int, bytes]:
    status, _, text = await asyncio.to_thread(server.call, "POST", path, payload, timeout_s=LIMIT_S)
    return status, text


async def _ask_wrongly(server: Server, kind: str, told: Told) -> None:
    path = f"/v2/models/{'nobody' if kind == 'no model' else MODEL}/infer"
    payloads = {
        "bad row": body(MARKER),
        "bad shape": body(width=WIDTH - 1),
        "bad JSON": b'{"inputs": [',
        "no model": body(),
    }
    status, _ = await _ask(server, path, payloads[kind])
    told.sent[kind] += 1
    told.expect(kind, status == STATUS[kind], f"{status} instead of {STATUS[kind]}")


async def _control(server: Server, model: str, action: str) -> tuple[int, bytes]:
    return await _ask(server, f"/v2/repository/models/{model}/{action}", b"{}")


async def _reload(server: Server, kind: str, told: Told) -> None:
    """Load the model again while it serves: a new version takes the calls, the old one ends those that it has."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    status, text = await _control(server, MODEL, "load")
    told.sent[kind] += 1
    told.reloads_s.append(loop.time() - began_s)
    told.expect(kind, status == 200, f"{status} {text[:80]!r}")


async def _come_and_go(server: Server, kind: str, told: Told) -> None:
    """Load a model, call it, and unload it under calls, each of which is answered or refused."""
    path = f"/v2/models/{EXTRA}/infer"
    async with told.extra:
        status, text = await _control(server, EXTRA, "load")
        told.expect(kind, status == 200, f"load {status} {text[:80]!r}")
        first = await _ask(server, path, body())
        told.expect(kind, first[0] == 200, f"call {first[0]}")
        calls = [asyncio.create_task(_ask(server, path, body())) for _ in range(BESIDE)]
        status, text = await _control(server, EXTRA, "unload")
        told.expect(kind, status == 200, f"unload {status} {text[:80]!r}")
        for status, text in await asyncio.gather(*calls):
            right = status in (404, 503) or (status == 200 and np.allclose(_values(text), _values(first[1]), atol=1e-5))
            told.expect(kind, right, f"a call beside: {status}")
        status, _ = await _ask(server, path, body())
        told.expect(kind, status in (404, 503), f"call of an unloaded model: {status}")
    told.sent[kind] += 1


def _values(text: bytes) -> Any:
    return json.loads(text)["outputs"][0]["data"]


async def _load_broken(server: Server, kind: str, told: Told) -> None:
    status, text = await _control(server, BROKEN, "load")
    told.sent[kind] += 1
    told.expect(kind, status == 400 and b"nowhere.py" in text, f"{status} {text[:80]!r}")


_DO: dict[str, Callable[[Server, str, Told], Coroutine[Any, Any, None]]] = {
    "leave": _leave,
    "leave early": _leave,
    "leave stream": _leave,
    "stream": _read_stream,
    "slow reader": _read_slowly,
    "reload": _reload,
    "load and unload": _come_and_go,
    "broken load": _load_broken,
    **dict.fromkeys(STATUS, _ask_wrongly),
}
