"""All that clients do to a server, at the same time: each gets its own answers, and in the end nothing is left.

First the model `gate` holds the one worker, so that all that is sent waits while some of its clients leave. Then the
gate opens and all goes on at once. In the end the server is told to stop with requests at the gate and others coming.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from itertools import count, pairwise

from .examples import Example, example, large
from .server import DEMO, MIB, Server, eventually
from .wire import PATTERNS, Answer, Wire, get, infer, once

MODELS = ("gate", "marked", "wide")
MEMORY = 40 * MIB  # to hold all answers of the clients that do not read would take 100 MiB
FLAGS = ("--model", f"echo={DEMO / 'echo'}", "--drain-grace-s", "0.5", "--hang-floor-s", "60")
Own = Callable[[Answer], bool]


def holds(answer: Answer, *row: float) -> bool:
    return answer.status == 200 and answer.json()["outputs"][0]["data"] == list(row)


def has_nan(answer: Answer) -> bool:
    return answer.status == 500 and b"NaN" in answer.body


class Crowd:
    """Clients of one server. Every request has a number of its own, by which its answer is known."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._numbers: Iterator[int] = count(10)
        self._random = random.Random(7)

    def open(self, **options: int) -> Awaitable[Wire]:
        return Wire.open(self._host, **options)

    def example(self) -> Example:
        return example(next(self._numbers))

    def ask(self) -> tuple[bytes, Own]:
        """A request to one of the models, and what tells its own answer."""
        number = next(self._numbers)
        match number % 10:
            case 7:
                return infer("gate", [number]), lambda answer: holds(answer, number)
            case 8:
                return infer("marked", [number, 1]), lambda answer: holds(answer, number, 1)
            case 9:
                return infer("marked", [-2, number]), has_nan
        asked = example(number)
        return asked.wire(), asked.answered

    def clients(self) -> list[Coroutine[None, None, None]]:
        """Those who stay for their answers."""
        patterns = [*PATTERNS.values(), self._cut]
        return [
            *(self._in_turn(30) for _ in range(16)),
            *(self._in_a_row(pattern, rounds=6) for pattern in patterns for _ in range(3)),
            *(client(10) for client in (self._rare, self._expecting, self._of_old) for _ in range(3)),
        ]

    def _cut(self, requests: list[bytes]) -> list[bytes]:
        """In pieces of any lengths."""
        whole = b"".join(requests)
        cuts = sorted(self._random.sample(range(1, len(whole)), 5))
        return [whole[a:b] for a, b in pairwise([0, *cuts, len(whole)])]

    async def _in_turn(self, turns: int) -> None:
        async with await self.open() as wire:
            for _ in range(turns):
                request, own = self.ask()
                assert own(await wire.call(request))

    async def _in_a_row(self, pattern: Callable[[list[bytes]], list[bytes]], rounds: int) -> None:
        """Eight requests before the first answer is read; every other round one request alone."""
        async with await self.open() as wire, await self.open() as other:
            for turn in range(rounds):
                asked = [self.ask() for _ in range(1 if turn % 2 else 8)]
                for piece in pattern([request for request, _ in asked]):
                    wire.send(piece)
                    await other.seen()
                for _, own in asked:
                    assert own(await wire.answer())

    async def _rare(self, turns: int) -> None:
        async with await self.open() as wire:
            for _ in range(turns):
                for sent in (Example.packed, Example.chunked, Example.wire):
                    asked = self.example()
                    assert asked.answered(await wire.call(sent(asked)))

    async def _expecting(self, turns: int) -> None:
        async with await self.open() as wire:
            for _ in range(turns):
                asked = self.example()
                head, _, body = asked.wire({"Expect": "100-continue"}).partition(b"\r\n\r\n")
                assert (await wire.call(head + b"\r\n\r\n")).status == 100
                assert asked.answered(await wire.call(body))

    async def _of_old(self, turns: int) -> None:
        for _ in range(turns):
            asked = self.example()
            async with await self.open() as wire:
                answer = await wire.call(asked.wire().replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1))
                assert asked.answered(answer)
                assert answer.closes
                assert await wire.ended()

    async def leave(self, clients: int, requests: int = 1) -> None:
        """Half of them with their last request not whole, half after it; by FIN and by RST. All they sent is read."""
        for first in range(0, clients, 25):
            async with AsyncExitStack() as stack:
                wires = [await stack.enter_async_context(await self.open()) for _ in range(25)]
                for number, wire in enumerate(wires, first):
                    sent = b"".join(self.example().wire() for _ in range(requests))
                    wire.send(sent[: -1 - number % 10] if number % 2 else sent)
                for _ in range(2):  # when the first is answered, those before it have been accepted; then, read
                    await once(self._host, get("/v2/health/live"))
                for number, wire in enumerate(wires, first):
                    wire.reset() if number % 4 < 2 else wire.close()

    async def never_read(self, stack: AsyncExitStack) -> list[Wire]:
        """Clients that each ask for 13 MB of answers."""
        requests = b"".join(large(next(self._numbers)).wire() for _ in range(100))
        wires = [await stack.enter_async_context(await self.open(receive_buffer=4096)) for _ in range(8)]
        for wire in wires:
            wire.send(requests)
        return wires

    async def until_refused(self) -> int:
        """One request a connection, as the server closes each, until it takes no more. Returns how many."""
        answers = 0
        while True:
            request, own = self.ask()
            try:
                wire = await self.open()
            except OSError:
                return answers
            async with wire:
                answer = await wire.call(request)
                assert own(answer)
                assert answer.closes
                assert await wire.ended()
            answers += 1


