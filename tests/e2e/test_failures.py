"""Whatever a body holds, the answer is 4xx, names what is wrong, and leaves the server as it was."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from .server import Server

INFER = "/v2/models/echo/infer"
MIB = 1 << 20


def tensor(**changes: Any) -> dict[str, Any]:
    """A valid input of echo, changed; a value of None leaves the key out."""
    fields = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {key: value for key, value in fields.items() if value is not None}


def body(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor(**changes)]}


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


WRONG: dict[str, tuple[Any, list[str]]] = {
    "input name": (body(name="z"), ["inputs[0].name", "x", "'z'"]),
    "no name": (body(name=None), ["inputs[0].name"]),
    "input twice": ({"inputs": [tensor(), tensor()]}, ["inputs[1] (x).name", "twice"]),
    "no inputs": ({}, ["inputs", "list"]),
    "empty inputs": ({"inputs": []}, ["inputs", "'x'", "missing"]),
    "inputs no list": ({"inputs": {"x": 1}}, ["inputs", "list"]),
    "input no object": ({"inputs": [5]}, ["inputs[0]", "object"]),
    "output name": ({**body(), "outputs": [{"name": "z"}]}, ["outputs[0].name", "y", "'z'"]),
    "output twice": ({**body(), "outputs": [{"name": "y"}, {"name": "y"}]}, ["outputs[1] (y).name", "twice"]),
    "key misspelt": ({"input": [tensor()]}, ["inputs", "list"]),
    "tensor key misspelt": ({"inputs": [{**tensor(datatype=None), "dtype": "FP32"}]}, ["inputs[0]", "datatype"]),
    "id": ({**body(), "id": 7}, ["id", "string"]),
    "rank": (body(shape=[4]), ["inputs[0] (x).shape", "[rows, 4]", "[4]"]),
    "row shape": (body(shape=[1, 5], data=[1] * 5), ["inputs[0] (x).shape", "[1, 5]"]),
    "zero rows": (body(shape=[0, 4], data=[]), ["inputs[0] (x).shape", "at least 1 row"]),
    "negative rows": (body(shape=[-1, 4]), ["inputs[0] (x).shape", "-1"]),
    "negative axis": (body(shape=[1, -4]), ["inputs[0] (x).shape", "-4"]),
    "huge rows": (body(shape=[1 << 62, 4]), ["inputs[0] (x).data", "values"]),
    "huge axis": (body(shape=[1, 1 << 62]), ["inputs[0] (x).shape"]),
    "rows beyond integers": (body(shape=[1e300, 4]), ["inputs[0] (x).shape"]),
    "shape of strings": (body(shape=["1", "4"]), ["inputs[0] (x).shape"]),
    "shape of true": (body(shape=[True, 4]), ["inputs[0] (x).shape"]),
    "shape no list": (body(shape=4), ["inputs[0] (x).shape", "list"]),
    "no shape": (body(shape=None), ["inputs[0] (x).shape", "list"]),
    "datatype": (body(datatype="FP64"), ["inputs[0] (x).datatype", "FP32", "FP64"]),
    "unknown datatype": (body(datatype="FLOAT"), ["inputs[0] (x).datatype", "FLOAT"]),
    "no data": (body(data=None), ["inputs[0] (x).data", "missing"]),
    "too few values": (body(data=[1, 2, 3]), ["inputs[0] (x).data", "expected 4 values", "got 3"]),
    "too many values": (body(data=[1] * 5), ["inputs[0] (x).data", "expected 4 values", "got 5"]),
    "uneven nesting": (body(data=[[1, 2, 3, 4], 5]), ["inputs[0] (x).data", "nested"]),
    "string value": (body(data=[1, 2, 3, "4"]), ["inputs[0] (x).data", "a string"]),
    "null value": (body(data=[1, 2, 3, None]), ["inputs[0] (x).data", "null"]),
    "boolean value": (body(data=[1, 2, 3, True]), ["inputs[0] (x).data", "boolean"]),
    "object value": (body(data=[1, 2, 3, {}]), ["inputs[0] (x).data", "an object"]),
    "data no list": (body(data=4), ["inputs[0] (x).data", "list"]),
    "value too large": (body(data=[1, 2, 3, 1e39]), ["inputs[0] (x).data", "out of range"]),
    "NaN": (body(data=[1, 2, 3, float("nan")]), ["inputs[0] (x).data", "NaN"]),
    "Infinity": (body(data=[1, 2, 3, float("inf")]), ["inputs[0] (x).data", "Infinity"]),
    "binary size without bytes": (body(data=None, parameters={"binary_data_size": 16}), ["inputs[0]", "16 bytes"]),
    "shared memory": (
        body(parameters={"shared_memory_region": "a"}),
        ["inputs[0] (x).parameters.shared_memory_region"],
    ),
    "sequence": ({**body(), "parameters": {"sequence_id": 5}}, ["parameters.sequence_id", "not supported"]),
    "sequence start": ({**body(), "parameters": {"sequence_start": True}}, ["parameters.sequence_start"]),
    "priority": ({**body(), "parameters": {"priority": "high"}}, ["parameters.priority", "high"]),
    "negative timeout": ({**body(), "parameters": {"timeout": -5}}, ["parameters.timeout", "-5"]),
    "parameters": ({**body(), "parameters": [1]}, ["parameters", "object"]),
    "more rows than the queue": (body(shape=[1025, 4], data=[0] * 4100), ["1025 rows", "1024"]),
    "binary output": ({**body(), "parameters": {"binary_data_output": 1}}, ["parameters.binary_data_output"]),
    "no object": ([1, 2], ["body", "object"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_json(server: Server, case: str) -> None:
    wrong, words = WRONG[case]
    answer = server.post(INFER, wrong)
    assert answer.status == 400
    assert [word for word in words if word not in answer.error] == [], answer.error


RAW: dict[str, bytes] = {
    "empty": b"",
    "cut short": json.dumps(body()).encode()[:-3],
    "overlong": json.dumps(body()).encode() + b"}",
    "not JSON": b"\x00\xff" * 50,
    "not UTF-8": b'{"inputs": "\xff\xfe"}',
    "lone surrogate": rb'{"inputs": [], "id": "\ud800"}',
    "nested": b'{"inputs": ' + nested(100_000).encode() + b"}",
    "nested, not closed": b"[" * 500_000,
    "nested objects": b'{"a":' * 100_000,
    "a number of many digits": b'{"inputs": ' + b"9" * 100_000 + b"}",
}


@pytest.mark.parametrize("case", RAW)
def test_what_is_not_a_request(server: Server, case: str) -> None:
    answer = server.post(INFER, RAW[case])
    assert answer.status == 400
    assert answer.error.startswith(("body: ", "inputs"))
    assert len(answer.body) < 1000


# Around the depth at which parsers, and Python's repr, give up.
@pytest.mark.parametrize("depth", [200, 800, 960, 990, 1010, 1020, 1030])
@pytest.mark.parametrize(
    "place",
    [
        '{"inputs": %s}',
        '{"inputs": [], "id": %s}',
        '{"inputs": [], "parameters": %s}',
        '{"inputs": [], "parameters": {"priority": %s}}',
        '{"inputs": [], "parameters": {"binary_data_output": %s}}',
        '{"inputs": [{"name": %s}]}',
        '{"inputs": [{"name": "x", "datatype": %s}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": %s}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [%s, 4]}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, %s]}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": %s}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": %s}}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [NaN, %s]}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}],'
        ' "outputs": [{"name": %s}]}',
    ],
)
def test_deep_nesting_anywhere(server: Server, place: str, depth: int) -> None:
    answer = server.post(INFER, (place % nested(depth)).encode())
    assert answer.status == 400, answer.error
    assert len(answer.body) < 5000


def test_messages_stay_short(server: Server) -> None:
    answer = server.post(INFER, body(shape=[1] * 200_000))
    assert answer.status == 400
    assert len(answer.body) < 5000


FLOATS = np.arange(8, dtype="<f4").tobytes()


def binary(size: int = 32, rows: int = 2) -> bytes:
    return json.dumps(body(shape=[rows, 4], data=None, parameters={"binary_data_size": size})).encode()


@pytest.mark.parametrize(
    ("head", "tail", "length", "words"),
    [
        (binary(), FLOATS[:-1], None, ["inputs[0]", "31 left"]),
        (binary(), FLOATS + b"z", None, ["1 bytes are left over"]),
        (binary(size=28), FLOATS, None, ["inputs[0]", "expected 32 bytes", "got 28"]),
        (binary(rows=3), FLOATS, None, ["inputs[0]", "expected 48 bytes"]),
        (binary(size=-1), FLOATS, None, ["inputs[0] (x).parameters.binary_data_size"]),
        (binary(size=1 << 60), FLOATS, None, ["inputs[0] (x).parameters.binary_data_size"]),
        (binary(rows=1 << 60), FLOATS, None, ["inputs[0]", "expected"]),
        (binary(), FLOATS, "5000", ["Inference-Header-Content-Length", "5000"]),
        (binary(), FLOATS, "-1", ["Inference-Header-Content-Length", "'-1'"]),
        (binary(), FLOATS, "many", ["Inference-Header-Content-Length", "'many'"]),
        (binary(), FLOATS, "9" * 100, ["Inference-Header-Content-Length"]),
        (binary(), FLOATS, str(len(binary()) - 1), ["JSON"]),
        (binary(), FLOATS, str(len(binary()) + 1), ["JSON"]),
        (binary(), FLOATS, "0", ["body", "multiple of 16"]),
    ],
)
def test_wrong_binary(server: Server, head: bytes, tail: bytes, length: str | None, words: list[str]) -> None:
    answer = server.post(INFER, head + tail, {"Inference-Header-Content-Length": length or str(len(head))})
    assert answer.status == 400
    assert [word for word in words if word not in answer.error] == [], answer.error


GOOD = json.dumps(body()).encode()


@pytest.mark.parametrize(
    ("encoding", "sent", "status", "words"),
    [
        ("gzip", GOOD, 400, ["gzip"]),
        ("gzip", gzip.compress(GOOD)[:-6], 400, ["truncated gzip"]),
        ("gzip", gzip.compress(GOOD) + b"more", 400, ["after the end"]),
        ("gzip", b"", 400, ["gzip"]),
        ("deflate", GOOD, 400, ["deflate"]),
        ("deflate", zlib.compress(GOOD)[:-2], 400, ["truncated deflate"]),
        ("br", GOOD, 415, ["Content-Encoding", "'br'"]),
        ("gzip, gzip", GOOD, 415, ["Content-Encoding"]),
        ("gzip", gzip.compress(bytes(5 * MIB)), 413, ["4194304"]),
    ],
)
def test_wrong_compression(server: Server, encoding: str, sent: bytes, status: int, words: list[str]) -> None:
    answer = server.post(INFER, sent, {"Content-Encoding": encoding})
    assert answer.status == status
    assert [word for word in words if word not in answer.error] == [], answer.error


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", INFER, 405, "POST"),
        ("PUT", "/predict/echo", 405, "POST"),
        ("DELETE", "/v1/models/echo:predict", 405, "POST"),
        ("POST", "/v2/health/live", 405, "GET, HEAD"),
        ("GET", "/v2/repository/index", 405, "POST"),
        ("GET", "/nowhere", 404, None),
        ("POST", "/v2/models/nobody/infer", 404, None),
        ("POST", "/v2/models/echo/versions/7/infer", 404, None),
        ("GET", "/v2/models/nobody", 404, None),
        ("GET", "/v2/models/echo/versions/one", 404, None),
        ("POST", "/v2/repository/models/nobody/load", 404, None),
        ("POST", "/v2/repository/models/nobody/unload", 404, None),
        ("POST", "/v2/models/broken/infer", 503, None),
    ],
)
def test_errors_have_one_form(server: Server, method: str, path: str, status: int, allow: str | None) -> None:
    answer = server.request(method, path, GOOD if method != "GET" else None)
    assert answer.status == status
    assert answer.error
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers.get("allow") == allow
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize(
    ("model", "kind", "sent", "status"),
    [
        ("echo", "image/png", b"\x89PNG\r\n\x1a\n", 415),
        ("echo", "text/plain", b"1 2 3 4", 415),
        ("words", "image/png", b"\x89PNG\r\n\x1a\n", 400),
        ("digits", "image/png", b"\x89PNG\r\n\x1a\nrest", 400),
        ("digits", "image/jpeg", b"\xff\xd8\xff", 400),
        ("digits", "audio/mpeg", b"\xff\xfb", 415),
        ("digits", "application/json", b"[[1]]", 400),
        ("digits", "application/x-npy", b"\x93NUMPY\x01\x00", 400),
        ("digits", "multipart/form-data", b"", 400),
        ("digits", "multipart/form-data; boundary=a", b"--a\r\n\r\n", 400),
    ],
)
def test_friendly_bodies_that_cannot_be_read(server: Server, model: str, kind: str, sent: bytes, status: int) -> None:
    answer = server.post(f"/predict/{model}", sent, {"Content-Type": kind})
    assert answer.status == status, answer.error


def test_nan_in_an_answer(server: Server) -> None:
    answer = server.infer("marked", [[-2, 1]])
    assert (answer.status, "'y'" in answer.error, "binary" in answer.error) == (500, True, True)
    answer = server.infer("marked", [[-2, 1]], binary_data_output=True)
    assert answer.status == 200
    assert np.isnan(np.frombuffer(answer.body[-8:], "<f4")).tolist() == [True, False]


@pytest.mark.parametrize(
    "name", ["a" * 300, "a" * 30_000, "a%00b", "..", "%2e%2e", ".", "%ff%fe", "a%2fb", "%0a", "%20"]
)
def test_names_that_no_model_can_have(server: Server, name: str) -> None:
    gets = [f"/v2/models/{name}", f"/v2/models/{name}/ready", f"/v2/models/{name}/config", f"/v2/models/{name}/stats"]
    gets += [f"/v2/models/echo/versions/{name}", f"/v1/models/{name}", f"/{name}"]
    posts = [f"/v2/models/{name}/infer", f"/v2/models/echo/versions/{name}/infer", f"/v1/models/{name}:predict"]
    posts += [f"/predict/{name}", f"/v2/repository/models/{name}/load", f"/v2/repository/models/{name}/unload"]
    for method, path in [*(("GET", path) for path in gets), *(("POST", path) for path in posts)]:
        answer = server.request(method, path, b"{}" if method == "POST" else None)
        assert (method, path, answer.status) == (method, path, 404)
        assert len(answer.error) < 5000


def test_a_model_that_fails_is_logged_once(start: Callable[..., Server]) -> None:
    """With the first request's id, and a traceback that begins in the model's own file."""
    server = start("marked", "narrow")
    for number in range(5):
        assert server.infer("marked", [[-1, number]], {"X-Request-ID": f"r-{number}"}).status == 500
    assert server.infer("narrow", [[1]]).status == 200
    assert server.stop() == 0  # after which all its lines have been read
    told = [number for number, line in enumerate(server.lines) if "WARNING" in line or "ERROR" in line]
    assert len(told) == 1
    line, *trace = server.lines[told[0] :]
    assert "WARNING starling.http: model marked version 1, request r-0: " in line
    assert trace[0] == "  Traceback (most recent call last):"
    assert "marked/model.py" in trace[1]
    assert [line for line in trace if line.startswith("    File")] == [trace[1]]


def test_many_wrong_bodies_at_once(server: Server, threads: ThreadPoolExecutor) -> None:
    wrong = [json.dumps(sent).encode() for sent, _ in WRONG.values()]
    statuses = list(threads.map(lambda sent: server.post(INFER, sent).status, wrong * 4))
    assert set(statuses) == {400}
    assert server.infer("echo", [[1, 2, 3, 4]]).json()["outputs"][0]["data"] == [1, 2, 3, 4]
    assert server.slots("echo") == 0
    assert [line for line in server.lines if "unexpected error" in line] == []
