"""Locust: payloads and shapes of load."""

from __future__ import annotations

import json
import ssl
import struct
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest
from background import QuietHandler, running

from loadtest.payloads import Mix, Request, WrongAnswer, image_files, is_overload, metadata_of, v2_binary, v2_json
from loadtest.shapes import Objective, Ramp, Totals

# A right answer passes its check, and an answer with anything wrong in it does not.


CERTIFICATES = Path(__file__).parents[1] / "certificates"
LENGTH = "Inference-Header-Content-Length"
ECHO = {
    "name": "echo",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
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
    return json.loads(request.body if length is None else request.body[: int(length)])


# --- requests


class Metadata(QuietHandler):
    def get(self) -> None:
        self.answer(200, json.dumps(ECHO).encode())


def test_metadata_are_asked_as_locusts_users_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """By no proxy, and with a certificate that nobody has signed."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server):
        assert metadata_of(f"https://127.0.0.1:{server.server_port}", "echo", "") == ECHO


def test_json_and_binary_carry_the_same_values() -> None:
    for text, raw in zip(v2_json(ECHO, MIX), v2_binary(ECHO, MIX), strict=True):
        (tensor,) = told(text)["inputs"]
        (head,) = told(raw)["inputs"]
        assert tensor["shape"] == head["shape"] == [text.rows, 4]
        tail = raw.body[int(raw.headers[LENGTH]) :]
        assert struct.pack(f"<{4 * text.rows}f", *tensor["data"]) == tail
        assert head["parameters"]["binary_data_size"] == len(tail)


# --- V2 answers


def check_json(request: Request, answer: Any) -> None:
    request.check({}, json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "z"}, "outputs: expected y, got z"),
        ({"shape": [7, 4]}, "12 values for the shape"),
        ({"data": [1.0]}, "y: 1 values for the shape"),
        ({"data": [0.0] * 12}, "output y: expected the values that were sent"),
    ],
)
def test_a_wrong_json_answer_fails(change: dict[str, Any], message: str) -> None:
    request = next(request for request in v2_json(ECHO, MIX) if request.rows == 3)
    (tensor,) = told(request)["inputs"]  # which `echo` answers
    with pytest.raises(WrongAnswer, match=message):
        check_json(request, {"outputs": [{**tensor, "name": "y", **change}]})


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


# Shapes stay between one user and all; a ramp ends at the level that breaks its objective, and says which.


OBJECTIVE = Objective(p99_ms=100, failures=0.01)


class Service:
    """What Locust would have counted: ten answers a second for each user, which are slow from so many users on."""

    def __init__(self, slow_from: int = 10**9) -> None:
        self.slow_from = slow_from
        self.totals = Totals(0, 0, {})

    def second(self, users: int) -> None:
        answers = 10 * users
        times = dict(self.totals.latencies_ms)
        latency = 300.0 if users >= self.slow_from else 5.0
        times[latency] = times.get(latency, 0) + answers
        self.totals = Totals(self.totals.requests + answers, 0, times)

    def climb(self, ramp: Ramp) -> int:
        """Seconds until the ramp ends by itself."""
        users = ramp.step(0.0, lambda: self.totals)
        for second in range(1, 1000):
            self.second(users)
            users = ramp.step(float(second), lambda: self.totals)
            if users is None:
                return second
        raise AssertionError("the ramp did not end")


def ramp() -> Ramp:
    return Ramp(40, 40, 5, OBJECTIVE)


def test_a_ramp_that_nothing_breaks_goes_to_the_end() -> None:
    climbing = ramp()
    assert Service().climb(climbing) == 40
    assert [level.users for level in climbing.levels] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [level.rate for level in climbing.levels] == [10.0 * level.users for level in climbing.levels]
    assert climbing.broke == ""
    assert climbing.verdict().startswith("ramp: did not break; held 400.0 requests/s with 40 users, p99 5.0 ms")


def test_a_ramp_ends_at_the_level_whose_p99_is_too_long() -> None:
    climbing = ramp()
    assert Service(slow_from=18).climb(climbing) == 20  # four levels of five seconds
    assert climbing.verdict().splitlines() == [
        "ramp: broke at 200.0 requests/s with 20 users: p99 300.0 ms (objective 100 ms)",
        "ramp: held 150.0 requests/s with 15 users, p99 5.0 ms",
    ]