async def test_stress(start: Callable[..., Server]) -> None:
    server: Server = await asyncio.to_thread(start, *MODELS, flags=FLAGS)
    crowd = Crowd(server.host)
    memory, files = server.peak_memory(), open_files(server)
    await everything_at_once(server, crowd)
    await asyncio.to_thread(eventually, lambda: not left_behind(server))
    await asyncio.to_thread(eventually, lambda: open_files(server) <= files)
    assert server.peak_memory() - memory < MEMORY
    for model in ("echo", *MODELS):
        assert set(server.outcomes(model)) <= {"ok", "client_gone", "output_not_json"}
    await told_to_stop(server, crowd)


async def everything_at_once(server: Server, crowd: Crowd) -> None:
    gate = server.gate
    assert gate is not None
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        holder = await stack.enter_async_context(await crowd.open())
        holder.send(infer("gate", [2]))
        await asyncio.to_thread(gate.wait)
        silent = await crowd.never_read(stack)
        staying = [group.create_task(client) for client in crowd.clients()]
        await crowd.leave(200)
        await asyncio.to_thread(eventually, lambda: server.outcomes("echo")["client_gone"] == 200)
        assert not any(task.done() for task in staying)
        gate.open()
        await crowd.leave(50)
        await crowd.leave(50, requests=5)
        await asyncio.wait(staying)
        assert holds(await holder.answer(), 2)
        await asyncio.to_thread(eventually, at_rest(server))  # no more is written to those who do not read
        for number, wire in enumerate(silent):
            wire.reset() if number % 2 else wire.close()


async def told_to_stop(server: Server, crowd: Crowd) -> None:
    """With requests at the gate and bodies on their way: all are answered, then all that comes in the grace."""
    gate = server.gate
    assert gate is not None
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        wires = [await stack.enter_async_context(await crowd.open()) for _ in range(9)]
        wires[0].send(infer("gate", [2]))
        await asyncio.to_thread(gate.wait)
        begun = [(wire, crowd.example()) for wire in wires[1:]]
        for wire, asked in begun:
            wire.send(asked.wire()[:-1])
        coming = [group.create_task(crowd.until_refused()) for _ in range(24)]
        await asyncio.to_thread(eventually, lambda: sum(map(server.waiting, ("echo", *MODELS))) >= 24)
        server.tell()
        await asyncio.to_thread(server.line, "draining")
        await crowd.leave(25)
        gate.open()
        for wire, asked in begun:
            answer = await wire.call(asked.wire()[-1:])
            assert asked.answered(answer)
            assert answer.closes
        held = await wires[0].answer()
        assert holds(held, 2)
        assert held.closes
        assert min(await asyncio.gather(*coming)) > 0
    assert await asyncio.to_thread(server.ended) == 0
    server.stop()  # all its lines have been read
    assert [line for line in server.lines if any(word in line for word in ("WARNING", "ERROR", "Traceback"))] == []


def left_behind(server: Server) -> int:
    """Rows that wait, and slots in use."""
    return sum(server.waiting(model) + server.slots(model) for model in ("echo", *MODELS))


def at_rest(server: Server) -> Callable[[], bool]:
    """A question to ask again and again: whether nothing is at work, and nothing was answered since it was asked."""
    answered = Counter[str]()

    def question() -> bool:
        nonlocal answered
        before, answered = answered, server.outcomes("wide")
        return left_behind(server) == 0 and answered == before

    return question


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))
