"""Rows as JSON: V1's instances and predictions, and how rows look in the answers of V1 and the friendly route."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from app.contract import QUICK_VALUES, UNBOUNDED, Answer, Array, Batching
from app.errors import BadRequest, ModelFailed
from app.http.codecs.base import DecodedCall
from app.http.codecs.rows import V1, json_text, own_rows, plain_rows, present_rows

from ..catalog import FakeServed, served, spec
from ..echo import LIMITS
from .models import IMAGE, SCALAR, SEQUENCES, STRING, VECTOR, Y, refused


def decode_v1(model: FakeServed, body: Any) -> DecodedCall:
    return V1().decode(model, {}, orjson.dumps(body), LIMITS)


def encoded(value: Any) -> Any:
    """The answer as a client reads it."""
    return orjson.loads(json_text(value, "m"))


def test_rows_are_counted_before_they_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long row among many short ones would take gigabytes."""
    monkeypatch.setattr("app.http.codecs.columns._MOST_PADDED", 600)
    labels = served("labels", (spec("labels", "BYTES", "labels", bound=UNBOUNDED),), Y)
    short = replace(labels.info, batching=Batching(max_queue=8))
    for instances, message in (
        ([["a"]] * 8 + [3], "9 rows in one request: the queue of model 'labels' holds 8"),
        ([["a"]] * 6 + [["a"] * 100], "instances: 7 rows of input 'labels', padded to the longest, are more than 600"),
    ):
        with pytest.raises(BadRequest, match=f"^{message}"):
            decode_v1(replace(labels, info=short), {"instances": instances})
    assert decode_v1(labels, {"instances": [["a"] * 150]}).lengths == {"labels": 150}


@pytest.mark.parametrize(
    ("model", "instances", "arrays"),
    [
        (VECTOR, [[1, 2, 3, 4], [5, 6, 7, 8]], [[[1, 2, 3, 4], [5, 6, 7, 8]]]),
        (VECTOR, [{"x": [1, 2, 3, 4]}], [[[1, 2, 3, 4]]]),
        (IMAGE, [[1, 2, 3, 4, 5, 6]], [[[[1, 2, 3], [4, 5, 6]]]]),
        (SCALAR, [1, 2, 3], [[1, 2, 3]]),
        (STRING, [{"b64": "/wA="}, "a"], [[[b"\xff\0"], [b"a"]]]),
        (STRING, [{"text": "a"}, {"text": {"b64": "YQ=="}}], [[[b"a"], [b"a"]]]),
        (SEQUENCES, [{"ids": [1, 2], "mask": [1, 1]}, {"mask": [1, 0], "ids": [3, 4]}],
         [[[1, 2], [3, 4]], [[1, 1], [1, 0]]]),
    ],
)  # fmt: skip
def test_instances(model: FakeServed, instances: Any, arrays: list[Any]) -> None:
    call = decode_v1(model, {"instances": instances, "signature_name": "serving_default"})
    assert (call.rows, call.single) == (len(instances), False)
    assert [array.tolist() for array in call.arrays] == arrays
    assert [array.dtype for array in call.arrays] == [tensor.dtype for tensor in model.info.inputs]


def test_rows_of_different_lengths_are_padded_with_their_lengths_beside() -> None:
    """And the answer has each row's own values: as of as many requests."""
    model = served(
        "m", (spec("ids", "INT64", "n", bound=4, minimum=5), spec("w", "BYTES", "n")), (spec("y", "FP32", "n"),)
    )
    rows = [{"ids": [7, 8, 9], "w": ["a", "b", "c"]}, {"ids": [6], "w": ["d"]}]
    call = decode_v1(model, {"instances": rows})
    assert (call.rows, call.lengths, call.own_lengths) == (2, {"n": 3}, {"n": [3, 1]})
    assert call.arrays[0].tolist() == [[7, 8, 9], [6, 7, 7]]  # in the range of the input
    assert call.arrays[1].tolist() == [[b"a", b"b", b"c"], [b"d", None, None]]
    answer = Answer([np.array([[1, 2, 3], [4, 0, 0]], np.float32)], 0, 0, 1)
    assert encoded(plain_rows(model.info, own_rows(model, call, answer))) == [[1, 2, 3], [4]]
    even = decode_v1(model, {"instances": [rows[0], rows[0]]})
    assert (even.lengths, even.own_lengths) == ({"n": 3}, None)


