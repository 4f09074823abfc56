"""What clients and operators do to a server that it must survive, on a schedule that a seed fixes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError, Server

MODEL = "soak"
MARKER = 1e30  # the first value of a row on which the model fails; its model.py has the same
WIDTH = 64
#: Mean seconds between two faults of a kind. In a short soak each kind comes about four times.
GAPS_S = {"leave": 1.0, "leave early": 2.0, "bad row": 1.0, "bad shape": 4.0, "bad JSON": 4.0, "no model": 4.0}
RELOAD_S = 15.0
#: What each request that is wrong must be answered.
STATUS = {"bad row": 500, "bad shape": 400, "bad JSON": 400, "no model": 404}


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


def schedule(seconds: float, seed: int) -> list[Fault]:
    """Poisson arrivals of each kind, in order of time; the same for the same arguments."""
    found = []
    for kind, gap_s in {**GAPS_S, "reload": RELOAD_S}.items():
        draw = random.Random(f"{seed} {kind}")
        mean_s = min(gap_s, seconds / 4)
        at_s = draw.uniform(0, mean_s)  # so that there is one at least
        while at_s < seconds:
            found.append(Fault(at_s, kind))
            at_s += draw.expovariate(1 / mean_s)
    return sorted(found)


def body(first: float = 1.0, width: int = WIDTH) -> bytes:
    data = [first] + [0.5] * (width - 1)
    tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


async def inject(server: Server, faults: list[Fault], told: Told) -> None:
    """Do each fault to the server at its time, beside one another where they take long."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - loop.time()))
            group.create_task(_DO[fault.kind](server, fault.kind, told))


async def rehearse(server: Server, reloads: int) -> None:
    """Each fault many times before the load: what a process keeps of its first ones is not growth.

    Measured alone, memory stood after 20 reloads and after 600 clients that had left, 5 and 4 MiB higher.
    """
    told = Told()
    for kind, do in _DO.items():
        for _ in range(reloads if kind == "reload" else 10 * reloads):
            await do(server, kind, told)
    if told.wrong:
        raise MeasurementError(f"not answered as they must be: {dict(told.wrong)}")


async def _leave(server: Server, kind: str, told: Told) -> None:
    """Ask and hang up: with the whole request sent, or in the middle of it."""
    payload = body()
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(payload)}\r\n\r\n"
    request = head.encode() + payload
    _, writer = await asyncio.open_connection(LOOPBACK, server.port)
    writer.write(request if kind == "leave" else request[: len(request) // 2])
    await writer.drain()
    writer.transport.abort()
    told.sent[kind] += 1


async def _ask_wrongly(server: Server, kind: str, told: Told) -> None:
    path = f"/v2/models/{'nobody' if kind == 'no model' else MODEL}/infer"
    payloads = {
        "bad row": body(MARKER),
        "bad shape": body(width=WIDTH - 1),
        "bad JSON": b'{"inputs": [',
        "no model": body(),
    }
    status, _, _ = await asyncio.to_thread(server.call, "POST", path, payloads[kind])
    told.sent[kind] += 1
    if status != STATUS[kind]:
        told.wrong[f"{kind}: {status} instead of {STATUS[kind]}"] += 1


async def _reload(server: Server, kind: str, told: Told) -> None:
    """Load the model again while it serves: a new version takes the calls, the old one ends those that it has."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    status, _, text = await asyncio.to_thread(server.call, "POST", f"/v2/repository/models/{MODEL}/load", b"{}")
    told.sent[kind] += 1
    told.reloads_s.append(loop.time() - began_s)
    if status != 200:
        told.wrong[f"{kind}: {status} {text[:80]!r}"] += 1


_DO: dict[str, Callable[[Server, str, Told], Coroutine[Any, Any, None]]] = {
    "leave": _leave,
    "leave early": _leave,
    "reload": _reload,
    **dict.fromkeys(STATUS, _ask_wrongly),
}
