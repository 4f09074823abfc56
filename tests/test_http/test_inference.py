"""The inference path in process: what it takes, what it passes on, and that every call is answered and counted once."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
from collected import Collected, header_of, told
from connections import parsed
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from app.contract import CLASSES, ModelCall
from app.errors import BadRequest, ModelFailed, NotReady
from app.http.codecs.text_codec import TextCodec
from app.http.connection.refusals import RefusalQueue
from app.http.inference_routes import parse_query
from app.http.layers import write_line
from app.http.request import Request
from app.observe.logs import ACCESS
from app.observe.tracing.spans import Tracer

from .catalog import KEY, LOCKED
from .echo import A_TEXT, BULK, FRIENDLY, INFER, Caller, Echo, EchoLease, MakeCaller, body, of_default_class, with_code


@pytest.mark.parametrize(
    ("path", "sent", "answer"),
    [
        (INFER, body(), [0, 1, 2, 3]),
        ("/v2/models/echo/versions/1/infer", body(), [0, 1, 2, 3]),
        ("/v1/models/echo:predict", b'{"instances": [[0, 1, 2, 3]]}', [[0, 1, 2, 3]]),
        ("/v1/models/echo/versions/1:predict", b'{"instances": [[0, 1, 2, 3]]}', [[0, 1, 2, 3]]),
        ("/predict/echo", b"[0, 1, 2, 3]", [0, 1, 2, 3]),
        ("/predict/echo/versions/1", b"[0, 1, 2, 3]", [0, 1, 2, 3]),
    ],
)
async def test_the_paths_it_takes(call: Caller, path: str, sent: bytes, answer: Any) -> None:
    reply = await call(path, sent)
    found = reply.json()
    values = found["outputs"][0]["data"] if "outputs" in found else found.get("predictions", found.get("y"))
    assert (reply.status, values) == (200, answer)
    kind, size = reply.headers[b"content-type"], reply.headers[b"content-length"]
    assert (kind, size) == (b"application/json", b"%d" % len(reply.body))
    assert call.model.finished == ["ok"]


@pytest.mark.parametrize("path", ["/predict/ech%6f", f"{FRIENDLY}#part", f"{FRIENDLY}?priority=2#part"])
async def test_what_a_path_means_does_not_depend_on_the_way(model: Echo, path: str) -> None:
    assert (await Caller(model, "direct")(path, b"[0, 1, 2, 3]")).status == 200


async def test_a_binary_answer(call: Caller) -> None:
    reply = await call(INFER, body(parameters={"binary_data_output": True}))
    assert reply.headers[b"content-type"] == b"application/octet-stream"
    head = int(reply.headers[b"inference-header-content-length"])
    assert json.loads(reply.body[:head])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert len(reply.body) == head + 16


async def test_a_traced_call_has_one_span_however_it_ends(caller: MakeCaller, model: Echo) -> None:
    collected = Collected()
    call = caller(tracer=collected.tracer)
    model_failed = ModelFailed("it raised", cause=ValueError("odd"))
    for fails, full, code in ((None, (), "ok"), (model_failed, (), "model_failed"), (None, CLASSES, "queue_full")):
        model.fails, model.full = fails, frozenset(full)
        reply = await call(f"{FRIENDLY}?priority=2", b"[0, 1, 2, 3]", {b"x-request-id": b"mine"})
        span = collected.one()
        shown = told(span)
        assert reply.headers[b"traceparent"] == header_of(span)
        assert (reply.headers[b"x-request-id"], shown["starling.request_id"]) == (b"mine", "mine")
        assert (span.name, shown["url.path"]) == ("POST /predict/{model}", FRIENDLY)
        assert (shown["starling.model"], shown["starling.outcome"]) == ("echo", code)
    assert model.finished == ["ok", "model_failed", "queue_full"]


@pytest.mark.parametrize("fails", [None, ModelFailed("it raised")])
async def test_a_tracer_that_fails_costs_no_answer(caller: MakeCaller, model: Echo, fails: Exception | None) -> None:
    class Refusing(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise OSError("no space is left")

    model.fails = fails
    reply = await caller(tracer=Tracer(Refusing(), "0"))(INFER, body())
    assert (reply.status, "outputs" in reply.json()) == ((200, True) if fails is None else (500, False))
    assert len(model.finished) == 1


async def test_what_the_lease_is_asked_for_and_the_headers_of_its_answer(call: Caller, model: Echo) -> None:
    parameters = {"priority": 3, "timeout": 700, "total_timeout": 900, "k": 1}
    reply = await call(INFER, body(2, parameters=parameters), {b"x-request-id": b"r-1"})
    assert model.asked.pop("arrived_ns") > 0
    assert model.asked == {
        "rows": 2, "lengths": {}, "own_lengths": None, "klass": "realtime", "priority": 3, "timeout_us": 700,
        "total_timeout_us": 900, "parameters": {"k": 1},
    }  # fmt: skip
    assert (reply.headers[b"x-request-id"], reply.headers[b"x-batch-size"]) == (b"r-1", b"5")
    *timing, total = reply.headers[b"server-timing"].decode().split(", ")
    assert (timing, total[:10]) == (["queue;dur=2.000", "compute;dur=3.000"], "total;dur=")


@pytest.mark.parametrize(
    ("query", "priority", "timeout_us"),
    [
        ("?priority=3&timeout_ms=0.0001", 3, 1),
        ("?timeout%5Fms=1.5", 0, 1500),
        ("?timeout_ms=0&priority=0", 0, None),
    ],
)
async def test_what_a_query_asks_for(call: Caller, query: str, priority: int, timeout_us: int | None) -> None:
    asked = (priority, timeout_us)
    for path, expected in ((FRIENDLY + query, asked), (FRIENDLY + query, asked), (FRIENDLY, (0, None))):
        assert (await call(path, b"[0, 1, 2, 3]")).status == 200  # the second time the target is known
        assert (call.model.asked["priority"], call.model.asked["timeout_us"]) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("timeout=50", "query: expected one of timeout_ms, total_timeout_ms, priority, got 'timeout'"),
        ("priority=1&priority=1", "query: priority is given twice"),
        ("timeout_ms=-1", "query: timeout_ms: expected milliseconds from 0 to 9007199254740, got '-1'"),
        ("%ff" * 500 + "=1", "query: expected one of timeout_ms, total_timeout_ms, priority, got "),
        ("&" * 512 + "priority=1", "query: expected at most 512 bytes, got 522"),
        *((f"{name}={value}", f"query: {name}: expected ") for name in ("timeout_ms", "priority")
          for value in ("", "+1", "1e3", "inf", "1_0", "9" * 14, "9" * 400, "\u0663")),
    ],
)  # fmt: skip
def test_queries_that_are_wrong(query: str, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_query(query.encode())
    assert raised.value.message.startswith(message)
    assert len(raised.value.message) < 200


@pytest.mark.parametrize(
    ("path", "sent", "status", "outcomes"),
    [
        ("/v2/models/nobody/infer", body(), 404, []),
        ("/v2/models/echo/versions/9/infer", body(), 404, []),
        ("/v2/models/echo/versions/2/infer", body(), 503, []),
        (INFER, b"{", 400, ["bad_request"]),
        (INFER, body(9), 400, ["bad_request"]),
        (INFER, b" " * 900, 413, ["too_large"]),
        (INFER, b" " * 1001, 413, ["too_large"]),
        (f"{FRIENDLY}?priority=1&priority=1", b"[0, 1, 2, 3]", 400, ["bad_request"]),
    ],
)
async def test_refusals(call: Caller, path: str, sent: bytes, status: int, outcomes: list[str]) -> None:
    reply = await call(path, sent)
    assert (reply.status, call.model.finished, call.model.asked) == (status, outcomes, {})
    assert reply.error


@pytest.mark.parametrize(("sent", "encoding"), [(b"{", b"identity"), (body(9), b"identity"), (b"no gzip", b"gzip")])
async def test_an_error_holds_no_frames_once_it_is_told(
    call: Caller, monkeypatch: pytest.MonkeyPatch, sent: bytes, encoding: bytes
) -> None:
    """From Python 3.12 on they would keep the body until a garbage collection, up to which many large ones may come."""
    errors: list[Exception] = []
    monkeypatch.setattr(Request, "count_failure", lambda request, error: errors.append(error))
    assert (await call(INFER, sent, headers={b"content-encoding": encoding})).status == 400
    assert [(error.__traceback__, error.__context__) for error in errors] == [(None, None)]


@pytest.mark.parametrize(
    ("path", "status", "closes"), [(INFER, 200, False), ("/predict/nobody", 404, True), ("/nowhere", 299, True)]
)
async def test_a_refusal_before_the_client_is_told_to_send_its_body(
    call: Caller, path: str, status: int, closes: bool
) -> None:
    """It may keep the body back, and its next request would be read as that."""
    reply = await call(path, body(), {b"expect": b"100-continue"})
    assert (reply.status, reply.headers.get(b"connection") == b"close") == (status, closes)


@pytest.mark.parametrize(
    ("header", "parameter", "default", "expected"),
    [
        (None, None, "best_effort", "best_effort"),
        (b"realtime", None, "best_effort", "realtime"),
        (None, "best_effort", "realtime", "best_effort"),
        (b"best_effort", "realtime", "realtime", "realtime"),
        (b"bulk", "realtime", "realtime", "X-Class: expected realtime or best_effort, got 'bulk'"),
        (b"", None, "realtime", "X-Class: expected realtime or best_effort, got ''"),
        (None, ["realtime"], "realtime", "parameters.class: expected realtime or best_effort, got ['realtime']"),
    ],
)
async def test_the_class_of_a_call(
    call: Caller, model: Echo, header: bytes | None, parameter: Any, default: str, expected: str
) -> None:
    """The parameter wins over the header, and that over the model's default."""
    of_default_class(model, default)
    parameters = {} if parameter is None else {"parameters": {"class": parameter, "k": 1}}
    reply = await call(INFER, body(**parameters), {} if header is None else {b"x-class": header})
    if expected not in CLASSES:
        assert (reply.status, reply.error) == (400, expected)
        assert (model.finished, model.classes) == (["bad_request"], ["realtime"])
        return
    assert (reply.status, model.classes, model.asked["klass"]) == (200, [expected], expected)
    assert model.asked["parameters"] == ({"k": 1} if parameters else None)  # the class is no business of the model's


