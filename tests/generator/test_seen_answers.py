"""Right answers are let through, and each way of being wrong is named."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from loadtest.generator import seen_answers
from loadtest.generator.http import Response
from loadtest.generator.payload import Body, Tensor
from loadtest.generator.seen_answers import UNCHECKED, SeenAnswers, decode

from .scripted import v2

Y = Tensor("y", "FP32", (1,), batched=True)
BODIES = [Body(b"", 2, (Y,)), Body(b"", 2, (Y,)), Body(b"", 2, ())]


def response(body: bytes | Any, head: bytes = b"") -> Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(200, b"\r\n" + head, data, True)


def judged(*given: tuple[int, Any], values: bool = True) -> list[str]:
    """Faults of answers to (body, answer), in order."""
    found = SeenAnswers(BODIES, values=values)
    numbers = [found.note(body, response(answer)) for body, answer in given]
    faults = found.judge()
    return [faults[number] for number in numbers]


def test_right_and_nearly_equal() -> None:
    assert judged((0, v2(2, 0.5)), (0, v2(2, 0.50001)), (1, v2(2, 7.0)), (0, v2(2, 0.5))) == [""] * 4


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"<html>", "not a V2 answer"),
        ([], "not a V2 answer"),
        ({"outputs": []}, "wrong outputs"),
        (v2(1), "wrong shape"),
        (v2(2, shape=[2]), "wrong shape"),
        (v2(2, datatype="FP64"), "wrong shape"),
        (v2(2, 0.6), "wrong values"),
        (b'{"outputs": [NaN]}', "not a V2 answer"),
    ],
)
def test_wrong(answer: Any, kind: str) -> None:
    first, second = judged((0, v2(2, 0.5)), (0, answer))
    assert first == ""
    assert second.partition(":")[0] == kind


def test_answers_of_the_friendly_route_are_json_with_the_same_values() -> None:
    found = SeenAnswers([Body(b"", 1, None)], values=True)
    right = [{"label": "a", "p": [0.5, 2]}, {"label": "a", "p": [0.50001, 2]}]
    wrong = [{"label": "b", "p": [0.5, 2]}, {"label": "a", "p": [0.5, 3]}, {"label": "a", "p": [0.5]}]
    for answer in (*right, *wrong, b"no"):
        found.note(0, response(answer))
    faults = [fault.partition(":")[0] for fault in found.judge()]
    assert faults == ["", "", *["wrong values"] * 3, "not JSON"]


def test_values_need_not_agree_where_only_shapes_are_asked_for() -> None:
    assert judged((0, v2(2, 0.5)), (0, v2(2, 9.0)), (0, v2(1)), values=False)[:2] == ["", ""]


def test_too_many_different_answers_go_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_answers, "_KEEP", 10)
    found = SeenAnswers(BODIES, values=True)
    assert [found.note(0, response(v2(2, value))) for value in (1.0, 2.0, 1.0)] == [0, UNCHECKED, 0]


def test_binary() -> None:
    outputs = [
        {"name": "a", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
        {"name": "j", "datatype": "INT8", "shape": [1, 2], "data": [[1, 2]]},
        {"name": "b", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 11}},
        {"name": "c", "datatype": "BF16", "shape": [1], "parameters": {"binary_data_size": 2}},
    ]
    head = json.dumps({"outputs": outputs}).encode()
    raw = struct.pack("<2f", 1, 2) + b"\x01\0\0\0x\x02\0\0\0yz" + b"\xc0\x3f"
    found = decode(head + raw, str(len(head)))
    assert {name: (kind, values.tolist()) for name, (kind, values) in found.items()} == {
        "a": ("FP32", [1.0, 2.0]), "j": ("INT8", [[1, 2]]), "b": ("BYTES", [b"x", b"yz"]), "c": ("BF16", [1.5]),
    }  # fmt: skip
    with pytest.raises(ValueError, match="fewer bytes"):
        decode(head + raw[:-1], str(len(head)))


@pytest.mark.parametrize(("datatype", "values"), [("INT64", [1, 2]), ("BYTES", ["a", "b"]), ("BOOL", [True, False])])
def test_what_is_no_float_agrees_exactly(datatype: str, values: list[Any]) -> None:
    tensor = {"name": "y", "datatype": datatype, "shape": [-1]}
    found = SeenAnswers([Body(b"", 2, (Tensor.parse(tensor),))], values=True)
    for data in (values, values[::-1]):
        found.note(0, response({"outputs": [{**tensor, "shape": [2], "data": data}]}))
    faults = found.judge()
    assert faults[0] == ""
    assert faults[1].startswith("wrong values")
