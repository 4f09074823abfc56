"""The JSON before binary tensors is decoded once: what it means the second time is what it meant the first time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract import ModelInfo
from app.errors import BadRequest
from app.http.codecs.base import DecodedCall

from ..catalog import spec
from .models import decode_v2

MIB = 1 << 20


def two() -> ModelInfo:
    return ModelInfo("two", "1", "test", (spec("a", "FP32", 2), spec("b", "INT16", "n")), (spec("y", "FP32", 2),))


def tensor(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def request(**fields: Any) -> bytes:
    inputs = [tensor("b", "INT16", [1, 3], 6), tensor("a", "FP32", [1, 2], 8)]
    return json.dumps({"inputs": inputs, **fields}).encode()


def decode(info: ModelInfo, head: bytes, tail: bytes) -> DecodedCall:
    return decode_v2(head + tail, len(head), info, MIB)


def parts(call: DecodedCall) -> tuple[Any, ...]:
    arrays = [bytes(array) if isinstance(array, memoryview) else array.tolist() for array in call.arrays]
    return (
        call.rows,
        arrays,
        call.lengths,
        call.priority,
        call.timeout_us,
        call.parameters,
        call.id,
        call.outputs,
        call.klass,
    )


@given(
    tails=st.lists(st.binary(min_size=14, max_size=14), min_size=2, max_size=4),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "id": st.just("r"),
            "parameters": st.sampled_from(
                [{"priority": 2}, {"timeout": 9}, {"class": "best_effort"}, {"binary_data_output": True}, {"mine": 1}]
            ),
            "outputs": st.just([{"name": "y", "parameters": {"binary_data": True}}]),
        },
    ),
)
def test_the_second_time_means_the_same(tails: list[bytes], fields: dict[str, Any]) -> None:
    head, known = request(**fields), two()
    for tail in tails:
        assert parts(decode(known, head, tail)) == parts(decode(two(), head, tail))
    plain = "id" not in fields and fields.get("parameters") != {"mine": 1}
    assert len(known.memo) == plain  # what depends on the header alone, and nothing else


@pytest.mark.parametrize("size", [0, 13, 15, 28])
def test_a_known_header_with_other_bytes_behind_it(size: int) -> None:
    info, head = two(), request()
    decode(info, head, bytes(14))
    with pytest.raises(BadRequest):
        decode(info, head, bytes(size))
    assert decode(info, head, bytes(14)).rows == 1


def test_values_of_bool_are_looked_at_each_time() -> None:
    info = ModelInfo("flags", "1", "test", (spec("x", "BOOL", 2),), (spec("y", "FP32", 2),))
    head = json.dumps({"inputs": [tensor("x", "BOOL", [1, 2], 2)]}).encode()
    decode(info, head, b"\0\1")
    with pytest.raises(BadRequest, match="neither 0 nor 1"):
        decode(info, head, b"\0\2")


def test_what_is_remembered_is_bounded() -> None:
    info = two()
    for number in range(600):
        decode(info, request(outputs=[{"name": "y"}], number=number), bytes(14))
        assert len(info.memo) <= 256
    decode(info, request(pad="x" * 2000), bytes(14))
    assert max(map(len, info.memo)) <= 1024