async def test_a_call_is_refused_for_the_queue_of_its_own_class_only(call: Caller, model: Echo) -> None:
    """By its header before the body is looked at."""
    model.full = frozenset({"best_effort"})
    assert (await call(FRIENDLY, b"\xff" * 5000, BULK)).status == 429
    assert (await call(INFER, body())).status == 200
    assert (await call(INFER, body(), BULK)).status == 429
    model.full = frozenset({"realtime"})
    sent = body(parameters={"class": "best_effort"})
    assert (await call(INFER, sent)).status == 429  # it seems to be real time
    assert (await call(INFER, sent, BULK)).status == 200
    assert model.classes == ["best_effort", "realtime", "best_effort", "realtime", "best_effort"]


@pytest.mark.parametrize("spelled", [b'"class"', b'"cl\\u0061ss"'])
async def test_a_body_may_name_real_time_where_best_effort_is_full(call: Caller, model: Echo, spelled: bytes) -> None:
    model.full = frozenset({"best_effort"})
    of_default_class(model, "best_effort")
    sent = body(parameters={"class": "realtime"}).replace(b'"class"', spelled)
    assert (await call(INFER, sent)).status == 200
    assert (await call(INFER, body(parameters={"class": "best_effort"}))).status == 429
    assert (await call(INFER, body())).status == 429
    assert model.classes == ["realtime", "best_effort", "best_effort"]


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
async def test_methods(call: Caller, method: str) -> None:
    reply = await call(INFER, method=method)
    assert (reply.status, reply.headers[b"allow"]) == (405, b"POST")


