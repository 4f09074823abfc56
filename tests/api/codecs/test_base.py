"""What all codecs have in common: the same request gives the same call, and the call leads back to an answer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.api.codecs.base import Codec, DecodedCall, client_inputs
from app.api.codecs.friendly import Friendly
from app.api.codecs.v1 import V1
from app.api.codecs.v2 import V2
from app.api.http import Limits
from app.contract import Answer

from ..catalog import served, spec

SUM = served("sum", (spec("a", "FP32", 2), spec("b", "INT64", 1)), (spec("y", "FP32", 2),))
LIMITS = Limits(body=1000, json=800, inflight=2000, pixels=100, body_timeout_s=5, connections=3)


def v2(name: str, datatype: str, data: list[list[float]]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data), len(data[0])], "data": data}


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        (V2(), {"inputs": [v2("b", "INT64", [[3], [6]]), v2("a", "FP32", [[1, 2], [4, 5]])]}),
        (V1(), {"instances": [{"b": [3], "a": [1, 2]}, {"a": [4, 5], "b": [6]}]}),
        (Friendly(), {"b": [[3], [6]], "a": [[1, 2], [4, 5]]}),
    ],
    ids=["v2", "v1", "friendly"],
)
def test_there_and_back(codec: Codec, body: Any) -> None:
    sent = json.dumps(body).encode()
    headers = {b"content-type": b"application/json"}
    assert not codec.slow_to_decode(SUM, headers, sent)  # type: ignore[arg-type]
    call = codec.decode(SUM, headers, sent, LIMITS)  # type: ignore[arg-type]
    assert type(call) is DecodedCall
    found = [
        np.frombuffer(array, one.dtype).reshape(call.rows, *one.shape).tolist()
        for one, array in zip(SUM.info.inputs, call.arrays, strict=True)
    ]
    assert found == [[[1, 2], [4, 5]], [[3], [6]]]
    assert (call.lengths, call.priority, call.timeout_us, call.parameters) == ({}, 0, None, None)
    assert not codec.slow_to_encode(SUM, call)  # type: ignore[arg-type]
    payload, binary_from = codec.encode(SUM, call, Answer([np.ones((2, 2), "f4")], 0, 0, 1))  # type: ignore[arg-type]
    assert (b"1.0,1.0" in payload, binary_from) == (True, None)


def test_a_client_sends_all_inputs_in_declared_order() -> None:
    assert [one.name for one in client_inputs(SUM.info)] == ["a", "b"]
