"""V2 requests. Whatever the bytes, decoding gives a call or a 4xx of ours, and never another exception."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract import Klass, ModelInfo
from app.errors import BadRequest, StarlingError, TooLarge
from app.http.codecs.base import DecodedCall
from app.http.codecs.v2_decode import load_json

from ..catalog import spec
from .models import BARE, ECHO, TEXT, TOKENS
from .models import decode_v2 as decode

BRAIN = ModelInfo("brain", "1", "pytorch", (spec("x", "BF16", 2),), (spec("y", "BF16", 2),))
MIB = 1 << 20

JSON_ECHO = {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8.5]}]}


def tensor(name: str, shape: list[int], datatype: str, size: int) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}


def with_tail(request: dict[str, Any], tail: bytes) -> tuple[bytes, int]:
    head = json.dumps(request).encode()
    return head + tail, len(head)


def decode_json(request: dict[str, Any], info: ModelInfo = ECHO) -> DecodedCall:
    return decode(json.dumps(request).encode(), None, info, MIB)


def values(call: DecodedCall, info: ModelInfo, index: int = 0) -> list[Any]:
    """A decoded input as nested lists, whether it came as an array or as bytes."""
    array = call.arrays[index]
    if not isinstance(array, np.ndarray):
        one = info.inputs[index]
        row = [call.lengths.get(axis, length) for axis, length in zip(one.axes, one.shape, strict=True)]
        array = np.frombuffer(array, one.dtype).reshape(call.rows, *row)
    found: list[Any] = array.tolist()
    return found


def test_everything_else_of_a_request() -> None:
    asked = {"priority": 3, "timeout": 500, "class": "best_effort", "binary_data_output": True, "mine": [1]}
    outputs = [{"name": "y", "parameters": {"binary_data": False}}]
    request = {**JSON_ECHO, "id": "a", "parameters": asked, "outputs": outputs}
    call = decode_json(request)
    assert (call.id, call.priority, call.timeout_us, call.parameters) == ("a", 3, 500, {"mine": [1]})
    assert call.klass is Klass.BEST_EFFORT
    assert call.outputs == [(0, False)]


def test_null_is_not_given() -> None:
    """Clients with types write it for what they do not set."""
    unset = dict.fromkeys(["priority", "timeout", "class", "binary_data_output", "sequence_id", "mine"])
    output = {"name": "y", "parameters": {"binary_data": None, "classification": None}}
    (x,) = JSON_ECHO["inputs"]
    inputs = [{**x, "parameters": {"binary_data_size": None}}]
    request = {"id": None, "parameters": unset, "inputs": inputs, "outputs": [output]}
    call = decode_json(request)
    assert (call.priority, call.timeout_us, call.klass, call.parameters) == (0, None, None, None)
    assert call.outputs == [(0, False)]
    body, length = with_tail({"inputs": [{**tensor("x", [1, 4], "FP32", 16), "data": None}]}, bytes(16))
    assert decode(body, length, ECHO, MIB).rows == 1


def test_inputs_in_any_order_and_mixed() -> None:
    mask = {"name": "mask", "shape": [1, 3], "datatype": "BOOL", "data": [True, 0, 1]}
    body, length = with_tail({"inputs": [mask, tensor("ids", [1, 3], "INT64", 24)]}, np.arange(3).tobytes())
    call = decode(body, length, TOKENS, MIB)
    assert values(call, TOKENS, 0) == [[0, 1, 2]]
    assert values(call, TOKENS, 1) == [[True, False, True]]
    assert call.lengths == {"n": 3}


def test_strings() -> None:
    raw = b"\x02\0\0\0ab\0\0\0\0"
    body, length = with_tail({"inputs": [tensor("t", [2, 1], "BYTES", len(raw))]}, raw)
    assert values(decode(body, length, TEXT, MIB), TEXT) == [[b"ab"], [b""]]


@pytest.mark.parametrize(("row", "model"), [([1], TEXT), ([], BARE)])
@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_one_text_a_row_has_either_shape(row: list[int], model: ModelInfo, shape: list[int]) -> None:
    request = {"inputs": [{"name": "t", "shape": shape, "datatype": "BYTES", "data": ["ß", {"b64": "/wA="}]}]}
    (array,) = decode_json(request, model).arrays
    assert (array.shape, array.ravel().tolist()) == ((2, *row), ["ß".encode(), b"\xff\0"])
    for wrong in ([], [2, 2], [2, 1, 1]):
        with pytest.raises(BadRequest, match=r"inputs\[0\] \(t\).shape: expected"):
            decode_json({"inputs": [{**request["inputs"][0], "shape": wrong}]}, model)


def test_an_indented_body_of_many_digits() -> None:
    """orjson takes it for one of few values, and has no memory for more."""
    digits = b"1," * 3999 + b"1"
    head = b'{\r\n  "inputs": [{"name": "x", "shape": [1000, 4], "datatype": "FP32", "data": ['
    assert values(decode(head + digits + b"]}]}", None, ECHO, MIB), ECHO) == [[1] * 4] * 1000
    assert load_json(b"[\n  [" + digits + b"]]") == [[1] * 4000]
    for wrong, words in ((b"NaN", r"\(x\).data\[4000\]: NaN is not JSON"), (b'{"\\ud800": 1}', "not valid JSON")):
        with pytest.raises(BadRequest, match=words):
            decode(head + digits + b"," + wrong + b"]}]}", None, ECHO, MIB)
    for wrong in (b"1, 2", b"", b"1], [2", b'{"\\ud800": 1}'):
        with pytest.raises(BadRequest, match="not valid JSON"):
            load_json(wrong)


def test_raw_requests() -> None:
    call = decode(np.arange(12, dtype="<f4").tobytes(), 0, ECHO, MIB)
    assert (call.rows, call.outputs) == (3, [(0, True)])
    assert values(decode(b"anything", 0, TEXT, MIB), TEXT) == [[b"anything"]]
    words = ModelInfo("words", "1", "pytorch", (spec("t", "BYTES", "n", 1),), ())
    call = decode(b"anything", 0, words, MIB)
    assert (values(call, words), call.lengths) == ([[[b"anything"]]], {"n": 1})
    with pytest.raises(BadRequest, match="one input"):
        decode(b"12345678", 0, TOKENS, MIB)
    with pytest.raises(BadRequest, match="multiple of 16"):
        decode(b"12345", 0, ECHO, MIB)


def test_a_length_of_the_json_that_is_missing_or_wrong_is_named() -> None:
    sent, length = with_tail({"inputs": [tensor("x", [1, 4], "FP32", 16)]}, bytes(range(240, 256)))
    for told in (None, length - 1, length + 1):
        with pytest.raises(BadRequest, match=r"not valid JSON: .*; Inference-Header-Content-Length is"):
            decode(sent, told, ECHO, MIB)


SHARED = {"shared_memory_region": "a", "shared_memory_byte_size": 16, "shared_memory_offset": 0}
PLAIN = JSON_ECHO["inputs"][0]


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"parameters": {"sequence_end": True, "priority": 1, "sequence_id": 5}}, ["sequence_id", "sequence_end"]),
        ({"inputs": [{**PLAIN, "parameters": SHARED}],
          "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
         [f"inputs[0] (x).parameters.{name}" for name in SHARED] + ["outputs[0] (y).parameters.classification"]),
        ({"inputs": [{"parameters": SHARED}, {"parameters": SHARED}], "parameters": {"sequence_start": True}},
         ["parameters.sequence_start", "inputs[0].parameters.shared", "inputs[1].parameters.shared"]),
    ],
)  # fmt: skip
def test_all_parameters_that_are_not_supported_are_named(sent: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(BadRequest, match="not supported") as caught:
        decode_json({**JSON_ECHO, **sent})
    assert [name for name in named if name not in caught.value.message] == [], caught.value.message
    assert "priority" not in caught.value.message


def test_a_message_of_parameters_is_bounded() -> None:
    inputs = [{**PLAIN, "parameters": SHARED}] * 6 + [{"name": "x" * 1000, "parameters": SHARED}]
    with pytest.raises(BadRequest, match="and 1 more") as caught:
        decode_json({"inputs": inputs})
    assert caught.value.message.count("shared_memory") == 20
    assert "inputs[6] (" + "x" * 60 + ").parameters" in caught.value.message


@pytest.mark.parametrize("unset", [{"sequence_id": 0}, {"sequence_id": ""}, {"sequence_start": False}])
def test_reserved_parameters_may_say_nothing(unset: dict[str, Any]) -> None:
    assert decode_json({**JSON_ECHO, "parameters": unset}).parameters is None
    output = {"name": "y", "parameters": {"classification": 0}}
    assert decode_json({**JSON_ECHO, "outputs": [output]}).outputs == [(0, False)]


@pytest.mark.parametrize("data", [[0, 2], [True, 2], ["true"], [0.0, 1]])
def test_what_is_no_boolean(data: list[Any]) -> None:
    tensors = [
        {"name": "ids", "shape": [1, len(data)], "datatype": "INT64", "data": [1] * len(data)},
        {"name": "mask", "shape": [1, len(data)], "datatype": "BOOL", "data": data},
    ]
    with pytest.raises(BadRequest, match=r"inputs\[1\] \(mask\)\.data"):
        decode_json({"inputs": tensors}, TOKENS)
    tensors[1] = tensor("mask", [1, len(data)], "BOOL", len(data))
    with pytest.raises(BadRequest, match=r"inputs\[1\] \(mask\): .*neither 0 nor 1"):
        decode(*with_tail({"inputs": tensors}, b"\x02" * len(data)), TOKENS, MIB)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"inputs": None}, "inputs: expected a list of tensors"),
        ({"inputs": [{**PLAIN, "shape": [2, 5]}]}, "inputs[0] (x).shape: expected shape [rows, 4], got [2, 5]"),
        ({"inputs": [{**PLAIN, "shape": [True, 4]}]}, "inputs[0] (x).shape: expected a whole number of rows in the l"),
        ({"inputs": [{**PLAIN, "datatype": "FP64"}]}, "inputs[0] (x).datatype: expected FP32"),
        ({"inputs": [{**PLAIN, "data": [1]}]}, "inputs[0] (x).data: expected 8 values"),
        ({"inputs": [{**PLAIN, "data": [float("nan")] * 8}]}, "inputs[0] (x).data[0]: NaN is not JSON; send a number"),
        ({"inputs": [{**PLAIN, "parameters": {"binary_data_size": 1}}]}, "inputs[0] (x): has both data and"),
        ({"inputs": [PLAIN, PLAIN]}, "inputs[1] (x).name: given twice"),
        ({"inputs": [{**PLAIN, "name": "z"}]}, "inputs[0].name: expected one of x, got 'z'"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "outputs[1] (y).name: asked for twice"),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "outputs[0] (y).parameters.binary_data: "),
        ({"outputs": 3}, "outputs: expected a list"),
        ({"outputs": [3]}, "outputs[0]: expected an object with name"),
        ({"outputs": [{"name": "z"}]}, "outputs[0].name: expected one of y, got 'z'"),
        *(({"parameters": none}, "parameters: expected an object") for none in ([3], [], 0, False)),
        *(({"outputs": [{"name": "y", "parameters": none}]}, "outputs[0] (y).parameters: expected an object")
          for none in ([], 0, False, "")),
        ({"parameters": {"timeout": -1}}, "parameters.timeout: expected an integer from 0 to 9007199254740992, got -1"),
        ({"parameters": {"priority": "high"}}, "parameters.priority: expected an integer from 0 to 2147483647, got 'h"),
    ],
)  # fmt: skip
def test_messages_name_the_tensor_beside_its_path(sent: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_json({**JSON_ECHO, **sent})
    assert caught.value.message[: len(words)] == words


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\x05\0\0\0abc", "element 0 reaches beyond"),
        (b"\x01\0\0\0abc", "2 bytes are left over"),
        (b"\x01\0", "expected 1 BYTES elements"),
    ],
)
def test_strings_that_do_not_fit(raw: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        decode(*with_tail({"inputs": [tensor("t", [1, 1], "BYTES", len(raw))]}, raw), TEXT, MIB)


# anything at all

MASK = {"name": "mask", "shape": [1, 3], "datatype": "BOOL", "data": [[True, False, True]]}
MIXED = {
    "inputs": [MASK, tensor("ids", [1, 3], "INT64", 24)],
    "outputs": [{"name": "sum", "parameters": {"binary_data": True}}],
    "parameters": {"priority": 1, "timeout": 1000, "binary_data_output": False, "k": "v"},
    "id": "7",
}
VALID = [
    (ECHO, json.dumps(JSON_ECHO).encode(), None),
    (ECHO, *with_tail({"inputs": [tensor("x", [2, 4], "FP32", 32)]}, np.arange(8, dtype="<f4").tobytes())),
    (TEXT, *with_tail({"inputs": [tensor("t", [2, 1], "BYTES", 10)]}, b"\x02\0\0\0ab\0\0\0\0")),
    (TOKENS, *with_tail(MIXED, np.arange(3).tobytes())),
    (BRAIN, b"\x80\x3f\x00\x40", 0),
]


def sound(info: ModelInfo, body: bytes, length: int | None) -> None:
    """A call whose tensors are as large as its rows say, or an error that a client caused."""
    try:
        call = decode(body, length, info, MIB)
    except StarlingError as exc:
        assert 400 <= exc.status < 500  # noqa: PT017 - either outcome is right
        assert len(exc.message) < 1000  # noqa: PT017
        return
    assert call.rows >= 1
    for index in range(len(info.inputs)):
        assert len(values(call, info, index)) == call.rows


@given(st.data())
@settings(max_examples=150)
def test_mutated_bytes(data: st.DataObject) -> None:
    info, body, length = data.draw(st.sampled_from(VALID))
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        cut = data.draw(st.integers(0, 3))
        changed[at : at + cut] = data.draw(st.binary(max_size=4))
    if length is not None and data.draw(st.booleans()):
        length = data.draw(st.integers(0, len(changed) + 2))
    sound(info, bytes(changed), length)


TEXTS = st.text(max_size=3) | st.sampled_from(["x", "FP32", "BOOL"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "shape", "data"]), inner),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=80)
def test_mutated_json(data: st.DataObject) -> None:
    """A value anywhere in a valid request is replaced by any other, NaN and infinities among them."""
    info, body, length = data.draw(st.sampled_from(VALID[:4]))
    request = json.loads(body[:length])
    place: Any = request
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))
        deeper = isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans())
        if not deeper:
            break
        place = place[key]
    if data.draw(st.booleans()) and isinstance(place, dict):
        del place[key]
    else:
        place[key] = data.draw(JSON)
    head = json.dumps(request).encode()
    sound(info, head + (body[length:] if length else b""), len(head) if length else None)


@pytest.mark.parametrize("depth", [500, 1000, 5000])
@pytest.mark.parametrize("where", ["name", "datatype", "shape", "data", "parameters"])
def test_deep_nesting(where: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    fields = {"name": '"x"', "shape": "[1, 4]", "datatype": '"FP32"', "data": "[1, 2, 3, 4]", where: nested}
    inner = ", ".join(f'"{key}": {value}' for key, value in fields.items())
    sound(ECHO, f'{{"inputs": [{{{inner}}}]}}'.encode(), None)
    sound(ECHO, f'{{"inputs": [{{{inner}, "nan": NaN}}]}}'.encode(), None)


ANY_LENGTH = ModelInfo("any", "1", "test", (spec("x", "FP32", "n", 3, bound=0),), (spec("y", "FP32"),))


@pytest.mark.parametrize(
    ("info", "empty"),
    [(ECHO, 16), (TOKENS, 72), (TEXT, 4), (ANY_LENGTH, 12)],
    ids=["numbers", "bounded", "bytes", "unbounded"],
)
def test_too_much_json_shows_the_request_that_carries_it_as_binary(info: ModelInfo, empty: int) -> None:
    with pytest.raises(TooLarge, match=r"expected at most 9 bytes of JSON \(--max-json-mib\), got 10") as raised:
        decode(b'{"a": "b"}', None, info, 9)
    _, _, told = str(raised.value).partition("Inference-Header-Content-Length: ")
    length, _, rest = told.partition(" and the body ")
    assert decode(rest[: int(length)].encode() + bytes(empty), int(length), info, MIB).rows == 1
    assert (f"as the body of POST /predict/{info.name}" in told) == (len(info.inputs) == 1)


def two() -> ModelInfo:
    return ModelInfo("two", "1", "test", (spec("a", "FP32", 2), spec("b", "INT16", "n")), (spec("y", "FP32", 2),))


def two_inputs(**fields: Any) -> bytes:
    inputs = [tensor("b", [1, 3], "INT16", 6), tensor("a", [1, 2], "FP32", 8)]
    return json.dumps({"inputs": inputs, **fields}).encode()


def plain(call: DecodedCall) -> DecodedCall:
    """The call, with its arrays as values that can be compared."""
    arrays: Any = [bytes(array) if isinstance(array, memoryview) else array.tolist() for array in call.arrays]
    return replace(call, arrays=arrays)


PARAMETERS = [{"priority": 2}, {"timeout": 9}, {"class": "best_effort"}, {"binary_data_output": True}, {"mine": 1}]
FIELDS = {
    "id": st.just("r"),
    "parameters": st.sampled_from(PARAMETERS),
    "outputs": st.just([{"name": "y", "parameters": {"binary_data": True}}]),
}


@given(
    st.lists(st.binary(min_size=14, max_size=14), min_size=2, max_size=4), st.fixed_dictionaries({}, optional=FIELDS)
)
def test_the_second_time_means_the_same(tails: list[bytes], fields: dict[str, Any]) -> None:
    head, known = two_inputs(**fields), two()
    for tail in tails:
        assert plain(decode(head + tail, len(head), known, MIB)) == plain(decode(head + tail, len(head), two(), MIB))
    alone = "id" not in fields and fields.get("parameters") != {"mine": 1}
    assert len(known.memo) == alone  # what depends on the header alone, and nothing else


@pytest.mark.parametrize("size", [0, 13, 15, 28])
def test_a_known_header_with_other_bytes_behind_it(size: int) -> None:
    info, head = two(), two_inputs()
    decode(head + bytes(14), len(head), info, MIB)
    with pytest.raises(BadRequest):
        decode(head + bytes(size), len(head), info, MIB)
    assert decode(head + bytes(14), len(head), info, MIB).rows == 1


def test_values_of_bool_are_looked_at_each_time() -> None:
    info = ModelInfo("flags", "1", "test", (spec("x", "BOOL", 2),), (spec("y", "FP32", 2),))
    head = json.dumps({"inputs": [tensor("x", [1, 2], "BOOL", 2)]}).encode()
    decode(head + b"\0\1", len(head), info, MIB)
    with pytest.raises(BadRequest, match="neither 0 nor 1"):
        decode(head + b"\0\2", len(head), info, MIB)


def test_what_is_remembered_is_bounded() -> None:
    info = two()
    for number in range(600):
        head = two_inputs(outputs=[{"name": "y"}], number=number)
        decode(head + bytes(14), len(head), info, MIB)
        assert len(info.memo) <= 256
    head = two_inputs(pad="x" * 2000)
    decode(head + bytes(14), len(head), info, MIB)
    assert max(len(head) for head, _ in info.memo) <= 1024
