"""Whatever pieces an answer comes in, it is the same answer; what is no answer is Malformed and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.generator.http import Malformed, Response, ResponseParser

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Batch-Size:  4 \r\n\r\nyes"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nye\r\n1\r\ns\r\n0\r\n\r\n"
TRAILED = CHUNKED[:-2] + b"Server-Timing: x\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


def fed(*pieces: bytes) -> Response | None:
    parser = ResponseParser()
    found = None
    for piece in pieces:
        assert found is None, "complete before its last byte"
        found = parser.feed(piece)
    return found


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, TRAILED, INTERIM])
def test_any_pieces(answer: bytes) -> None:
    whole = fed(answer)
    assert (whole.status, whole.body, whole.keep) == (200, b"yes", True)
    assert fed(*(answer[i : i + 1] for i in range(len(answer)))) == whole
    for at in range(1, len(answer)):
        assert fed(answer[:at], answer[at:]) == whole


@pytest.mark.parametrize(
    ("answer", "keep"),
    [
        (PLAIN.replace(b"\r\nX", b"\r\nConnection: Close\r\nX"), False),
        (PLAIN.replace(b"1.1", b"1.0"), False),
        (PLAIN.replace(b"1.1", b"1.0").replace(b"\r\nX", b"\r\nConnection: keep-alive\r\nX"), True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_keeps_the_connection(answer: bytes, keep: bool) -> None:
    found = fed(answer)
    assert found.keep is keep


def test_body_until_the_end_of_the_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nye") is None
    assert parser.feed(b"s") is None
    found = parser.eof()
    assert (found.body, found.keep) == (b"yes", False)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        PLAIN + b"more",
        PLAIN.replace(b": 3", b": -3"),
        CHUNKED.replace(b"\r\n1\r\n", b"\r\nx\r\n"),
        CHUNKED.replace(b"ye\r\n", b"yes!"),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
def test_malformed(answer: bytes) -> None:
    with pytest.raises(Malformed):
        fed(answer)


@given(
    st.lists(st.sampled_from([PLAIN, CHUNKED, b"HTTP/1.1 ", b"\r\n", b"\r\n\r\n", b"0", b"f"]) | st.binary(max_size=9))
)
def test_garbage_is_malformed_or_an_answer(pieces: list[bytes]) -> None:
    parser = ResponseParser()
    for piece in pieces:
        try:
            parser.feed(piece)
        except Malformed:
            return
    parser.eof()
