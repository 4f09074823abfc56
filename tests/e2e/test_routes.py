"""What curl sends: files, the friendly route, V1 and raw requests, of models with inputs of every kind."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from .server import DEMO, Server

SAMPLES = sorted((DEMO / "digits" / "samples").iterdir())


def multipart(name: str, data: bytes) -> tuple[bytes, dict[str, str]]:
    """As `curl -F file=@NAME` sends it."""
    kind = "image/png" if name.endswith("png") else "image/jpeg"
    head = f'--cut\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'
    return head.encode() + data + b"\r\n--cut--\r\n", {"Content-Type": "multipart/form-data; boundary=cut"}


@pytest.mark.parametrize("way", ["untyped", "curl --data-binary", "multipart"])
def test_digits_reads_its_samples(server: Server, way: str) -> None:
    assert {sample.suffix for sample in SAMPLES} == {".png", ".jpg"}
    headers = {} if way == "untyped" else {"Content-Type": "application/x-www-form-urlencoded"}
    for sample in SAMPLES:
        data = sample.read_bytes()
        if way == "multipart":
            data, headers = multipart(sample.name, data)
        answer = server.post("/predict/digits", data, headers)
        assert answer.status == 200, answer.body
        found = answer.json()
        assert (str(found["label"]), found["probability"]) == (sample.stem, max(found["scores"].values()))


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize(
    ("path", "kind", "body", "expected"),
    [
        ("/predict/echo", "application/json", b'{"x": [1, 2, 3, 4.5]}', {"y": [1, 2, 3, 4.5]}),
        ("/predict/echo", "application/x-npy", npy(np.ones((2, 4), "i8")), [{"y": [1] * 4}] * 2),
        ("/predict/echo", "application/octet-stream", npy(np.zeros(4, ">f8")), {"y": [0] * 4}),
        ("/predict/words", "text/plain; charset=utf-8", b"hello you", {"shout": "HELLO YOU", "size": 9}),
        ("/predict/several", "application/json", b'{"a": [5, 3], "b": [1, 2, 3]}',
         {"difference": 2, "reversed": [3, 2, 1]}),
        ("/predict/tokens", "application/json", b'{"ids": [1, 2, 3], "mask": [1, 0, 1]}',
         {"doubled": [2, 4, 6], "total": 4}),
        ("/predict/labelled", "application/json", b"[1, 9, 3]", {"scores": {"label": "bee", "scores": [1, 9, 3]}}),
        ("/v1/models/several:predict", "application/json", b'{"instances": [{"a": [1, 2], "b": [1, 2, 3]}]}',
         {"predictions": [{"difference": -1, "reversed": [3, 2, 1]}]}),
        ("/v1/models/plus/versions/1:predict", "application/json", b'{"instances": [[1]]}', {"predictions": [[2]]}),
    ],
)  # fmt: skip
def test_answers(server: Server, path: str, kind: str, body: bytes, expected: Any) -> None:
    answer = server.post(path, body, {"Content-Type": kind})
    assert (answer.status, answer.json()) == (200, expected)
