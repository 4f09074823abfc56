"""Answers that are not what they should be become BadAnswer or ServerError, and nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starling_client import BadAnswer, ServerError
from starling_client.batches import _joined
from starling_client.http import address, client_version, common_headers
from starling_client.wire import Answer, Events, Part, decode, decode_error, decode_metadata

Y = {"name": "y", "datatype": "FP32", "shape": [1, 2]}


def answered(outputs: Any, tail: bytes = b"", length: int | None = None, **headers: str) -> Answer:
    text = json.dumps({"model_version": "3", "outputs": outputs}).encode()
    size = {"inference-header-content-length": str(len(text) if length is None else length)} if tail or length else {}
    return Answer(200, {**size, **headers}, text + tail)


def test_an_answer() -> None:
    part = decode(answered([{**Y, "data": [1, 2]}], **{"x-request-id": "r"}), ["y"], 1)
    assert (part.version, part.outputs["y"].tolist(), part.request_id) == ("3", [[1, 2]], "r")
    binary = {**Y, "parameters": {"binary_data_size": 8}}
    assert decode(answered([binary], b"\0" * 8), ["y"], 1).outputs["y"].tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(200, {}, b"<html>"), "not V2"),
        (Answer(200, {}, b"{}"), "not V2: KeyError: 'outputs'"),
        (answered([Y]), "not V2: KeyError: 'data'"),
        (answered([{**Y, "shape": [float("inf")], "data": []}]), "not V2: OverflowError"),
        (answered([{**Y, "data": [1, 2], "parameters": {"lengths": 1}}]), "not V2"),
        (answered([{**Y, "data": [1, 2]}], b"rest"), "4 bytes are left over"),
        (answered([{**Y, "parameters": {"binary_data_size": 8}}], b"rest"), "8 bytes, but 4 are left"),
        (answered([{**Y, "data": [1, 2]}], length=5000), "5000 bytes of JSON in a body"),
        (answered([]), "outputs y are missing"),
        (answered([{**Y, "shape": [2, 1], "data": [1, 2]}]), r"1 rows were sent, and shape \[2, 1\] came back"),
    ],
)
def test_what_is_no_answer(answer: Answer, message: str) -> None:
    with pytest.raises(BadAnswer, match=message):
        decode(answer, ["y"], 1)


@settings(max_examples=50)
@given(st.binary(max_size=60), st.none() | st.integers(-5, 80), st.booleans())
def test_any_bytes_at_all(body: bytes, length: int | None, real: bool) -> None:
    text = json.dumps({"outputs": [{**Y, "parameters": {"binary_data_size": 8}}]}).encode() if real else b""
    headers = {} if length is None else {"inference-header-content-length": str(length)}
    try:
        found = decode(Answer(200, headers, text + body), ["y"], 1)
    except BadAnswer:
        return
    assert found.outputs["y"].shape == (1, 2)


_KEYS = st.sampled_from(["name", "outputs", "inputs", "shape", "datatype", "parameters", "versions"])
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["y", "FP32", "BYTES", ""])
_JSON = st.recursive(
    _LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(_KEYS, one, max_size=4), max_leaves=9
)


@settings(max_examples=50)
@given(_JSON)
def test_any_json_at_all(found: Any) -> None:
    answer = Answer(200, {}, json.dumps({"outputs": [found], "inputs": [found], "name": found}).encode())
    for act in (lambda: decode(answer, ["y"], 1), lambda: decode_metadata(answer)):
        with suppress(BadAnswer):
            act()


def test_json_that_is_nested_too_deeply() -> None:
    deep = b'{"a":' * 99_999
    with pytest.raises(BadAnswer, match="expected an event"):
        [*Events().read(b"data: %s\n" % deep)]
    for act in (lambda one: decode(one, ["y"], 1), decode_metadata):
        with pytest.raises(BadAnswer):
            act(Answer(200, {}, deep))


@pytest.mark.parametrize(
    ("status", "headers", "body", "message"),
    [
        (400, {}, b'{"error": "x: no"}', "x: no"),
        (502, {}, b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (599, {}, b"", "status 599"),
        (500, {}, b"\xff" * 9999, "\ufffd" * 300),
        (500, {}, b"[" * 99_999, "[" * 300),
        (307, {"location": "https://there/"}, b"", "redirected to https://there/: give the client that address"),
    ],
)
def test_errors(status: int, headers: dict[str, str], body: bytes, message: str) -> None:
    error = decode_error(Answer(status, headers, body))
    assert isinstance(error, ServerError)
    assert (error.status, error.message, str(error)) == (status, message, f"{status}: {message}")


def part(values: Any, version: str = "1", dtype: Any = "f4", **lengths: tuple[int, ...]) -> Part:
    array = np.array(values, dtype)
    return Part({"y": array}, version, len(array), dict(lengths), "", {}, 0)


def test_rows_that_end_by_themselves_are_as_long_as_the_longest_of_all_parts() -> None:
    """A part of one row is as long as it is, and the server says no lengths."""
    joined = _joined([part([[1, 2, 3], [4, 0, 0]], y=(3, 1)), part([[5]])])
    assert joined.outputs["y"].tolist() == [[1, 2, 3], [4, 0, 0], [5, 0, 0]]
    assert joined.lengths == {"y": (3, 1, 1)}
    assert _joined([part([[1, 2]]), part([[5, 6]])]).lengths == {}
    texts = _joined([part([[b"a", b"b"]], dtype=object), part([[b"c"]], dtype=object)])
    assert texts.outputs["y"].tolist() == [[b"a", b"b"], [b"c", b""]]


def test_parts_of_other_shapes_do_not_join() -> None:
    with pytest.raises(BadAnswer, match=r"parts of shapes \[1, 1, 2\], \[1, 1, 3\]"):
        _joined([part([[[1, 2]]]), part([[[1, 2, 3]]])])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("https://ingress/models//", "https://ingress/models"),
    ],
)
def test_addresses(url: str, expected: str) -> None:
    assert address(url) == expected


@pytest.mark.parametrize("url", ["http://", "ftp://host", "http://host?x=1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="url: expected"):
        address(url)


def test_headers_of_the_callers_own_win() -> None:
    headers = common_headers(None, {"Accept-Encoding": "gzip", "User-Agent": "mine"})
    assert headers == {"accept-encoding": "gzip", "user-agent": "mine"}
    assert common_headers("k", None)["user-agent"] == f"starling-client/{client_version()}"


@pytest.mark.parametrize("value", ["secret\n", " secret", "s\u00e9cret"])
def test_a_key_that_no_header_can_hold_is_told_of_at_once_and_not_shown(value: str) -> None:
    """As of a file that was read with its line's end. httpx says then that the connection broke, and shows it."""
    for field, key, headers in (("api_key", value, None), ("header x-other", None, {"X-Other": value})):
        with pytest.raises(ValueError, match=f"^{field}: expected visible ASCII characters, ") as refused:
            common_headers(key, headers)
        assert "cret" not in str(refused.value)
