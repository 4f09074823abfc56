"""Control routes: each answers what its protocol says, and every failure is exactly {"error": message}."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.contract import IndexEntry
from app.errors import BadRequest, QueueFull, Unauthorized
from app.http.answers import header_list
from app.http.auth import Auth
from app.http.errors import error_parts, install_error_handlers
from app.http.keys import keys_of
from app.http.routes import control

from ..catalog import FakeCatalog, FakeServed, client, served, spec

MASK = spec("mask", "BOOL", "tokens", mask_of="ids")  # which no client sends
TEXT = served(
    "text", (MASK, spec("ids", "INT64", "tokens"), spec("note", "BYTES", 1)), (spec("v", "FP32", 3), spec("n", "INT32"))
)


def plain(name: str, version: str = "1") -> FakeServed:
    return served(name, (spec("x", "FP32", 4),), (spec("y", "FP32", 4),), version)


def make_app() -> FastAPI:
    app = FastAPI()
    app.include_router(control.router)
    install_error_handlers(app, Counter())

    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("a secret of the inside")

    @app.get("/full")
    async def full() -> None:
        raise QueueFull("the queue is full", retry_after_s=3)

    return app


@pytest.fixture
def catalog() -> FakeCatalog:
    models: dict[str, Any] = {
        "echo": {"1": plain("echo"), "2": plain("echo", "2"), "3": None}, "text": {"1": TEXT},
        "stats": {"1": plain("stats")}, "broken": {"1": None},
    }  # fmt: skip
    entries = [IndexEntry("echo", "1", "READY"), IndexEntry("broken", "1", "UNAVAILABLE", "model.toml: no inputs")]
    return FakeCatalog(models, entries)


@pytest.fixture
async def http(catalog: FakeCatalog) -> AsyncIterator[httpx.AsyncClient]:
    def metrics() -> tuple[bytes, str]:
        return b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"

    async with client(make_app(), catalog=catalog, metrics=metrics) as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v2/models/text", {
            "name": "text", "versions": ["1"], "platform": "pytorch",
            "inputs": [
                {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
                {"name": "note", "datatype": "BYTES", "shape": [-1, 1]},
            ],
            "outputs": [
                {"name": "v", "datatype": "FP32", "shape": [-1, 3]}, {"name": "n", "datatype": "INT32", "shape": [-1]},
            ],
        }),
        ("/v2/models/text/config", {
            "name": "text", "platform": "pytorch", "max_batch_size": 32,
            "input": [
                {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]},
                {"name": "note", "data_type": "TYPE_STRING", "dims": [1]},
            ],
            "output": [
                {"name": "v", "data_type": "TYPE_FP32", "dims": [3]},
                {"name": "n", "data_type": "TYPE_INT32", "dims": [1]},  # PyTriton's client takes none without
            ],
            "dynamic_batching": {}, "parameters": {"max_request_rows": {"string_value": "1024"}},
        }),
        ("/v1/models/echo", {
            "name": "echo", "ready": True, "id": "echo", "object": "model", "created": 1, "owned_by": "starling",
        }),
    ],
)  # fmt: skip
async def test_what_a_model_is(
    http: httpx.AsyncClient, path: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "time", SimpleNamespace(time=lambda: 1.5))
    assert (await http.get(path)).json() == answer
    assert (await http.get("/v2/models/echo/versions/1")).json()["versions"] == ["1", "2"]
    assert (await http.get("/v2/models/echo/versions/2/config")).json()["name"] == "echo"


@pytest.mark.parametrize("path", ["/v2/models/{}/versions/1/ready", "/v1/models/{}"])
@pytest.mark.parametrize(("model", "status"), [("echo", 200), ("broken", 503), ("nobody", 404)])
async def test_readiness_answers_head_as_get(http: httpx.AsyncClient, path: str, model: str, status: int) -> None:
    got, headed = await http.get(path.format(model)), await http.head(path.format(model))
    for answer in (got, headed):
        answer.headers.pop("retry-after", None)  # it is random
    assert (headed.status_code, headed.headers) == (got.status_code, got.headers)
    assert (headed.status_code, headed.content) == (status, b"")
    if "v2" in path and status != 404:
        assert got.json() == {"name": model, "ready": status == 200}


ABOUT = [f"/v2/models/echo{version}{about}" for version in ("", "/versions/1")
         for about in ("", "/config", "/stats", "/ready")]  # fmt: skip


@pytest.mark.parametrize("path", ["/v2", "/v2/models", "/v1/models", "/metrics", "/v2/models/stats", *ABOUT])
async def test_what_answers_get_answers_head(http: httpx.AsyncClient, path: str) -> None:
    got, headed = await http.get(path), await http.head(path)
    assert (headed.status_code, headed.headers, headed.content) == (200, got.headers, b"")


async def test_statistics_and_metrics(http: httpx.AsyncClient) -> None:
    answer = await http.get("/metrics")
    assert (answer.text, answer.headers["content-type"]) == ("up 1\n", "text/plain; version=0.0.4; charset=utf-8")
    everything = (await http.get("/v2/models/stats")).json()["model_stats"]
    assert [one["name"] for one in everything] == ["echo", "echo", "text", "stats"]
    for path, versions in (("/v2/models/echo/stats", ["1", "2"]), ("/v2/models/echo/versions/2/stats", ["2"])):
        assert [one["version"] for one in (await http.get(path)).json()["model_stats"]] == versions
    assert (await http.get("/v2/models/broken/stats")).status_code == 503
    # a model of this name is reached by its version
    assert (await http.get("/v2/models/stats/versions/1")).json()["name"] == "stats"
    assert (await http.get("/v2/models/stats/ready")).json() == {"name": "stats", "ready": True}


def noting_thread(work: Callable[..., Any], threads: set[int]) -> Callable[..., Any]:
    def noted(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return work(*args)

    return noted


@pytest.mark.parametrize("body", [b"", b" \n"])
async def test_index_is_a_list_of_everything(
    http: httpx.AsyncClient, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await http.post("/v2/repository/index", content=body)).json() == [
        {"name": "echo", "version": "1", "state": "READY", "reason": ""},
        {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "model.toml: no inputs"},
    ]
    asked, threads = b'{"ready": true}', set[int]()
    for name in ("inflate", "load_json"):
        monkeypatch.setattr(control, name, noting_thread(getattr(control, name), threads))
    for content, encoding in ((asked, "identity"), (gzip.compress(asked), "gzip")):
        answer = await http.post("/v2/repository/index", content=content, headers={"Content-Encoding": encoding})
        assert [line["name"] for line in answer.json()] == ["echo"]
    assert (await http.post("/v2/repository/index", headers={"Content-Encoding": "br"})).status_code == 415
    assert threading.get_ident() not in threads, "the loop would stand still meanwhile"


async def test_load_and_unload(http: httpx.AsyncClient, catalog: FakeCatalog) -> None:
    assert (await http.post("/v2/repository/models/echo/load")).json() == {"name": "echo", "load": True}
    assert (await http.post("/v2/repository/models/echo/load", content=b'{"parameters":{}}')).status_code == 200
    catalog.entries.append(IndexEntry("echo", "2", "READY", "not read again: net"))
    answer = await http.post("/v2/repository/models/echo/load")
    assert answer.json() == {"name": "echo", "load": True, "warning": "not read again: net"}
    dependents = b'{"parameters":{"unload_dependents":true}}'
    answer = await http.post("/v2/repository/models/text/unload", content=dependents)
    assert answer.json() == {"name": "text", "unload": True}
    assert (catalog.loaded, catalog.unloaded) == (["echo"] * 3, ["text"])


@pytest.mark.parametrize("model", ["echo", "nobody"])
@pytest.mark.parametrize("step", ["load", "unload"])
async def test_control_is_off_unless_asked_for(catalog: FakeCatalog, step: str, model: str) -> None:
    """Which is told before the body is read and the model is looked for; the index is open."""
    path = f"/v2/repository/models/{model}/{step}"
    async with client(make_app(), catalog=catalog, auth=Auth()) as http:
        answer = await http.post(path, content=b"{")
        assert (answer.status_code, "--model-control" in answer.json()["error"]) == (403, True)
        assert (await http.post("/v2/repository/index")).status_code == 200
    admin = Auth(admin=keys_of("admin_key", "sesame", None))
    async with client(make_app(), catalog=catalog, auth=admin) as http:
        for headers in ({}, {"X-API-Key": "open"}, {"Authorization": "Basic sesame"}):
            answer = await http.post(path, content=b"{", headers=headers)
            assert (answer.status_code, "admin key" in answer.json()["error"]) == (401, True)
        for headers in ({"X-API-Key": "sesame"}, {"Authorization": "Bearer sesame"}):
            assert (await http.post(path, headers=headers)).status_code == (200 if model == "echo" else 404)
    assert (catalog.loaded + catalog.unloaded) == (["echo", "echo"] if model == "echo" else [])


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("models/nobody/load", b"", 404, "unknown model 'nobody'"),
        ("models/broken/load", b"", 400, "model.toml: inputs: expected a list"),
        ("models/echo/load", b'{"parameters": {"config": "e30="}}', 400, "parameters.config: overriding a model's"),
        ("models/echo/load", b'{"parameters": {"file:1/a": "e30="}}', 400, "parameters.file:1/a: overriding a model's"),
        ("models/text/unload", b'{"parameters": {"unload_dependents": "x"}}', 400,
         "parameters.unload_dependents: expected true or false, got 'x'"),
        ("index", b"[]", 400, "body: expected an object, got []"),
        ("index", b'{"ready": "yes"}', 400, "body.ready: expected true or false, got 'yes'"),
        ("index", b'{"ready": 1}', 400, "body.ready: expected true or false, got 1"),
        ("models/echo/load", b'{"parameters": 5}', 400, "body.parameters: expected "),
        ("index", b"[" * 5000, 400, "body: "),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, catalog: FakeCatalog, path: str, body: bytes, status: int, error: str
) -> None:
    answer = await http.post(f"/v2/repository/{path}", content=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert answer.json()["error"].startswith(error)
    assert catalog.loaded + catalog.unloaded == []


NAMES = ["a" * 30_000, "a%00b", "%2e%2e", "%ff%fe", "%ed%a0%80", "a%2fb", "%0a"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:10])
async def test_names_that_no_model_can_have(http: httpx.AsyncClient, name: str) -> None:
    paths = [f"/v2/models/{name}{version}" for version in ("", "/versions/1")]
    paths += [f"/v2/models/echo/versions/{name}", f"/v1/models/{name}"]
    paths += [f"{path}/{about}" for path in paths[:3] for about in ("ready", "config", "stats")]
    posts = [f"/v2/repository/models/{name}/load", f"/v2/repository/models/{name}/unload"]
    for method, path in [*(("GET", path) for path in paths), *(("POST", path) for path in posts)]:
        answer = await http.send(httpx.Request(method, httpx.URL("http://test", raw_path=path.encode())))
        assert (path, answer.status_code, list(answer.json())) == (path, 404, ["error"])
        assert len(str(answer.json()["error"])) < 5000


async def test_a_body_that_does_not_arrive_or_is_too_long(catalog: FakeCatalog) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    long = b" " * (control.MAX_CONTROL_BODY + 1)
    settings = SimpleNamespace(body_timeout_s=0.0)
    async with client(make_app(), catalog=catalog, settings=settings) as opened:
        for content, status in ((stuck(), 408), (long, 413)):
            answer = await opened.post("/v2/repository/index", content=content)
            assert (answer.status_code, "connection" in answer.headers) == (status, status == 408)  # which it closes


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/nowhere", 404, "no such route: /v1/nowhere"),
        ("POST", "/v1/chat/completions/", 404, "no such route: /v1/chat/completions/"),
        ("GET", "/v1/models/nobody", 404, "unknown model 'nobody'"),
        ("DELETE", "/v1/models/echo", 405, "DELETE is not allowed on /v1/models/echo"),
    ],
)
async def test_errors_under_v1_have_the_form_of_openai(
    http: httpx.AsyncClient, method: str, path: str, status: int, message: str
) -> None:
    answer = await http.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, sorted(error)) == (status, ["code", "message", "param", "type"])
    assert (error["message"][: len(message)], error["type"]) == (message, "invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, "no such route: /nowhere"),
        ("POST", "/chat/completions", 404, "no such route: /chat/completions"),
        ("GET", "/v2/models/echo/versions/9", 404, "model 'echo' has no version '9'"),
        ("GET", "/v2/models/broken", 503, "model 'broken' version 1 is loading"),
        ("POST", "/v2", 405, "POST is not allowed on /v2"),
        ("POST", "/v2/models/echo/infer/", 404, "no such route: /v2/models/echo/infer/"),
        ("POST", "/v2/cudasharedmemory/unregister", 404, "no such route: /v2/cudasharedmemory/unregister"),
        ("POST", "/v1/models/echo:explain", 404, "no such route: /v1/models/echo:explain"),  # as GET of it
        ("GET", "/v1/models/echo:explain", 404, "unknown model 'echo:explain'"),
        ("GET", "/full", 429, "the queue is full"),
        ("GET", "/boom", 500, "internal error: the server's log has the details"),
    ],
)  # fmt: skip
async def test_errors_have_one_shape(
    http: httpx.AsyncClient, method: str, path: str, status: int, message: str
) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, answer.json()) == (status, {"error": message})
    assert answer.headers.get_list("content-type") == ["application/json"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))


def test_error_parts() -> None:
    status, head, body = error_parts(BadRequest('inputs[0].name: got "\udc80ß"'))
    assert (status, body) == (400, '{"error": "inputs[0].name: got \\"�ß\\""}'.encode())
    assert head == b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    assert len(error_parts(BadRequest("a" * 100_000))[2]) < 5000
    for hint, expected in ((3, {b"3", b"4"}), (8, {b"8", b"9", b"10"}), (None, {b"1", b"2"})):
        refused = QueueFull("full", retry_after_s=hint)
        assert {dict(header_list(error_parts(refused)[1]))[b"retry-after"] for _ in range(200)} == expected
    assert b"\r\nwww-authenticate: Bearer\r\n" in error_parts(Unauthorized("a key is needed"))[1]
    assert b"inside" not in error_parts(RuntimeError("a secret of the inside"))[2]
