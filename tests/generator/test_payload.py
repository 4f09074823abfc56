"""Requests fit the metadata they are made from, in both encodings, and are the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.generator.payload import BODIES, DTYPES, ModelMetadata, prepare
from loadtest.generator.plan import BenchPlan


def model(*inputs: tuple[str, str, list[int]]) -> ModelMetadata:
    described = [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in inputs]
    outputs = [{"name": name, "datatype": "FP32", "shape": [-1]} for name in ("y", "z")]
    return ModelMetadata.parse(json.dumps({"inputs": described, "outputs": outputs}).encode())


X = model(("x", "FP32", [-1, 2]))
FIXED = model(("x", "FP32", [2, 3]))


def plan(**options: Any) -> BenchPlan:
    return BenchPlan(**{"url": "host:1", "model": "m", "rate": 1.0, **options})


def parts(request: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "POST /v2/models/m/infer HTTP/1.1"
    return dict(line.split(": ", 1) for line in lines), body


def decoded(request: bytes) -> dict[str, Any]:
    fields, body = parts(request)
    assert int(fields["Content-Length"]) == len(body)
    return json.loads(body)


def test_json_of_fixed_shapes() -> None:
    bodies = prepare(model(("x", "FP32", [-1, 2, 3])), plan(rows=4, headers=("X-API-Key: k",)))
    assert len({body.request for body in bodies}) == BODIES
    assert all(body.rows == 4 for body in bodies)
    fields, _ = parts(bodies[0].request)
    assert (fields["Host"], fields["X-API-Key"]) == ("host:1", "k")
    (tensor,) = decoded(bodies[0].request)["inputs"]
    assert (tensor["shape"], len(tensor["data"])) == ([4, 2, 3], 24)


def test_variable_axes_share_the_length_of_their_request() -> None:
    two = model(
        ("ids", "INT64", [-1, -1]), ("attention_mask", "INT64", [-1, -1]), ("token_type_ids", "INT32", [-1, -1])
    )
    bodies = prepare(two, plan(lengths="lognormal:14:8:20"))
    lengths = []
    for body in bodies:
        ids, mask, types = decoded(body.request)["inputs"]
        assert ids["shape"] == mask["shape"] == types["shape"]
        assert all(0 <= token < 100 for token in ids["data"])
        assert set(mask["data"]) == {1}
        assert set(types["data"]) == {0}
        lengths.append(ids["shape"][1])
    assert lengths == sorted(lengths, reverse=True)  # the longest is the first, which is tried alone
    assert len(set(lengths)) > 5
    assert max(lengths) <= 20


def test_binary() -> None:
    bodies = prepare(model(("x", "FP16", [-1, 3]), ("b", "BYTES", [-1, 1])), plan(payload="binary", rows=2))
    fields, body = parts(bodies[0].request)
    size = int(fields["Inference-Header-Content-Length"])
    head = json.loads(body[:size])
    x, text = head["inputs"]
    assert (x["parameters"]["binary_data_size"], x["shape"], "data" in x) == (12, [2, 3], False)
    assert len(body) == size + 12 + text["parameters"]["binary_data_size"]
    assert body[size + 12 + 4 :].startswith(b"word")
    assert head["parameters"] == {"binary_data_output": True}


@pytest.mark.parametrize("datatype", sorted(set(DTYPES) - {"BF16"}))
def test_every_datatype_as_json(datatype: str) -> None:
    (tensor,) = decoded(prepare(model(("x", datatype, [-1, 8])), plan())[0].request)["inputs"]
    kinds = {"BOOL": bool, "BYTES": str}
    wanted = kinds.get(datatype, float if datatype.startswith("FP") else int)
    assert [type(value) for value in tensor["data"]] == [wanted] * 8


def test_bf16_is_binary() -> None:
    _, body = parts(prepare(model(("x", "BF16", [-1, 8])), plan(payload="binary"))[0].request)
    values = (np.frombuffer(body[-16:], "<u2").astype("<u4") << 16).view("<f4")
    assert 0 < np.abs(values).max() < 6  # standard normal


def test_deadline_is_the_timeout_in_microseconds() -> None:
    body = prepare(X, plan(deadline_ms=1.5))[0]
    assert decoded(body.request)["parameters"] == {"timeout": 1500}


def test_a_model_without_a_batch() -> None:
    assert decoded(prepare(FIXED, plan())[0].request)["inputs"][0]["shape"] == [2, 3]


@pytest.mark.parametrize(("name", "media"), [("3.jpg", b"image/jpeg"), ("x.npy", b"application/octet-stream")])
def test_a_file_that_is_no_json_goes_to_the_friendly_route_as_it_is(tmp_path: Path, name: str, media: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xd8")
    (body,) = prepare(X, plan(data=path, deadline_ms=1.5, priority=2))
    assert body.request.startswith(b"POST /predict/m?timeout_ms=1.5&priority=2 HTTP/1.1\r\nHost: host:1\r\n")
    assert body.request.endswith(b"Content-Type: " + media + b"\r\nContent-Length: 2\r\n\r\n\xff\xd8")
    assert (body.rows, body.outputs) == (1, None)


@pytest.mark.parametrize("payload", ["json", "binary"])
def test_data_from_a_file(tmp_path: Path, payload: str) -> None:
    path = tmp_path / "body.json"
    one = {"id": "7", "inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}],
           "outputs": [{"name": "y"}], "parameters": {"mine": 1}}  # fmt: skip
    path.write_text(json.dumps([one, one]))
    bodies = prepare(X, plan(data=path, payload=payload))
    assert [(body.rows, [tensor.name for tensor in body.outputs]) for body in bodies] == [(2, ["y"])] * 2
    fields, body = parts(bodies[0].request)
    head = json.loads(body[: int(fields.get("Inference-Header-Content-Length", len(body)))])
    assert head["outputs"] == [{"name": "y"}]
    assert head["parameters"]["mine"] == 1
    if payload == "json":
        assert head["inputs"][0]["data"] == [1, 2, 3, 4]
    else:
        assert np.frombuffer(body[-16:], "<f4").tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        (FIXED, {"rows": 2}, "rows: model 'm' takes no batch, got 2"),
        (model(("x", "BF16", [-1, 8])), {}, "payload: BF16 is binary only"),
        *((X, {"shapes": (shape,)}, "shape: expected") for shape in ("y:3", "x:a", "x", "x:-2")),
        (X, {"data": "3.jpg", "rows": 2}, "rows: a file that is sent as it is makes one row, got 2"),
        (X, {"data": "none.png"}, "data: .*No such file"),
        (X, {"data": "half.json"}, "data: expected a file of JSON"),
        (X, {"data": "none.json"}, "at least one request"),
        (X, {"data": "short.json"}, "expected a V2 inference request"),
    ],
)
def test_what_cannot_be_sent_is_named(asked, options, message, tmp_path: Path) -> None:
    short = '{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[1]}]}'
    for name, text in {"3.jpg": "", "half.json": "{", "none.json": "[]", "short.json": short}.items():
        (tmp_path / name).write_text(text)
    if "data" in options:
        options = {**options, "data": tmp_path / options["data"]}
    with pytest.raises(ValueError, match=message):
        prepare(asked, plan(**options))


@pytest.mark.parametrize(
    "text",
    [b"<html>", b"{}", b"[]", b'{"inputs":[{"name":"x"}],"outputs":[]}',
     b'{"inputs":[{"name":"x","datatype":"FP8","shape":[1]}],"outputs":[]}'],
)  # fmt: skip
def test_what_is_no_metadata(text: bytes) -> None:
    with pytest.raises(ValueError, match="model: "):
        ModelMetadata.parse(text)
