"""Inputs and outputs of a call, what is asked of the server beside it, and how often."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import httpx
import numpy as np
import pytest
from fake_server import Driven, FakeServer, rows

from starling_client import AsyncClient, Client, Metadata, NotFound, Tensor

Connect = Callable[..., Driven]


def test_one_array_in_and_one_out(connect: Connect, server: FakeServer) -> None:
    server.outputs = ("y",)
    for given in ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], "i8"), ((1.0, 2.0), (3.0, 4.0))):
        found = connect(server).predict("double", given)
        assert (found.dtype, found.tolist()) == (np.float32, [[2, 4], [6, 8]])
        found[0, 0] = 7  # it is the caller's own


def test_names_in_and_out(connect: Connect, server: FakeServer) -> None:
    client = connect(server)
    found = client.predict("double", {"x": rows(1)})
    assert {name: array.tolist() for name, array in found.items()} == {"y": [[0, 2]], "s": [1]}
    assert list(client.predict("double", {"x": rows(1)}, outputs=["s"])) == ["s"]
    assert client.predict("double", rows(1), outputs=["s"]).tolist() == [1]
    assert server.head()["outputs"] == [{"name": "s", "parameters": {"binary_data": True}}]


def test_what_the_server_tells_is_asked_once(connect: Connect, server: FakeServer) -> None:
    client = connect(server)
    for _ in range(3):
        client.predict("double", {"x": rows(1)})
    assert server.paths == ["/v2/models/double", "/v2", *["/v2/models/double/infer"] * 3]
    server.asked.clear()
    for _ in range(2):
        client.predict("double", {"x": rows(2)}, version=1)
    about, config, infer = (f"/v2/models/double/versions/1{part}" for part in ("", "/config", "/infer"))
    assert server.paths == [about, config, infer, infer]


def test_equal_calls_have_equal_heads(connect: Connect, server: FakeServer) -> None:
    """The server looks up the meaning of a JSON that it has seen; an id in it would prevent that."""
    client = connect(server)
    for number in range(2):
        client.predict("double", {"x": rows(1) + number}, request_id=f"r-{number}", timeout_ms=50)
    assert server.head(0) == server.head(1)
    assert [request.headers["x-request-id"] for request in server.infers] == ["r-0", "r-1"]


def test_options(connect: Connect, server: FakeServer) -> None:
    client = connect(server, api_key="k", headers={"X-Team": "a"})
    client.predict(
        "double", {"x": rows(1)}, timeout_ms=1.5, priority=3, service_class="best_effort", parameters={"k": 1}
    )
    headers = server.infers[0].headers
    assert server.head()["parameters"] == {"k": 1, "timeout": 1500, "priority": 3, "binary_data_output": True}
    assert (headers["x-class"], headers["x-api-key"], headers["x-team"]) == ("best_effort", "k", "a")
    assert headers["accept-encoding"] == "identity"  # answers are not compressed
    assert "x-request-id" not in headers


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_ms": float("nan")}, {"deadline_s": -1}, {"service_class": "bulk"}, {"outputs": []}, {"outputs": "y"},
        {"outputs": ["z"]}, {"outputs": ["y", "y"]}, {"request_id": "a" * 111}, {"parameters": {"timeout": 5}},
    ],
)  # fmt: skip
def test_options_that_no_server_would_take(connect: Connect, server: FakeServer, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        connect(server).predict("double", {"x": rows(1)}, **options)
    assert server.infers == []


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([1, 2], r"input 'x': expected shape \[rows, 2\], got \[2\]; one row is \[x\]"),
        ([[[1, 2]]], r"expected shape \[rows, 2\], got \[1, 1, 2\]$"),
        ({"z": [[1, 2]]}, "inputs: expected x, got z"),
        ({}, "inputs: expected x, got none"),
        ([[1, 2], [3]], "input 'x': "),
        ([["a", "b"]], "input 'x': expected FP32, got values of <U1"),
        (np.empty((0, 2)), "at least 1, got x 0"),
        ([[1, 2]], r"has the outputs y, s: name one, as in outputs=\['y'\]"),
    ],
)
def test_inputs_that_do_not_fit(connect: Connect, server: FakeServer, inputs: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        connect(server).predict("double", inputs, **({} if "outputs" in message else {"outputs": ["y"]}))
    assert server.infers == []


@pytest.mark.parametrize("given", [None, False])
def test_json_where_the_server_takes_no_bytes(connect: Connect, server: FakeServer, given: bool | None) -> None:
    server.extensions = () if given is None else server.extensions
    client = connect(server, binary=given)
    assert client.predict("double", {"x": rows(2)})["y"].tolist() == [[0, 2], [4, 6]]
    assert server.infers[0].headers["content-type"] == "application/json"
    assert ("/v2" in server.paths) == (given is None)
    with pytest.raises(ValueError, match="no NaN"):
        client.predict("double", {"x": [[np.nan, 1]]})


def test_a_forked_process_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    """On its parent's it would get the answers to its parent's requests, and to those of its other children."""
    made: list[httpx.Client] = []
    real = partial(httpx.Client, transport=httpx.MockTransport(server))
    monkeypatch.setattr(httpx, "Client", lambda: made.append(real()) or made[-1])
    client = Client("http://fake")
    client.predict("double", {"x": rows(1)})
    monkeypatch.setattr("starling_client.client.getpid", lambda: 0)
    for _ in range(2):
        client.predict("double", {"x": rows(1)})
        assert len(made) == 2
    client.close()
    monkeypatch.setattr("starling_client.client.getpid", lambda: 1)
    with pytest.raises(RuntimeError, match="the client has been closed"):
        client.predict("double", {"x": rows(1)})


def test_each_event_loop_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    """Also to close them: on those of a loop that has ended it raises that the loop is closed."""
    made: list[httpx.AsyncClient] = []
    real = partial(httpx.AsyncClient, transport=httpx.MockTransport(server))
    monkeypatch.setattr(httpx, "AsyncClient", lambda: made.append(real()) or made[-1])
    client = AsyncClient("http://fake")
    for loops in (1, 2):
        with asyncio.Runner() as runner:
            for _ in range(2):
                runner.run(client.predict("double", {"x": rows(1)}))
                assert len(made) == loops
    asyncio.run(client.aclose())
    assert [http.is_closed for http in made] == [False, False, True]
    with pytest.raises(RuntimeError, match="the client has been closed"):
        asyncio.run(client.predict("double", {"x": rows(1)}))


def test_a_model_that_was_changed_meanwhile(connect: Connect, server: FakeServer) -> None:
    """The metadata that were remembered are wrong now: they are asked for again, once, and so is the call."""
    client = connect(server)
    client.predict("double", {"x": rows(1)})
    server.name_of_input = "z"
    server.asked.clear()
    assert client.predict("double", rows(1), outputs=["s"]).tolist() == [1]
    assert server.paths == ["/v2/models/double/infer", "/v2/models/double", "/v2/models/double/infer"]
    server.name_of_input = "x"
    assert client.predict("double", {"x": rows(1)})["s"].tolist() == [1]
    with pytest.raises(ValueError, match="expected x, got q"):
        client.predict("double", {"q": rows(1)})


def test_what_else_an_answer_tells(connect: Connect, server: FakeServer) -> None:
    server.headers = {"server-timing": "queue;dur=1.250, compute;dur=2.000, total;dur=4.500", "x-batch-size": "7"}
    found = connect(server).infer("double", rows(1), request_id="mine")
    assert (found.version, found.request_ids, found.tries, found.batch_size) == ("1", ("mine",), 1, 7)
    assert (found.queue_ms, found.compute_ms, found.total_ms, found.lengths) == (1.25, 2.0, 4.5, {})
    server.headers = {"server-timing": "nonsense", "x-batch-size": "?"}
    assert replace(connect(server).infer("double", rows(1)), outputs={}).total_ms == 0


def test_simple_questions(connect: Connect, server: FakeServer) -> None:
    client = connect(server)
    vector = Tensor("x", "FP32", (-1, 2))
    outputs = (replace(vector, name="y"), Tensor("s", "FP32", (-1,)))
    assert client.metadata("double") == Metadata("double", ("1",), "fake", (vector,), outputs)
    with pytest.raises(NotFound, match="404: no such thing") as raised:
        client.metadata("a/b")
    error = raised.value
    assert (error.status, error.code, error.request_id, error.tries) == (404, "not_found", "r-404", 1)
    assert server.asked[-1].url.raw_path == b"/v2/models/a%2Fb"
    for name in ("", "..", "."):
        with pytest.raises(ValueError, match="expected a name"):
            client.metadata(name)


def test_a_model_whose_tensors_do_not_lead_with_rows(connect: Connect, server: FakeServer) -> None:
    """As Triton serves those that take no batches: nothing is cut, and no shape is expected."""
    fixed = server.metadata()
    for tensor in fixed["inputs"] + fixed["outputs"]:
        tensor["shape"][0] = 3
    server.metadata = lambda: fixed  # type: ignore[method-assign]
    server.config = {"max_batch_size": 0}
    assert connect(server, max_rows=1).predict("double", {"x": rows(3)})["s"].tolist() == [1, 5, 9]
    assert server.rows == [3]
    assert json.dumps(server.head()["inputs"][0]["shape"]) == "[3, 2]"