@pytest.mark.parametrize("x", [[1, 2], [[1], [2]], [1, [2]], [[1], 2]])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_number_a_row_may_have_an_axis_or_none(x: list[Any], shape: tuple[int, ...]) -> None:
    model = served("m", (spec("x", "INT64", *shape), spec("z", "FP32")), Y)
    call = decode_v1(model, {"instances": [{"x": one, "z": 0} for one in x]})
    assert call.arrays[0].tolist() == np.reshape([1, 2], (2, *shape)).tolist()


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        (VECTOR, [], ["body:", "instances"]),
        (VECTOR, {"inputs": [[1, 2, 3, 4]]}, ["inputs:", "instances"]),
        (VECTOR, {"instances": [[1, 2, 3, 4]], "inputs": [[1, 2, 3, 4]]}, ["inputs:", "columnar", "instances"]),
        (VECTOR, {"instances": []}, ["instances:", "one element per row, got []"]),
        (VECTOR, {"instances": [1, 2, 3, 4]}, ["instances:", "[rows, 4]", "got [4]"]),
        (VECTOR, {"instances": [{"x": [1, 2, 3, 4]}, [1, 2, 3, 4]]}, ["instances[1]:", "an object with input 'x'"]),
        (STRING, {"instances": [{"b64": "?"}]}, ["instances:", "base64"]),
        (SEQUENCES, {"instances": [{"ids": [1], "mask": [1]}, {"ids": [], "mask": []}]},
         ["ids[1]:", "tokens <= 8", "[1, 0]"]),
        (SEQUENCES, {"instances": [{"ids": [1], "mask": [1, 1]}]},
         ["instances:", "axis 'tokens' of row 0 has length 2 in input 'mask'"]),
    ],
)  # fmt: skip
def test_bodies_that_do_not_fit(model: FakeServed, body: Any, words: list[str]) -> None:
    refused(words, decode_v1, model, body)


def test_files_as_base64_are_decoded_by_the_model() -> None:
    def lengths(content_type: str, body: bytes) -> dict[str, Any]:
        return {"x": np.full(4, len(body), np.float32)}

    model = served("m", VECTOR.info.inputs, Y, decode=lengths)
    for second in ({"b64": "YQ=="}, {"x": {"b64": "YQ=="}}):  # by the input's name, as KServe's examples have it
        call = decode_v1(model, {"instances": [{"b64": "YWI="}, second]})
        assert (call.rows, call.single) == (2, False)
        assert call.arrays[0].tolist() == [[2] * 4, [1] * 4]
    with pytest.raises(BadRequest, match=r"instances\[1\]: b64: expected a base64 string"):
        decode_v1(model, {"instances": [{"b64": "YWI="}, {"b64": "?"}]})
    with pytest.raises(BadRequest, match=r'instances: expected numbers, or {"b64": "..."} for a file in base64'):
        decode_v1(model, {"instances": ["YWI="]})


