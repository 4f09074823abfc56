"""What curl sends: files, the friendly route, V1 and raw requests, of models with inputs of every kind."""

from __future__ import annotations

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


def test_rows_of_different_lengths_are_answered_as_alone(server: Server) -> None:
    rows = [{"ids": [7, 8, 9], "mask": [1, 1, 0]}, {"ids": [7], "mask": [1]}, {"ids": [5, 6], "mask": [0, 1]}]
    alone = [server.post("/v1/models/tokens:predict", {"instances": [row]}).json()["predictions"][0] for row in rows]
    assert alone[0] == {"doubled": [14, 16, 18], "total": 15}
    assert server.post("/v1/models/tokens:predict", {"instances": rows}).json() == {"predictions": alone}
    assert server.post("/predict/tokens", rows).json() == alone
    columns = {name: [row[name] for row in rows] for name in ("ids", "mask")}
    assert server.post("/predict/tokens", columns).json() == alone
