"""Every answer is made of its own input, whatever it was batched with."""

from __future__ import annotations

import asyncio
import json
import struct

import numpy as np

from .server import Server
from .wire import Wire

CALLS = 20_000
CONNECTIONS = 64


def numbers(call: int) -> list[int]:
    """Four numbers that no other call has, exact in float32."""
    return [call, call + 1_000_000, call + 2_000_000, call + 3_000_000]


def binary(call: int) -> tuple[bytes, bytes]:
    """A binary request, and the end of its answer."""
    raw = struct.pack("<4f", *numbers(call))
    head = (
        b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","parameters":{"binary_data_size":16}}],'
        b'"parameters":{"binary_data_output":true}}'
    )
    return (
        b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\n"
        b"Content-Length: %d\r\n\r\n%s%s" % (len(head), len(head) + 16, head, raw),
        raw,
    )


def as_json(call: int) -> tuple[bytes, bytes]:
    values = ",".join(f"{n}.0" for n in numbers(call)).encode()
    body = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[%s]}]}' % values
    request = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    return request, b'"data":[%s]}]}' % values


async def test_echo_hammered(server: Server) -> None:
    calls = iter(range(CALLS))
    wrong: list[tuple[int, bytes]] = []
    answered = 0

    async def client() -> None:
        nonlocal answered
        async with await Wire.open(server.host) as wire:
            for call in calls:
                request, expected = binary(call) if call % 2 else as_json(call)
                answer = await wire.call(request)
                answered += 1
                if answer.status != 200 or not answer.body.endswith(expected):
                    wrong.append((call, answer.body))

    batches = 'nv_inference_exec_count{model="echo",version="1"}'
    before = await asyncio.to_thread(server.metric, batches)
    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    assert (answered, wrong[:3]) == (CALLS, [])
    ran = await asyncio.to_thread(server.metric, batches) - before
    assert ran < CALLS  # they were batched
    assert await asyncio.to_thread(server.slots, "echo") == 0


async def test_rows_of_mixed_calls(server: Server) -> None:
    """Calls of one to nine rows of several lengths, by chance in one batch: each keeps its rows and its length."""
    random = np.random.default_rng(7)

    async def client(number: int) -> bool:
        async with await Wire.open(server.host) as wire:
            for turn in range(40):
                rows, length = 1 + (number + turn) % 9, int(random.integers(1, 17))
                ids = random.integers(0, 1 << 40, (rows, length))
                mask = random.integers(0, 2, (rows, length))
                tensors = [
                    {"name": name, "shape": [rows, length], "datatype": "INT64", "data": values.ravel().tolist()}
                    for name, values in (("ids", ids), ("mask", mask))
                ]
                body = json.dumps({"inputs": tensors}).encode()
                answer = await wire.call(
                    b"POST /v2/models/tokens/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(body), body)
                )
                assert answer.status == 200, answer.body
                doubled, total = json.loads(answer.body)["outputs"]
                if doubled["shape"] != [rows, length] or doubled["data"] != (ids * 2).ravel().tolist():
                    return False
                if total["data"] != (ids * mask).sum(axis=1).tolist():
                    return False
        return True

    assert all(await asyncio.gather(*map(client, range(32))))