async def test_a_body_without_a_length(model: Echo) -> None:
    connection = Caller(model, "direct").connection()
    connection.send(b"POST %s HTTP/1.1\r\nHost: a\r\n\r\n" % INFER.encode())
    await connection.done()
    status, _, answer = parsed(connection.transport.written)
    assert (status, b"expected a Content-Length header or a chunked body" in answer) == (411, True)


async def test_an_idle_connection_keeps_no_parsed_body(model: Echo) -> None:
    connection = Caller(model, "direct").connection()
    sent = b'{"model": "nobody", "input": ["so many texts"]}'
    connection.send(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(sent), sent))
    await connection.done()
    assert b"nobody" in connection.transport.written
    gc.collect()
    assert not any(isinstance(one, TextCodec) and "input" in one.body for one in gc.get_objects())


async def test_a_key(caller: MakeCaller) -> None:
    call = caller(auth=LOCKED)
    for headers in ({}, {b"x-api-key": b"Sesame"}, {b"authorization": b"Basic sesame"}):
        for path in (INFER, "/v2", "/metrics"):
            assert (await call(path, body(), headers)).status == 401
    assert (await call(INFER, body(), KEY)).status == 200
    assert (await call("/v2", body(), {b"authorization": b"Bearer sesame"})).status == 299
    for probe in ("/v2/health/live", "/v2/health/ready", "/livez", "/readyz", "/healthz", "/ping"):
        assert (await call(probe, method="GET")).status == 299


