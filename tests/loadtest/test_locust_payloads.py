"""A right answer passes its check, and an answer with anything wrong in it does not."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.payloads import POOL, SAMPLES, Mix, Request, WrongAnswer, image_files, is_overload, v2_binary, v2_json

LENGTH = "Inference-Header-Content-Length"
ECHO = {
    "name": "echo",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}
TEXT = {
    "name": "text",
    "inputs": [
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "attention_mask", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "title", "datatype": "BYTES", "shape": [-1, 2]},
    ],
    "outputs": [
        {"name": "words", "datatype": "FP32", "shape": [-1, -1]},
        {"name": "kind", "datatype": "INT64", "shape": [-1]},
    ],
}
DIGITS = {
    "name": "digits",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 8, 8]}],
    "outputs": [
        {"name": "label", "datatype": "INT64", "shape": [-1]},
        {"name": "scores", "datatype": "FP32", "shape": [-1, 10]},
    ],
}
MIX = Mix("uniform:1:3", "uniform:2:9", seed=5)


def told(request: Request) -> dict[str, Any]:
    """The JSON of a request, of a binary one its head."""
    length = request.headers.get(LENGTH)
    found: dict[str, Any] = json.loads(request.body if length is None else request.body[: int(length)])
    return found


# --- requests


def test_json_and_binary_carry_the_same_values() -> None:
    for text, raw in zip(v2_json(ECHO, MIX), v2_binary(ECHO, MIX), strict=True):
        (tensor,) = told(text)["inputs"]
        (head,) = told(raw)["inputs"]
        assert tensor["shape"] == head["shape"] == [text.rows, 4]
        tail = raw.body[int(raw.headers[LENGTH]) :]
        assert struct.pack(f"<{4 * text.rows}f", *tensor["data"]) == tail
        assert head["parameters"]["binary_data_size"] == len(tail)


def test_a_seed_makes_the_same_requests_and_another_one_others() -> None:
    bodies = [request.body for request in v2_json(TEXT, MIX)]
    assert len(bodies) == POOL
    assert bodies == [request.body for request in v2_json(TEXT, MIX)]
    assert bodies != [request.body for request in v2_json(TEXT, Mix(MIX.rows, MIX.lengths, seed=6))]


def test_variable_axes_of_a_request_share_one_length() -> None:
    requests = v2_json(TEXT, MIX)
    shapes = [{tensor["name"]: tensor["shape"] for tensor in told(request)["inputs"]} for request in requests]
    assert all(shape["ids"] == shape["attention_mask"] == [shape["title"][0], shape["ids"][1]] for shape in shapes)
    assert {shape["ids"][1] for shape in shapes} == set(range(2, 10))
    assert {request.rows for request in requests} == {1, 2, 3} == {shape["ids"][0] for shape in shapes}


def test_strings_have_their_lengths_on_the_wire() -> None:
    request = v2_binary(TEXT, MIX)[0]
    tail = request.body[int(request.headers[LENGTH]) :]
    sizes = [tensor["parameters"]["binary_data_size"] for tensor in told(request)["inputs"]]
    assert sum(sizes) == len(tail)
    strings, count = tail[-sizes[-1] :], 0
    while strings:
        (size,) = struct.unpack_from("<I", strings)
        assert strings[4 : 4 + size].startswith(b"word")
        strings, count = strings[4 + size :], count + 1
    assert count == 2 * request.rows


# --- V2 answers


def json_answer(request: Request) -> dict[str, Any]:
    """What `echo` answers."""
    (tensor,) = told(request)["inputs"]
    return {"outputs": [{**tensor, "name": "y"}]}


def check_json(request: Request, answer: Any, headers: Mapping[str, str] | None = None) -> None:
    request.check(headers or {}, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


def test_a_right_json_answer_passes_whatever_its_digits() -> None:
    request = v2_json(ECHO, MIX)[0]
    answer = json_answer(request)
    check_json(request, answer)
    (output,) = answer["outputs"]
    output["data"] = [float(f"{number:.9g}") for number in output["data"]]
    check_json(request, answer)
    output["data"] = np.reshape(output["data"], output["shape"]).tolist()
    check_json(request, answer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "z"}, "outputs: expected y, got z"),
        ({"datatype": "FP64"}, "expected y FP32 .3, 4., got FP64"),
        ({"shape": [7, 4]}, "12 values for the shape"),
        ({"shape": [2, 6]}, "wrong shape: expected y FP32"),
        ({"shape": None}, "got TypeError"),
        ({"data": [1.0]}, "y: 1 values for the shape"),
        ({"data": None}, "y: 1 values for the shape"),
        ({"data": [0.0] * 12}, "output y: expected the values that were sent"),
    ],
)
def test_a_wrong_json_answer_fails(change: dict[str, Any], message: str) -> None:
    request = next(request for request in v2_json(ECHO, MIX) if request.rows == 3)
    answer = json_answer(request)
    answer["outputs"][0] |= change
    with pytest.raises(WrongAnswer, match=message):
        check_json(request, answer)


def check_binary(request: Request, raw: bytes, said: int) -> None:
    outputs = [{"name": "y", "datatype": "FP32", "shape": [request.rows, 4], "parameters": {"binary_data_size": said}}]
    head = json.dumps({"outputs": outputs}).encode()
    request.check({LENGTH: str(len(head))}, head + raw)


def test_binary_answers_are_compared_byte_for_byte() -> None:
    request = v2_binary(ECHO, MIX)[0]
    right = request.body[int(request.headers[LENGTH]) :]
    check_binary(request, right, len(right))
    with pytest.raises(WrongAnswer, match="the values that were sent"):
        check_binary(request, bytes(len(right)), len(right))
    with pytest.raises(WrongAnswer, match="values for the shape"):
        check_binary(request, right[:-4], len(right) - 4)


def test_only_the_form_is_known_of_other_models() -> None:
    request = v2_json(TEXT, MIX)[0]
    outputs = [
        {"name": "kind", "datatype": "INT64", "shape": [request.rows], "data": [0] * request.rows},
        {"name": "words", "datatype": "FP32", "shape": [request.rows, 5], "data": [0.5] * (5 * request.rows)},
    ]
    check_json(request, {"outputs": outputs})
    with pytest.raises(WrongAnswer, match="outputs: expected words, kind, got kind"):
        check_json(request, {"outputs": outputs[:1]})


# --- images


def test_the_demos_images_know_their_labels() -> None:
    requests = image_files(DIGITS)
    assert [request.headers["Content-Type"] for request in requests].count("image/jpeg") == 4
    assert {request.path for request in requests} == {"/predict/digits"}
    for digit, request in enumerate(requests):
        answer = {"label": digit, "probability": 0.9, "scores": {str(n): 0.1 for n in range(10)}}
        check_json(request, answer)
        with pytest.raises(WrongAnswer, match=f"label: expected {digit}, got 11"):
            check_json(request, {**answer, "label": 11})
        with pytest.raises(WrongAnswer, match="scores: expected an object of 10"):
            check_json(request, {**answer, "scores": {"0": 1.0}})
        with pytest.raises(WrongAnswer, match="scores: expected an object of 10, got NoneType"):
            check_json(request, {**answer, "scores": None})
        with pytest.raises(WrongAnswer, match="body: expected label, probability, scores, got label"):
            check_json(request, {"label": digit})


def test_other_images_have_no_known_label(tmp_path: Path) -> None:
    (tmp_path / "3.png").write_bytes((SAMPLES / "4.png").read_bytes())
    (tmp_path / "notes.txt").write_text("no image")
    (request,) = image_files(DIGITS, tmp_path)
    check_json(request, {"label": 4, "probability": 0.9, "scores": {str(n): 0.1 for n in range(10)}})
    assert image_files(DIGITS, tmp_path / "3.png")[0].body == request.body


@pytest.mark.parametrize(
    ("failure", "overload"),
    [
        ("POST m V2 JSON: status 429", True), ("POST m V2 JSON: 'status 503'", True),
        ("POST m V2 JSON: ConnectionRefusedError(111)", True), ("POST m V2 JSON: status 500", False),
        ("POST m V2 JSON: status 400: x: wrong shape", False),
        ("POST m V2 JSON: 'wrong answer: output y: expected the values that were sent'", False),
    ],
)  # fmt: skip
def test_a_ramp_is_meant_to_see_overload_and_nothing_else(failure: str, overload: bool) -> None:
    assert is_overload(failure) is overload
