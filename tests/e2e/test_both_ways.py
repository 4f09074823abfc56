"""Answers, headers, errors and counters are the same on both ways in which an inference request is taken.

The server may take such a request in its HTTP protocol or through ASGI; one of the two servers here has ASGI alone.
Whoever asks cannot tell which way it was: every test here runs on both, and knows one answer.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import ceil

import pytest

from .conftest import Keeper
from .examples import PROTOCOLS, Example, example
from .mistakes import ECHO, MARKED, MARKED_FRIENDLY, MARKED_V1, MISTAKES, TYPED, tensor
from .server import MIB, Server
from .wire import Answer, Wire, post

TIMING = re.compile(r"queue;dur=\d+\.\d{3}, compute;dur=\d+\.\d{3}, total;dur=\d+\.\d{3}")


@pytest.fixture
def server(keeper: Keeper, way: tuple[str, ...]) -> Server:
    return keeper.shared(*way)


def undated(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without the date, which has been looked at."""
    left = dict(headers)
    parsedate_to_datetime(left.pop("date"))
    return left


def check(answer: Answer, asked: Example, request_id: str | None = "mine") -> None:
    """The whole answer to an example that ran alone. `request_id` is the one sent; None: the server makes one."""
    assert (answer.status, answer.body) == (200, asked.answer)
    headers = undated(answer.headers)
    assert TIMING.fullmatch(headers.pop("server-timing"))
    found = headers.pop("x-request-id")
    assert found == request_id if request_id is not None else re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", found)
    assert headers == {**asked.says, "x-batch-size": str(asked.rows), "content-length": str(len(asked.answer))}


def check_error(answer: Answer, status: int, message: str, request_id: str | None = "mine", **extra: str) -> None:
    """The whole answer to a mistake. Of the names of `extra` headers, underscores stand for hyphens.

    `retry_after` is the least that it may say: up to a quarter, rounded up, is added at random.
    """
    body = json.dumps({"error": message}).encode()
    assert (answer.status, answer.body) == (status, body)
    headers = {name.replace("_", "-"): value for name, value in extra.items()}
    headers |= {"content-type": "application/json", "content-length": str(len(body))}
    if request_id is not None:
        headers["x-request-id"] = request_id
    if (least := int(headers.get("retry-after", 0))) and "retry-after" in answer.headers:
        assert least <= int(answer.headers["retry-after"]) <= least + ceil(least / 4)
        headers["retry-after"] = answer.headers["retry-after"]
    assert undated(answer.headers) == headers


