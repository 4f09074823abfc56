"""Many kinds of clients at once, some of which leave: each gets its own answers, and in the end nothing is left.

Then the server is told to stop with requests at the gate, bodies on their way and others coming.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count

from background import eventually

from .examples import Example, example, large
from .server import DEMO, MIB, Reply, Server
from .wire import PATTERNS, Wire, get, infer, once

MODELS = ("gate", "marked", "wide")
MEMORY = 40 * MIB  # to hold all answers of the clients that do not read would take 100 MiB
#: Batches so large that no queue is a long one: where clients leave a long queue, fewer may wait from then on.
BATCH = ("--max-batch", "128")
FLAGS = ("--model", f"echo={DEMO / 'echo'}", "--drain-grace-s", "0.5", "--hang-floor-s", "60", *BATCH)
NUMBERS = count(10)  # every request has one of its own, by which its answer is known


def ask() -> tuple[bytes, Callable[[Reply], bool]]:
    """A request to one of the models, and what tells its own answer."""
    number = next(NUMBERS)
    if number % 10 == 7:
        return infer("gate", [number]), lambda answer: answer.json()["outputs"][0]["data"] == [number]
    if number % 10 == 8:
        return infer("marked", [number, 1]), lambda answer: answer.json()["outputs"][0]["data"] == [number, 1]
    if number % 10 == 9:
        return infer("marked", [-2, number]), lambda answer: answer.status == 500 and b"NaN" in answer.body
    asked = example(number)
    return asked.wire(), asked.answered


async def in_turn(host: str) -> None:
    async with await Wire.open(host) as wire:
        for _ in range(30):
            request, own = ask()
            assert own(await wire.call(request))
            for sent in (Example.packed, Example.chunked):
                asked = example(next(NUMBERS))
                assert asked.answered(await wire.call(sent(asked)))


async def in_a_row(host: str, pattern: Callable[[list[bytes]], list[bytes]]) -> None:
    """Eight requests before the first answer is read; every other round one request alone."""
    async with await Wire.open(host) as wire, await Wire.open(host) as other:
        for turn in range(6):
            asked = [ask() for _ in range(1 if turn % 2 else 8)]
            for piece in pattern([request for request, _ in asked]):
                wire.send(piece)
                await other.seen()
            for _, own in asked:
                assert own(await wire.answer())


async def leave(host: str, clients: int) -> None:
    """Half of them with their last request not whole, half after it; by FIN and by RST. All they sent is read."""
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(await Wire.open(host)) for _ in range(clients)]
        for number, wire in enumerate(wires):
            sent = example(next(NUMBERS)).wire()
            wire.send(sent[: -1 - number % 10] if number % 2 else sent)
        for _ in range(2):  # when the first is answered, those before it have been accepted; then, read
            await once(host, get("/v2/health/live"))
        for number, wire in enumerate(wires):
            wire.reset() if number % 4 < 2 else wire.close()


async def until_refused(host: str) -> int:
    """One request a connection, as the server closes each, until it takes no more. Returns how many."""
    answers = 0
    while True:
        request, own = ask()
        try:
            wire = await Wire.open(host)
        except OSError:
            return answers
        async with wire:
            answer = await wire.call(request)
            assert own(answer)
            assert answer.closes
        answers += 1


async def test_everything_at_once(start: Callable[..., Server]) -> None:
    server: Server = await asyncio.to_thread(start, *MODELS, flags=FLAGS)
    host, gate, memory, files = server.host, server.gate, server.peak_memory(), open_files(server)
    assert gate is not None
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        wires = [await stack.enter_async_context(await Wire.open(host, receive_buffer=4096)) for _ in range(9)]
        holder, *silent = wires
        holder.send(infer("gate", [2]))
        await asyncio.to_thread(gate.wait)
        for wire in silent:  # who ask for 13 MB of answers each, and read none
            wire.send(b"".join(large(next(NUMBERS)).wire() for _ in range(100)))
        staying = [group.create_task(in_turn(host)) for _ in range(16)]
        staying += [group.create_task(in_a_row(host, pattern)) for pattern in PATTERNS.values() for _ in range(3)]
        await leave(host, 100)
        await asyncio.to_thread(eventually, lambda: server.outcomes("echo")["client_gone"] == 100)
        assert not any(task.done() for task in staying)
        gate.open()
        await leave(host, 50)
        await asyncio.wait(staying)
        assert (await holder.answer()).status == 200
    await asyncio.to_thread(eventually, lambda: not left_behind(server))
    # Two more are the pipes of the process that solves tables, if it has been started meanwhile.
    await asyncio.to_thread(eventually, lambda: open_files(server) <= files + 2)
    assert server.peak_memory() - memory < MEMORY
    for model in ("echo", *MODELS):
        assert set(server.outcomes(model)) <= {"ok", "client_gone", "output_not_json"}
    await told_to_stop(server)


async def told_to_stop(server: Server) -> None:
    """With requests at the gate and bodies on their way: all are answered, then all that comes in the grace."""
    gate = server.gate
    assert gate is not None
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        wires = [await stack.enter_async_context(await Wire.open(server.host)) for _ in range(9)]
        wires[0].send(infer("gate", [2]))
        await asyncio.to_thread(gate.wait)
        begun = [(wire, example(next(NUMBERS))) for wire in wires[1:]]
        for wire, asked in begun:
            wire.send(asked.wire()[:-1])
        coming = [group.create_task(until_refused(server.host)) for _ in range(24)]
        await asyncio.to_thread(eventually, lambda: sum(map(server.waiting, ("echo", *MODELS))) >= 24)
        server.tell()
        await asyncio.to_thread(server.line, "draining")
        gate.open()
        for wire, asked in begun:
            answer = await wire.call(asked.wire()[-1:])
            assert asked.answered(answer)
            assert answer.closes
        assert (await wires[0].answer()).closes
        assert min(await asyncio.gather(*coming)) > 0
    assert await asyncio.to_thread(server.ended) == 0
    server.stop()  # all its lines have been read
    assert [line for line in server.lines if any(word in line for word in ("WARNING", "ERROR", "Traceback"))] == []


def left_behind(server: Server) -> int:
    """Rows that wait, and slots in use."""
    return sum(server.waiting(model) + server.slots(model) for model in ("echo", *MODELS))


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))
