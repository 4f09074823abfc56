"""V2's inference as events: each is a V2 response about one row, and together they are the whole answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from .catalog import served, spec
from .echo import Echo, MakeCaller, PiecesLease
from .test_streaming import Reader

PATH = "/v2/models/echo/infer_stream"


@pytest.fixture
def model() -> Echo:
    """A recurrent model; each test says what its rows give out."""
    outputs = (spec("last", "FP32"), spec("sums", "FP32", "made"))
    plain = served("echo", (spec("x", "FP32", "n"),), outputs)
    info = replace(plain.info, own_axes=("made",))
    return Echo(info, replace(plain.model, streams=(1,)), lease_type=PiecesLease)


def body(rows: int = 1, **fields: Any) -> bytes:
    tensor = {"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": [1, 2, 3] * rows}
    return json.dumps({"inputs": [tensor], **fields}).encode()


def out(name: str, shape: list[int], data: list[float]) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": "FP32", "data": data}


def piece(lease: PiecesLease, row: int, *values: float) -> None:
    lease.give(row, [np.array(values, np.float32)])


def end(lease: PiecesLease, sums: list[list[float]], last: list[float], lengths: list[int] | None = None) -> None:
    lease.answer([np.array(last, np.float32), np.array(sums, np.float32)], lengths)


async def begun(model: Echo, sent: bytes) -> tuple[Reader, PiecesLease]:
    reader = Reader(model)
    reader.send(PATH, sent)
    await model.ran.wait()
    return reader, model.leases[-1]


async def test_events_are_responses_by_row(model: Echo) -> None:
    reader, lease = await begun(model, body(2, id="7"))
    piece(lease, 1, 1)
    await reader.more()
    piece(lease, 0, 1)
    piece(lease, 0, 3)
    await reader.more()
    piece(lease, 1, 3)  # not sent before all has ended
    end(lease, [[1, 3, 6], [1, 3, 0]], [6, 3], [3, 2])
    await reader.connection.done()
    head = {"model_name": "echo", "model_version": "1", "id": "7"}
    assert b"content-type: text/event-stream; charset=utf-8" in reader.head
    assert reader.events == [
        {**head, "parameters": {"row": 1}, "outputs": [out("sums", [1, 1], [1])]},
        {**head, "parameters": {"row": 0}, "outputs": [out("sums", [1, 2], [1, 3])]},
        {**head, "parameters": {"row": 0, "final": True}, "outputs": [out("last", [1], [6]), out("sums", [1, 1], [6])]},
        {**head, "parameters": {"row": 1, "final": True}, "outputs": [out("last", [1], [3]), out("sums", [1, 1], [3])]},
    ]
    assert (model.finished, model.open_leases) == (["ok"], 0)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, [out("last", [1], [6]), out("sums", [1, 3], [1, 3, 6])]),
        ({"outputs": [{"name": "last"}]}, [out("last", [1], [6])]),
    ],
)
async def test_all_at_once_where_nothing_came_before(model: Echo, asked: Any, given: list[Any]) -> None:
    """As of a device that gives out what rows made when they end; of the outputs that were asked for."""
    reader, lease = await begun(model, body(**asked))
    end(lease, [[1, 3, 6]], [6])
    await reader.connection.done()
    (only,) = reader.events
    assert only["outputs"] == given


async def test_what_json_cannot_say_ends_the_stream_with_an_error(model: Echo) -> None:
    reader, lease = await begun(model, body())
    piece(lease, 0, 1)
    await reader.more()
    piece(lease, 0, float("nan"))
    await reader.connection.done()
    assert "sums" in reader.events[-1]["error"]
    assert model.finished == ["output_not_json"]


@pytest.mark.parametrize(
    ("streams", "sent", "message"),
    [
        ((), body(), "infer_stream: expected a recurrent model with an output for each step, got 'echo'"),
        ((1,), body(outputs=[{"name": "sums", "parameters": {"binary_data": True}}]), "outputs (sums): "),
    ],
)
async def test_what_is_wrong(
    caller: MakeCaller, model: Echo, streams: tuple[int, ...], sent: bytes, message: str
) -> None:
    model.model = replace(model.model, streams=streams)
    reply = await caller(model)("/v2/models/echo/versions/1/infer_stream", sent)
    assert (reply.status, reply.json()["error"][: len(message)]) == (400, message)
    assert model.open_leases == 0