def too_much_json(limit: int, got: int, model: str = "echo", floats: int = 4) -> str:
    """The message of a 413 for JSON, of a model of so many floats a row."""
    spec = {"name": "x", "shape": [1, floats], "datatype": "FP32", "parameters": {"binary_data_size": 4 * floats}}
    head = json.dumps({"inputs": [spec]}, separators=(",", ":"))
    return (
        f"body: expected at most {limit} bytes of JSON (--max-json-mib), got {got}; send tensors as binary: "
        f"POST /v2/models/{model}/infer with the header Inference-Header-Content-Length: {len(head)} and the body "
        f"{head} followed by the tensors' bytes, for one row"
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_answers(server: Server, protocol: str) -> None:
    async with await Wire.open(server.host) as wire:
        for number in range(6):
            asked = PROTOCOLS[protocol](number)
            check(await wire.call(asked.wire({"X-Request-ID": "mine"})), asked)


async def test_request_ids(server: Server) -> None:
    asked = example(0)
    async with await Wire.open(server.host) as wire:
        made = [await wire.call(asked.wire()) for _ in range(3)]
        for answer in made:
            check(answer, asked, None)
        assert len({answer.headers["x-request-id"] for answer in made}) == 3
        for bad in ("", "with a space", "long" * 33, "grüße"):
            check(await wire.call(asked.wire({"X-Request-ID": bad})), asked, None)
        for good in ("~!/", "x" * 128):
            check(await wire.call(asked.wire({"x-request-ID": good})), asked, good)
        check(await wire.call(asked.wire({"X-Request-ID": "first", "x-request-id": "mine"})), asked)


@pytest.mark.parametrize(("path", "headers", "body", "status", "message"), MISTAKES)
async def test_mistakes(
    server: Server, path: str, headers: dict[str, str], body: bytes, status: int, message: str
) -> None:
    """Each is told what is wrong, and its connection goes on."""
    async with await Wire.open(server.host) as wire:
        check_error(await wire.call(post(path, body, {**headers, "X-Request-ID": "mine"})), status, message)
        check(await wire.call(example(3).wire({"X-Request-ID": "mine"})), example(3))


async def test_a_model_that_is_not_ready(server: Server) -> None:
    """It is known from the path, so the answer may come before the body; it closes the connection."""
    for path in ("/v2/models/broken/infer", "/v1/models/broken:predict", "/predict/broken"):
        async with await Wire.open(server.host) as wire:
            answer = await wire.call(post(path, b"{}", {"X-Request-ID": "mine"}))
            message = json.loads(answer.body)["error"]
            assert message.startswith("model 'broken' version 1 is unavailable: ")
            check_error(answer, 503, message, retry_after="30", connection="close")
            assert await wire.ended()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_another_method(server: Server, method: str) -> None:
    async with await Wire.open(server.host) as wire:
        sent = b"%s %s HTTP/1.1\r\nHost: a\r\nX-Request-ID: mine\r\n\r\n" % (method.encode(), MARKED.encode())
        check_error(await wire.call(sent), 405, f"{method} {MARKED}: expected POST", allow="POST")
        check(await wire.call(example(3).wire({"X-Request-ID": "mine"})), example(3))


@pytest.mark.parametrize(
    "line",
    [
        "POST /v2/models/%65cho/infer HTTP/1.1", "POST /v2/models/echo/infer?a=b HTTP/1.1",
        "POST http://a/v2/models/echo/infer HTTP/1.1", "\r\nPOST /v2/models/echo/versions/1/infer HTTP/1.1",
    ],
    ids=["percent", "a query", "an absolute URL", "an empty line before"],
)  # fmt: skip
async def test_other_spellings(server: Server, line: str) -> None:
    asked = PROTOCOLS["V2 JSON"](1)
    sent = asked.wire({"x-REQUEST-id": "mine", "Connection": "keep-alive", "Content-Encoding": "identity"})
    async with await Wire.open(server.host) as wire:
        for _ in range(2):
            check(await wire.call(line.encode() + sent[sent.index(b"\r\n") :]), asked)


async def test_compressed_answers(server: Server) -> None:
    """From a kilobyte on, for who accepts it: a request may still be taken in either way."""
    body = tensor(100, 4, [[1, 2, 3, 4]] * 100)
    async with await Wire.open(server.host) as wire:
        plain = await wire.call(post(ECHO, body))
        packed = await wire.call(post(ECHO, body, {"Accept-Encoding": "br, gzip;q=0.5"}))
        small = await wire.call(example(0).wire({"Accept-Encoding": "gzip", "X-Request-ID": "mine"}))
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(packed.body) == plain.body
    check(small, example(0))


def test_counters(server: Server) -> None:
    """What a request counts as, and in how many batches it ran."""
    labels = 'model="marked",version="1"'
    samples = (
        f'starling_request_duration_seconds_count{{class="realtime",{labels}}}',
        f'starling_queue_duration_seconds_count{{class="realtime",{labels}}}',
        f'starling_compute_duration_seconds_count{{class="realtime",{labels}}}',
        f'starling_batch_size_bucket{{class="realtime",le="+Inf",{labels}}}',
        f"nv_inference_request_success{{{labels}}}",
        'nv_inference_request_failure{model="marked",reason="BACKEND",version="1"}',
        f"nv_inference_count{{{labels}}}",
        f"nv_inference_exec_count{{{labels}}}",
    )
    outcomes, before = server.outcomes("marked"), [server.metric(sample) for sample in samples]
    two, one = tensor(2, 2, [1, 2, 3, 4]), b'{"instances":[[1,2]]}'
    sent = [(MARKED, two), (MARKED_V1, one), (MARKED_FRIENDLY, b"[1,2]"), (MARKED, tensor(1, 2, [-2, 0]))]
    sent += [(MARKED, tensor(1, 2, [-1, 0])), (MARKED, b"{}"), (MARKED_V1, b"["), (MARKED, bytes(5 * MIB))]
    assert [server.post(path, body, TYPED).status for path, body in sent] == [200] * 3 + [500] * 2 + [400] * 2 + [413]
    expected = {"ok": 3, "output_not_json": 1, "model_failed": 1, "bad_request": 2, "too_large": 1}
    assert server.outcomes("marked") - outcomes == expected
    assert [server.metric(sample) - old for sample, old in zip(samples, before, strict=True)] == [
        8,
        4,
        4,
        4,
        3,
        1,
        5,
        4,
    ]
