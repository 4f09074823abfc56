"""Large V2 bodies are parsed in pieces with the result that parsing them whole has, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.contract import Batching, ModelInfo, TensorSpec
from app.http.codecs import incremental
from app.http.codecs.incremental import NOT_PLAIN, begin_incremental
from app.http.codecs.v2_decode import decode_request


def info(datatype: str = "FP32") -> ModelInfo:
    x = TensorSpec("x", datatype, (100,), axes=("",), bounds=(100,))
    y = TensorSpec("y", "FP32", (2,), axes=("",), bounds=(2,))
    return ModelInfo("m", "1", "test", (x, y), (x,), Batching(max_batch=8))


def request(datatype: str = "FP32", **changes: Any) -> dict[str, Any]:
    data = [k / 8 if datatype == "FP32" else k for k in range(300)]
    x = {"name": "x", "shape": [3, 100], "datatype": datatype, "data": data} | changes
    y = {"name": "y", "shape": [3, 2], "datatype": "FP32", "data": [[1, 2], [3, 4], [5, 6]]}
    return {"id": "7", "inputs": [x, y], "parameters": {"priority": 2}}


def text(request: dict[str, Any]) -> bytes:
    return json.dumps(request, indent=1).encode()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental, "_PIECE", 40)


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "UINT16"])
def test_the_call_is_that_of_the_whole_body(datatype: str) -> None:
    body, model = text(request(datatype)), info(datatype)
    found = begin_incremental(body, model)
    count = 0
    while found.unfinished:
        found.parse_next()
        count += 1
    assert count > 50
    call, whole = found.finish(), decode_request(json.loads(body), memoryview(b""), model, bools=True)[0]
    assert [bytes(one) for one in call.arrays] == [bytes(one) for one in whole.arrays]  # type: ignore[arg-type]
    assert (
        np.frombuffer(bytes(call.arrays[0]), model.inputs[0].dtype)[299] == request(datatype)["inputs"][0]["data"][-1]
    )
    call.arrays = whole.arrays = []
    assert call == whole


def edited(old: bytes, new: bytes) -> Callable[[], bytes]:
    body = text(request("INT64"))
    assert body.count(old) >= 1
    return lambda: body.replace(old, new, 1)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(edited(b"150,", b"true,"), id="a boolean"),
        pytest.param(edited(b"150,", b'"150",'), id="a text"),
        pytest.param(edited(b"150,", b"1.5,"), id="a fraction"),
        pytest.param(edited(b"150,", b"NaN,"), id="not JSON"),
        pytest.param(edited(b"150,", b"150 3,"), id="no comma"),
        pytest.param(edited(b"299\n", b",\n"), id="a comma at the end"),
        pytest.param(edited(b'"id": "7"', b'"id": 7'), id="wrong elsewhere"),
        pytest.param(edited(b'"priority": 2\n }\n}', b'"priority": 2\n }\n'), id="cut off"),
        pytest.param(lambda: text(request("INT64", data=[[k] * 100 for k in range(3)])), id="nested"),
        pytest.param(lambda: text(request("INT64", shape=[2, 100])), id="too many"),
    ],
)
def test_what_is_not_plain_is_left_to_be_parsed_whole(body: Callable[[], bytes]) -> None:
    sent, model = body(), info("INT64")
    try:
        found = begin_incremental(sent, model)
        while found.unfinished:
            found.parse_next()
        made = found.finish()
    except NOT_PLAIN:
        made = None
    assert made is None