ROWS = np.array([[0.1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


def call_of(rows: int, *, single: bool) -> DecodedCall:
    return DecodedCall(rows, [np.zeros((rows, 4))], {}, single=single)


def shown(model: FakeServed, *outputs: Array, single: bool = False) -> Any:
    """What the friendly route answers with these."""
    return encoded(present_rows(model, [*outputs], call_of(len(outputs[0]), single=single)))


def test_outputs_by_name() -> None:
    two = served("two", VECTOR.info.inputs, (spec("y", "FP32", 4), spec("t", "BYTES")))
    texts = np.array([b"a", "ß".encode()], object)
    first, second = {"y": [0.1, 2, 3, 4], "t": "a"}, {"y": [5, 6, 7, 8], "t": "ß"}
    assert shown(two, ROWS, texts) == encoded(plain_rows(two.info, [ROWS, texts])) == [first, second]
    assert shown(two, ROWS[:1], texts[:1]) == [first]
    assert shown(two, ROWS[:1], texts[:1], single=True) == first
    assert encoded(plain_rows(VECTOR.info, [ROWS])) == [first["y"], second["y"]]


def test_large_arrays_are_written_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a single row: for each orjson keeps the interpreter lock, in which no other request is served."""
    sizes, dumps = list[int](), orjson.dumps

    def largest(value: Any) -> int:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return value.size if isinstance(value, np.ndarray) else max(map(largest, parts), default=0)

    def seen(value: Any, **options: Any) -> bytes:
        sizes.append(largest(value))
        return dumps(value, **options)

    one = served("one", VECTOR.info.inputs, (spec("y", "FP32", 2 * QUICK_VALUES),))
    two = served("two", VECTOR.info.inputs, (*one.info.outputs, spec("z", "FP32", 2 * QUICK_VALUES)))
    rows = np.ones((1, 2 * QUICK_VALUES), np.float32)
    row = rows[0].tolist()
    monkeypatch.setattr(orjson, "dumps", seen)
    assert shown(one, rows, single=True) == {"y": row}
    assert encoded(plain_rows(one.info, [rows])) == [row]
    assert encoded(plain_rows(one.info, [[rows[0], rows[0, :2]]])) == [row, [1, 1]]
    assert encoded(plain_rows(two.info, [rows, rows])) == [{"y": row, "z": row}]
    assert max(sizes) == QUICK_VALUES


def test_rows_are_as_long_as_each_ran() -> None:
    written = served("w", VECTOR.info.inputs, (spec("text", "UINT8", "written"), spec("n", "INT64")))
    written.info = replace(written.info, own_axes=("written",))
    arrays = [np.array([[7, 8, 9], [5, 0, 0]], np.uint8), np.array([3, 1])]
    rows = own_rows(written, call_of(2, single=False), Answer(arrays, 0, 0, 1, lengths=[3, 1]))
    both = [{"text": [7, 8, 9], "n": 3}, {"text": [5], "n": 1}]
    assert shown(written, *rows) == encoded(plain_rows(written.info, rows)) == both
    one = own_rows(written, call_of(1, single=True), Answer([array[:1] for array in arrays], 0, 0, 1, lengths=[3]))
    assert shown(written, *one, single=True) == both[0]
    presenting = served("p", VECTOR.info.inputs, written.info.outputs, present=lambda row: row["text"].tolist())
    assert shown(presenting, *rows) == [[7, 8, 9], [5]]


def test_bf16_is_shown_as_numbers() -> None:
    model = served("b", VECTOR.info.inputs, (spec("y", "BF16", 2),))
    assert shown(model, np.array([[0x3F80, 0xC000]], np.uint16), single=True) == {"y": [1.0, -2.0]}


def test_present_sees_one_row_without_the_batch_dimension() -> None:
    def present(outputs: Any) -> dict[str, Any]:
        return {"top": np.float32(outputs["y"].max()), "all": outputs["y"], "shape": outputs["y"].shape, "b": b"x"}

    model = served("p", VECTOR.info.inputs, Y, present=present)
    first = {"top": 4.0, "all": [0.1, 2, 3, 4], "shape": [4], "b": "x"}
    assert shown(model, ROWS)[0] == shown(model, ROWS[:1], single=True) == first


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_json_has_not_is_null_and_the_others_stay(bad: float) -> None:
    """V2, which has a binary form, refuses it: test_v2_encode.py."""
    rows = np.array([[bad, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    wanted = [[None, 2, 3, 4], [5, 6, 7, 8]]
    assert encoded(plain_rows(VECTOR.info, [rows])) == wanted
    assert shown(VECTOR, rows) == [{"y": one} for one in wanted]
    for value, found in (
        (rows[0], wanted[0]),
        ({"deep": [float(bad), b"x"]}, {"deep": [None, "x"]}),
        (rows[0, 0], None),
    ):
        model = served("p", VECTOR.info.inputs, Y, present=lambda outputs, value=value: value)
        assert shown(model, rows[:1], single=True) == found


def test_labels_name_the_top_score_and_a_row_of_nan_has_none() -> None:
    labelled = served("l", VECTOR.info.inputs, (spec("y", "FP32", 2, labels=("a", "b")),))
    rows = np.array([[np.nan, np.nan], [0, np.inf]], np.float32)
    found = [row["y"] for row in shown(labelled, rows)]
    assert found == [{"label": None, "scores": [None, None]}, {"label": "b", "scores": [0, None]}]


def test_what_json_does_not_have() -> None:
    """A text "null" and None are values as others; a date is none, whatever the encoder makes of it."""
    mixed, names = np.array([None, 1, b"x"], object), np.array([["a"], ["null"]])
    (found,) = encoded([{"a": None, "b": "null", "c": (1, b"x"), 3: np.int64(4), "mixed": mixed, "names": names}])
    assert found.pop("mixed") == [None, 1, "x"]
    assert found.pop("names") == [["a"], ["null"]]
    assert found == {"a": None, "b": "null", "c": [1, "x"], "3": 4}
    times = np.array(["2026-01-02"], "M8[ns]")
    assert encoded([{"a": b"x", "times": times}]) == [{"a": "x", "times": ["2026-01-02T00:00:00"]}]
    for value in (datetime.date(2026, 1, 2), DecodedCall(1, [], {}), b"\x89PNG", np.array(1j)):
        with pytest.raises(ModelFailed, match=r"at answer\[0\].day"):
            encoded([{"day": value}])
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in ("\ud800", 1 << 64, cycle, {"\udfff": 1}):
        with pytest.raises(ModelFailed, match="model m: its present returned what is no JSON: "):
            encoded([value])