async def hang_up(call: Caller, *headers: Mapping[bytes, bytes]) -> None:
    """A client leaves while its rows run."""
    call.model.opened = False
    call.model.ran.clear()
    waiting = asyncio.create_task(call(INFER, body(), *headers))
    await call.model.ran.wait()
    call.gone.set()
    await waiting


def entries(caplog: pytest.LogCaptureFixture) -> Iterator[dict[str, Any]]:
    """What the access log tells."""
    for record in (one for one in caplog.records if one.name == ACCESS):
        fields = dict(record.__dict__["fields"])
        assert fields.pop("duration_ms") >= 0
        assert fields.pop("client") in ("", "127.0.0.1:1")
        assert record.getMessage() == f"{fields['method']} {fields['path']} {fields['status']}"
        yield fields


async def test_the_access_log(caller: MakeCaller, model: Echo, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each request, with what is known of it; none of probes. A client that has gone gets 499."""
    caplog.set_level("INFO", logger=ACCESS)
    call = caller(access_log=True)
    mine = {b"x-request-id": b"mine"}
    await call(f"{INFER}?a=b", body(2), mine)
    await call(INFER, body(), {**mine, **BULK})
    await call(INFER, b"{", mine)
    await call(INFER, body(9, parameters={"class": "best_effort"}), mine)  # more than the queue holds
    model.fails = ModelFailed("no")
    await call(INFER, body(), mine)
    await call("/v2/models/echo/versions/2/infer", body(), mine)
    await call("/predict/no%0abody", b"[1]", {**mine, **BULK})
    await call("/v2", method="GET", headers=mine)
    await call("/livez", method="GET", headers=mine)
    model.fails = None
    await hang_up(call, mine)
    assert model.finished[-1] == "client_gone"
    about = {
        "method": "POST", "path": INFER, "request_id": "mine", "model": "echo", "version": "1", "rows": 1,
        "class": "realtime",
    }  # fmt: skip
    assert list(entries(caplog)) == [
        {**about, "status": 200, "rows": 2},
        {**about, "status": 200, "class": "best_effort"},
        {**about, "status": 400, "rows": 0},
        {**about, "status": 400, "rows": 9, "class": "best_effort"},
        {**about, "status": 500},
        {**about, "path": "/v2/models/echo/versions/2/infer", "status": 503, "version": "2", "rows": 0},
        {
            **about, "path": "/predict/no%0abody", "status": 404, "version": "", "rows": 0, "class": "best_effort",
            "model": "no\nbody" if call.way == "direct" else "no%0abody",
        },
        {"method": "GET", "path": "/v2", "status": 299, "request_id": "mine"},
        {**about, "status": 499},
    ]  # fmt: skip


@pytest.mark.parametrize(("path", "outcomes"), [(INFER, ["bad_request"]), ("/v2/repository/index", [])])
@pytest.mark.parametrize(("chunks", "status"), [(b"zz\r\n", 400), (b"1\r\n1\r\n0\r\nX: ", 431)])
async def test_malformed_chunks_are_logged_as_they_were_answered(
    model: Echo, caplog: pytest.LogCaptureFixture, chunks: bytes, status: int, path: str, outcomes: list[str]
) -> None:
    """By the connection, which knows no calls: its client has not gone."""
    caplog.set_level("INFO", logger=ACCESS)
    connection = Caller(model, "direct", access_log=True).connection()
    connection.send(b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode())
    connection.send(chunks)
    connection.send(b"a" * (65 << 10))
    await connection.done()
    assert parsed(connection.transport.written)[0] == status
    assert [line["status"] for line in entries(caplog)] == [status]
    assert model.finished == outcomes


@pytest.mark.parametrize(
    ("client", "address"), [(("127.0.0.1", 80), "127.0.0.1:80"), (("::1", 80), "[::1]:80"), (None, "")]
)
def test_the_address_of_a_client(client: Any, address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger=ACCESS)
    write_line("GET", b"/v2", 200, 0, client, b"mine")
    assert caplog.records[0].__dict__["fields"]["client"] == address


@pytest.mark.parametrize("options", [{}, {"auth": LOCKED}, {"connections": lambda: 4}])
async def test_every_answer_has_its_requests_id_and_so_has_its_line(
    caller: MakeCaller, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also a refusal before the model is looked at. Without a usable one of the client's, one is made."""
    caplog.set_level("INFO", logger=ACCESS)
    call = caller(access_log=True, **options)
    unusable = [{b"x-request-id": given} for given in (b"", b"a b", b"a" * 129, b"a\xff")]
    for path in (INFER, "/v2"):
        ids = [(await call(path, body(), headers)).headers[b"x-request-id"].decode()
               for headers in ({b"x-request-id": b"mine"}, {}, *unusable, *unusable)]  # fmt: skip
        assert (ids[0], len(set(ids))) == ("mine", 10)
        assert [one["request_id"] for one in entries(caplog)] == ids
        caplog.clear()


async def test_too_many_connections(caller: MakeCaller) -> None:
    reply = await caller(connections=lambda: 4)(INFER, body())
    assert (reply.status, b"retry-after" in reply.headers, reply.headers[b"connection"]) == (503, True, b"close")
    for path in ("/livez", "/metrics"):
        assert (await caller(connections=lambda: 4)(path)).status == 299
    assert (await caller(connections=lambda: 3)(INFER, body())).status == 200


async def test_refusals_wait_for_their_turn_while_very_many_connections_are_open(
    call: Caller, model: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has no answer does not send again. Answers leave at once."""
    waits = create_autospec(RefusalQueue.submit, side_effect=RefusalQueue.submit)
    monkeypatch.setattr(RefusalQueue, "submit", waits)
    monkeypatch.setattr(RefusalQueue, "needed", lambda self: True)
    for sent, full, status, refused in (
        (body(), {"realtime"}, 429, 1), (b"{", {"realtime"}, 429, 2), (b"{", (), 400, 3), (body(), (), 200, 3),
    ):  # fmt: skip
        model.full = frozenset(full)
        assert (await call(INFER, sent)).status == status
        assert waits.call_count == refused
    await hang_up(call)  # a client that has gone takes nobody's turn
    assert waits.call_count == 3


@pytest.mark.parametrize("gone", [False, True])
async def test_a_model_is_loaded_anew_while_a_body_arrives(
    call: Caller, model: Echo, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call belongs to a version from the moment its rows are admitted; where none serves, it is refused."""
    new = Echo(model.info, model.model)

    def closing(asked: ModelCall, arrived_ns: int) -> EchoLease:
        call.state["catalog"].models["echo"]["1"] = None if gone else new
        raise NotReady("model 'echo' is being unloaded", retry_after_s=1)

    monkeypatch.setattr(model, "lease", closing)
    reply = await call(INFER, body())
    assert reply.status == (503 if gone else 200)
    assert (model.finished, new.finished) == ((["not_ready"], []) if gone else ([], ["ok"]))


async def test_a_server_that_is_going_away(call: Caller) -> None:
    call.health.closing = True
    for path, sent, status in ((INFER, body(), 200), (INFER, b"{", 400), ("/v2", b"", 299)):
        reply = await call(path, sent)
        assert (reply.status, reply.headers[b"connection"]) == (status, b"close")


async def test_a_client_that_hangs_up_while_its_body_is_decoded(caller: MakeCaller, model: Echo) -> None:
    """It is counted at once; its bytes are held until the thread is done with them, and no slot is taken."""
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def decode(content_type: str, body: bytes) -> dict[str, Any]:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(10)
        return {"x": np.ones(4)}

    call = caller(with_code(model, decode=decode))
    waiting = asyncio.create_task(call(FRIENDLY, b"cat", A_TEXT))
    async with asyncio.timeout(10):
        await begun.wait()
        call.gone.set()
        await waiting
        assert (call.model.finished, call.resources.bodies.held) == (["client_gone"], 3)
        go_on.set()
        await loop.shutdown_default_executor()
        await asyncio.sleep(0)
    assert call.model.finished == ["client_gone"]


def unreadable(content_type: str, body: bytes) -> dict[str, Any]:
    raise LookupError(f"no {body.decode()} here")


def readable(content_type: str, body: bytes) -> dict[str, Any]:
    return {"x": np.ones(4)}


def unspeakable(outputs: Mapping[str, Any]) -> Any:
    raise ArithmeticError("no words")


def raised_on_a_worker() -> BaseException:
    try:
        unspeakable({})
    except ArithmeticError as exc:
        return exc
    raise AssertionError


@pytest.mark.parametrize(
    ("model_of", "status", "words"),
    [
        (lambda m: with_code(m, decode=unreadable), 400, "LookupError: no cat here"),
        (lambda m: with_code(m, decode=readable, present=unspeakable), 500, "ArithmeticError: no words"),
        (lambda m: replace(m, fails=ModelFailed("no", cause=raised_on_a_worker())), 500, "ArithmeticError: no words"),
        (lambda m: with_code(m, decode=lambda t, b: {"z": 1}), 500, "ModelFailed: model echo: its decode did not"),
    ],
    ids=["decode", "present", "model", "broken promise"],
)  # fmt: skip
async def test_errors_of_a_models_code_are_logged_once_a_cause(
    caller: MakeCaller, model: Echo, caplog, model_of: Callable[[Echo], Echo], status: int, words: str
) -> None:
    caplog.set_level("WARNING")
    failing = model_of(model)
    call = caller(failing)
    path, sent = (FRIENDLY, b"cat") if failing.fails is None else (INFER, body())
    for number in range(3):
        assert (await call(path, sent, {**A_TEXT, b"x-request-id": b"r-%d" % number})).status == status
    (line,) = caplog.records
    assert (line.levelname, line.name) == ("WARNING", "starling.http")
    assert f"model echo version 1, request r-0: {words}" in line.getMessage()
    assert line.__dict__["fields"] == {"request_id": "r-0"}
    if line.exc_info is None:
        assert "ModelFailed" in words
        return
    trace = line.exc_info[2]
    assert trace is not None
    assert trace.tb_frame.f_code.co_filename == __file__


class NoException(BaseException):
    """As that of tokenizers' library in Rust when it fails."""


class Unsayable(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    "error",
    [NoException, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit, StopIteration, Unsayable],
)
async def test_what_a_models_code_raises_need_not_be_an_exception(
    caller: MakeCaller, model: Echo, error: type[BaseException]
) -> None:
    def fails(*given: object) -> Any:
        raise error

    for code, status in (({"decode": fails}, 400), ({"decode": readable, "present": fails}, 500)):
        call = caller(with_code(model, **code))
        async with asyncio.timeout(10):
            reply = await call(FRIENDLY, b"cat", A_TEXT)
        assert (reply.status, error.__name__ in reply.error, len(call.model.finished)) == (status, True, 1)


@pytest.mark.parametrize("error", [NoException(), asyncio.CancelledError(), OSError("a secret of the inside")])
async def test_an_unexpected_error(
    caller: MakeCaller, model: Echo, error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the inside is told but in the log, which names the request."""
    collected = Collected()
    model.fails = error
    reply = await caller(tracer=collected.tracer)(INFER, body())
    assert (reply.status, model.finished) == (500, ["internal"])
    assert "inside" not in reply.error
    assert told(collected.one())["starling.outcome"] == "internal"
    (line,) = caplog.records
    request_id = reply.headers[b"x-request-id"].decode()
    assert line.getMessage() == f"request {request_id}: unexpected error on {INFER}"
    assert line.__dict__["fields"] == {"request_id": request_id}


class Unsubmitted(EchoLease):
    def submit(self, waiter: Any) -> None:
        raise RuntimeError("can't start new thread")


async def test_rows_that_cannot_be_submitted(call: Caller, model: Echo) -> None:
    model.lease_type = Unsubmitted
    assert (await call(INFER, body())).status == 500
    assert model.finished == ["internal"]


async def test_errors_of_callers_are_not_logged(
    caller: MakeCaller, model: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(content_type: str, body: bytes) -> dict[str, Any]:
        raise BadRequest("image: expected a digit, got a blank image")

    caplog.set_level("INFO")
    call = caller(with_code(model, decode=refuses))
    assert (await call(FRIENDLY, b"cat", A_TEXT)).status == 400
    assert (await call(INFER, b"{")).status == 400
    assert (await call(INFER, body())).status == 200
    assert caplog.messages == []


async def test_any_number_of_unknown_paths(model: Echo) -> None:
    call = Caller(model, "direct")
    connection = call.connection()
    for name in (*map(str, range(1100)), "m" * 30_000):
        connection.send(b"POST /predict/%s HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n[]" % name.encode())
        await connection.done()
    assert connection.transport.written.count(b"HTTP/1.1 404") == 1101
    remembered = call.app.fast_path._find.cache_info()
    assert (remembered.misses, remembered.currsize) == (1100, 1024)  # not the long one


@pytest.mark.parametrize("name", ["a" * 30_000, "a\0b", "..", "\n", "\U0001f426"])
async def test_names_that_no_model_can_have(call: Caller, name: str) -> None:
    for path in (
        f"/v2/models/{name}/infer", f"/v2/models/{name}/versions/1/infer", f"/v2/models/echo/versions/{name}/infer",
        f"/v1/models/{name}:predict", f"/v1/models/echo/versions/{name}:predict", f"/predict/{name}",
    ):  # fmt: skip
        reply = await call(path, body())
        assert (path, reply.status) == (path, 404)
        assert 0 < len(reply.error) < 5000
    assert call.model.finished == []
