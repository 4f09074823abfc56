"""Inputs that the server makes, and axes without a bound: the same to all codecs."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from app.contract import UNBOUNDED, ModelInfo
from app.errors import BadRequest, ModelFailed
from app.http.codecs.base import Codec, DecodedCall
from app.http.codecs.rows import V1, Friendly
from app.http.codecs.v2 import V2

from ..catalog import served, spec
from ..echo import LIMITS
from .models import TOKENS, decode_v2


def v2(name: str, datatype: str, data: list[list[float]]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data), len(data[0])], "data": data}


def decode_ids(content_type: str, body: bytes) -> dict[str, Any]:
    return {"ids": [int(word) for word in body.split()]}


MASKED = served(
    "masked",
    (
        spec("mask", "BOOL", "n", bound=UNBOUNDED, mask_of="ids"), spec("ids", "INT64", "n", bound=UNBOUNDED),
        spec("length", "INT32", lengths_of="n"),
    ),
    (spec("y", "FP32", 2),),
    decode=decode_ids,
)  # fmt: skip
IDS = [5, 6, 7]
RAW = np.array(IDS).tobytes()
JSON, OCTETS = "application/json", "application/octet-stream"
BINARY = {"name": "ids", "datatype": "INT64", "shape": [1, 3], "parameters": {"binary_data_size": 24}}
HEAD = json.dumps({"inputs": [BINARY]}).encode()


def call_of(codec: Codec, body: bytes, content_type: str = JSON, head: int | None = None) -> DecodedCall:
    headers = {b"content-type": content_type.encode()}
    if head is not None:
        headers[b"inference-header-content-length"] = b"%d" % head
    return codec.decode(MASKED, headers, body, LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("codec", "body", "content_type", "head"),
    [
        (V2(), HEAD + RAW, JSON, len(HEAD)),
        (V2(), RAW, OCTETS, 0),
        (V1(), json.dumps({"instances": [{"ids": IDS}]}).encode(), JSON, None),
        (Friendly(), b'{"ids": [5, 6, 7]}', JSON, None),
        (Friendly(), b"5 6 7", "text/plain", None),
    ],
    ids=["v2 binary", "v2 raw", "v1 named", "friendly named", "decode"],
)
def test_a_client_sends_no_input_that_the_server_makes(
    codec: Codec, body: bytes, content_type: str, head: int | None
) -> None:
    call = call_of(codec, body, content_type, head)
    (ids,) = call.arrays
    assert (np.frombuffer(ids, np.int64).tolist(), call.rows, call.lengths) == (IDS, 1, {"n": 3})


@pytest.mark.parametrize(
    ("codec", "body", "message"),
    [
        (V2(), {"inputs": [v2("ids", "INT64", [IDS]), v2("mask", "BOOL", [[True] * 3])]},
         "inputs[1].name: expected one of ids, got 'mask'"),
        (Friendly(), {"ids": IDS, "length": 3},
         "body: expected an object with input 'ids', got one with ['ids', 'length']"),
    ],
)  # fmt: skip
def test_a_client_that_sends_what_the_server_makes_hears_its_name(codec: Codec, body: Any, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        call_of(codec, json.dumps(body).encode())
    assert caught.value.message == message


def test_a_decoder_gives_what_a_client_would_send() -> None:
    made = served("made", MASKED.info.inputs, (), decode=lambda *_: {"ids": [1], "mask": [True], "length": 1})
    with pytest.raises(ModelFailed, match="its decode did not return one array for each of input 'ids'"):
        Friendly().decode(made, {b"content-type": b"text/plain"}, b"1", LIMITS)  # type: ignore[arg-type]
    ragged = served("ragged", MASKED.info.inputs, (), decode=lambda *_: {"ids": [[1, 2], [3]]})
    with pytest.raises(ModelFailed, match=r"decode returned no array for input 'ids': .* inhomogeneous"):
        Friendly().decode(ragged, {b"content-type": b"text/plain"}, b"1", LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [[2], [2, 1]])
@pytest.mark.parametrize("declared", [(), (1,)])
def test_one_number_a_row_is_a_column_in_v2_and_npy(shape: list[int], declared: tuple[int, ...]) -> None:
    info = ModelInfo("m", "1", "pytorch", (spec("x", "FP32", *declared),), (spec("y", "FP32"),))
    tensor: dict[str, Any] = {"name": "x", "shape": shape, "datatype": "FP32"}
    values = np.array([3, 4], "<f4").reshape(2, *declared)
    for data in ([3, 4], np.reshape([3, 4], shape).tolist()):
        call = decode_v2(json.dumps({"inputs": [{**tensor, "data": data}]}).encode(), None, info, 1000)
        assert (call.rows, bytes(call.arrays[0])) == (2, values.tobytes())
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 8}}]}).encode()
    call = decode_v2(head + values.tobytes(), len(head), info, 1000)
    assert (call.rows, bytes(call.arrays[0])) == (2, values.tobytes())
    file = io.BytesIO()
    np.save(file, np.reshape([3, 4], shape))
    model = served("m", info.inputs, info.outputs)
    call = Friendly().decode(model, {b"content-type": b"application/x-npy"}, file.getvalue(), LIMITS)
    assert call.arrays[0].tolist() == values.tolist()


def test_rows_of_v2_have_one_length() -> None:
    body = json.dumps({"inputs": [{**v2("ids", "INT64", [[1, 2], [3]]), "shape": [2, 2]}]}).encode()
    with pytest.raises(BadRequest, match=r"expected 4 values .*, got 3 in rows of different lengths: send each as a"):
        decode_v2(body, None, TOKENS, 1000)


def test_an_axis_without_a_bound_takes_any_length_but_none() -> None:
    ids = json.dumps({"inputs": [v2("ids", "INT64", [[1] * 200])]}).encode()
    assert call_of(V2(), ids).lengths == {"n": 200}
    with pytest.raises(BadRequest, match=r"expected shape \[rows, n\] with at least 1 along each axis, got \[1, 0\]"):
        call_of(V2(), json.dumps({"inputs": [v2("ids", "INT64", [[]])]}).encode())
    with pytest.raises(
        BadRequest, match=r"expected shape \[n\] for one row or \[rows, n\] for several, got \[1, 1, 1\]"
    ):
        call_of(Friendly(), b"[[[1]]]")
