"""The friendly route, V1, raw requests, headers and metrics, as curl and dashboards see them."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .server import DEMO, PATIENCE_S, Server

SAMPLES = sorted((DEMO / "digits" / "samples").iterdir())


def multipart(name: str, data: bytes) -> tuple[bytes, dict[str, str]]:
    """As `curl -F file=@NAME` sends it."""
    kind = "image/png" if name.endswith("png") else "image/jpeg"
    head = f'--cut\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'
    return head.encode() + data + b"\r\n--cut--\r\n", {"Content-Type": "multipart/form-data; boundary=cut"}


def test_there_are_ten_samples() -> None:
    assert [sample.stem for sample in SAMPLES] == list("0123456789")
    assert {sample.suffix for sample in SAMPLES} == {".png", ".jpg"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
@pytest.mark.parametrize("way", ["typed", "untyped", "curl --data-binary", "multipart"])
def test_digits_reads_its_samples(server: Server, sample: Path, way: str) -> None:
    data = sample.read_bytes()
    kind = "image/png" if sample.suffix == ".png" else "image/jpeg"
    headers = {"typed": {"Content-Type": kind}, "untyped": {}}.get(
        way, {"Content-Type": "application/x-www-form-urlencoded"}
    )
    if way == "multipart":
        data, headers = multipart(sample.name, data)
    answer = server.post("/predict/digits", data, headers)
    assert answer.status == 200, answer.body
    found = answer.json()
    assert str(found["label"]) == sample.stem
    assert list(found["scores"]) == list("0123456789")
    assert found["probability"] == max(found["scores"].values())
    assert sum(found["scores"].values()) == pytest.approx(1)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize(
    ("model", "kind", "body", "expected"),
    [
        ("echo", "application/json", b"[1, 2, 3, 4.5]", {"y": [1, 2, 3, 4.5]}),
        ("echo", "application/json", b"[[1, 2, 3, 4]]", [{"y": [1, 2, 3, 4]}]),
        ("echo", "application/json", b'{"x": [1, 2, 3, 4]}', {"y": [1, 2, 3, 4]}),
        ("echo", "application/x-npy", npy(np.arange(4, dtype="f4")), {"y": [0, 1, 2, 3]}),
        ("echo", "application/x-npy", npy(np.ones((2, 4), "i8")), [{"y": [1] * 4}] * 2),
        ("echo", "application/octet-stream", npy(np.zeros(4, ">f8")), {"y": [0] * 4}),
        ("words", "text/plain; charset=utf-8", b"hello you", {"shout": "HELLO YOU", "size": 9}),
        ("words", "application/json", b'"abc"', {"shout": "ABC", "size": 3}),
        ("several", "application/json", b'{"a": [5, 3], "b": [1, 2, 3]}', {"difference": 2, "reversed": [3, 2, 1]}),
        ("tokens", "application/json", b'{"ids": [1, 2, 3], "mask": [1, 0, 1]}', {"doubled": [2, 4, 6], "total": 4}),
        ("labelled", "application/json", b"[1, 9, 3]", {"scores": {"label": "bee", "scores": [1, 9, 3]}}),
    ],
)
def test_friendly(server: Server, model: str, kind: str, body: bytes, expected: Any) -> None:
    answer = server.post(f"/predict/{model}", body, {"Content-Type": kind})
    assert (answer.status, answer.json()) == (200, expected)
    assert answer.headers["content-type"] == "application/json"


def test_v1(server: Server) -> None:
    answer = server.post("/v1/models/echo:predict", {"instances": [[1, 2, 3, 4], [5, 6, 7, 8]]})
    assert (answer.status, answer.json()) == (200, {"predictions": [[1, 2, 3, 4], [5, 6, 7, 8]]})
    answer = server.post("/v1/models/several:predict", {"instances": [{"a": [1, 2], "b": [1, 2, 3]}]})
    assert answer.json() == {"predictions": [{"difference": -1, "reversed": [3, 2, 1]}]}
    answer = server.post("/v1/models/plus/versions/1:predict", {"instances": [[1]]})
    assert answer.json() == {"predictions": [[2]]}
    assert server.get("/v1/models/echo").json() == {"name": "echo", "ready": True}
    answer = server.post("/v1/models/echo:predict", {"instances": [[1, 2, 3]]})
    assert (answer.status, "instances" in answer.error) == (400, True)


def test_v2_lists_what_is_ready(server: Server) -> None:
    names = server.get("/v2/models").json()["models"]
    assert {"echo", "words", "plus"} <= set(names)
    assert "broken" not in names


def test_a_raw_request(server: Server) -> None:
    values = np.arange(12, dtype="<f4")
    answer = server.post("/v2/models/echo/infer", values.tobytes(), {"Inference-Header-Content-Length": "0"})
    length = int(answer.headers["inference-header-content-length"])
    head = json.loads(answer.body[:length])
    assert head["outputs"] == [
        {"name": "y", "shape": [3, 4], "datatype": "FP32", "parameters": {"binary_data_size": 48}}
    ]
    assert answer.body[length:] == values.tobytes()
    answer = server.post("/v2/models/words/infer", b"some text", {"Inference-Header-Content-Length": "0"})
    assert answer.body[int(answer.headers["inference-header-content-length"]) :] == b"\x09\0\0\0SOME TEXT\x09\0\0\0"


def test_bfloat16_travels_as_binary_only(server: Server) -> None:
    bits = (np.array([[1.5, -2], [0.25, 384]], "<f4").view("<u4") >> 16).astype("<u2")
    twice = (np.array([[3, -4], [0.5, 768]], "<f4").view("<u4") >> 16).astype("<u2")
    tensor = {"name": "x", "shape": [2, 2], "datatype": "BF16", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [tensor]}).encode()
    answer = server.post(
        "/v2/models/brain/infer", head + bits.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
    )
    assert answer.body.endswith(twice.tobytes())
    answer = server.post("/v2/models/brain/infer", {"inputs": [{**tensor, "parameters": {}, "data": [1, 2, 3, 4]}]})
    assert (answer.status, "binary" in answer.error) == (400, True)


def test_nested_and_flat_data(server: Server) -> None:
    for data in ([[1, 2, 3, 4], [5, 6, 7, 8]], [1, 2, 3, 4, 5, 6, 7, 8], [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]):
        tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": data}
        answer = server.post("/v2/models/echo/infer", {"inputs": [tensor], "id": "é"})
        assert answer.json() == {
            "model_name": "echo",
            "model_version": "1",
            "id": "é",
            "outputs": [{"name": "y", "shape": [2, 4], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8]}],
        }


@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v1/models/echo:predict", "/predict/echo"])
def test_headers_of_an_inference(server: Server, path: str) -> None:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    bodies = {"v2": {"inputs": [tensor]}, "v1": {"instances": [[1, 2, 3, 4]]}, "predict": [1, 2, 3, 4]}
    body = bodies[path.split("/")[1]]
    answer = server.post(path, body, {"X-Request-ID": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert int(answer.headers["x-batch-size"]) >= 1
    timing = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"]))
    queue, compute, total = (float(timing[part]) for part in ("queue", "compute", "total"))
    assert 0 < compute <= total
    assert 0 <= queue <= total
    made = [server.post(path, body).headers["x-request-id"] for _ in range(3)]
    assert len(set(made)) == 3
    bad = server.post(path, b"no", {"X-Request-ID": "mine-2", "Content-Type": "application/json"})
    assert (bad.status, bad.headers["x-request-id"]) == (400, "mine-2")
    assert server.post(path, body, {"X-Request-ID": "with a space"}).headers["x-request-id"] != "with a space"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_both_ways(server: Server, algorithm: str) -> None:
    rows = [[1.0, 2.0, 3.0, 4.0]] * 400
    body = {"inputs": [{"name": "x", "shape": [400, 4], "datatype": "FP32", "data": rows}]}
    raw = json.dumps(body).encode()
    packed = gzip.compress(raw) if algorithm == "gzip" else zlib.compress(raw)
    headers = {"Content-Encoding": algorithm, "Accept-Encoding": f"br, {algorithm}"}
    answer = server.post("/v2/models/echo/infer", packed, headers)
    assert answer.headers["content-encoding"] == algorithm
    plain = zlib.decompress(answer.body, 31 if algorithm == "gzip" else 15)
    assert json.loads(plain)["outputs"][0]["data"] == [1, 2, 3, 4] * 400


def test_connections_are_kept(server: Server) -> None:
    connection = http.client.HTTPConnection(server.host, timeout=PATIENCE_S)
    try:
        for path in ("/v2/models/echo/infer", "/nowhere", "/v2/models/echo/infer"):
            connection.request("POST", path, b"{}")
            answer = connection.getresponse()
            answer.read()
            assert not answer.will_close
    finally:
        connection.close()


def test_metrics_under_both_name_sets(server: Server) -> None:
    labels = 'model="marked",version="1"'
    counted = (
        f'starling_request_duration_seconds_count{{class="realtime",{labels}}}',
        f'starling_queue_duration_seconds_count{{class="realtime",{labels}}}',
        f'starling_compute_duration_seconds_count{{class="realtime",{labels}}}',
        f'starling_batch_size_bucket{{class="realtime",le="+Inf",{labels}}}',
        'starling_requests_total{class="realtime",model="marked",outcome="ok",version="1"}',
        'starling_requests_total{class="realtime",model="marked",outcome="model_failed",version="1"}',
        f"nv_inference_request_success{{{labels}}}",
        f'nv_inference_request_failure{{{labels},reason="BACKEND"}}',
        f"nv_inference_count{{{labels}}}",
        f"nv_inference_exec_count{{{labels}}}",
    )
    before = {name: server.metric(name) for name in counted}
    assert server.infer("marked", [[1, 2], [3, 4]]).status == 200
    assert server.infer("marked", [[-1, 2]]).status == 500
    grown = [server.metric(name) - before[name] for name in counted]
    assert grown == [2, 1, 1, 1, 1, 1, 1, 1, 2, 1]
    text = server.get("/metrics").body.decode()
    for name in (
        "starling_batches_total", "starling_queue_length", "starling_preferred_batch_size", "starling_arrival_rate",
        "starling_worker_busy_seconds_total", "starling_pool_slots_used", "nv_inference_pending_request_count",
        "nv_inference_request_duration_us", "nv_inference_queue_duration_us", "nv_inference_compute_input_duration_us",
        "nv_inference_compute_infer_duration_us", "nv_inference_compute_output_duration_us",
    ):  # fmt: skip
        assert re.search(rf"^{name}(\{{[^}}]*\}})? [\d.e+-]+$", text, re.MULTILINE), name


def test_documentation(server: Server) -> None:
    assert server.get("/docs").status == 200
    paths = server.get("/openapi.json").json()["paths"]
    assert "/v2/models/{model}/infer" in paths


@pytest.mark.parametrize("path", ["/v2/health/live", "/livez", "/healthz"])
def test_live(server: Server, path: str) -> None:
    answer = server.get(path)
    assert (answer.status, answer.json()) == (200, {"live": True})
    headed = server.request("HEAD", path)
    assert (headed.status, headed.body, headed.headers["content-length"]) == (200, b"", str(len(answer.body)))
