"""Triton's own client, unchanged, finds all it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from .server import Server


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    opened = triton.InferenceServerClient(server.host, connection_timeout=30.0, network_timeout=30.0)
    try:
        yield opened
    finally:
        opened.close()


def given(name: str, values: Any, datatype: str, *, binary: bool = True) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


def wanted(name: str, *, binary: bool = True) -> triton.InferRequestedOutput:
    return triton.InferRequestedOutput(name, binary_data=binary)


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert not client.is_server_ready()  # `broken` was asked for at start, too
    assert client.is_model_ready("echo")
    assert client.is_model_ready("plus", "2")
    assert not client.is_model_ready("plus", "3")
    assert not client.is_model_ready("broken")
    assert not client.is_model_ready("nobody")


def test_metadata(client: triton.InferenceServerClient) -> None:
    about = client.get_server_metadata()
    assert about["name"] == "starling"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(about["extensions"])
    model = client.get_model_metadata("tokens")
    assert (model["name"], model["versions"]) == ("tokens", ["1"])
    assert model["inputs"] == [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in ("ids", "mask")]
    assert model["outputs"][1] == {"name": "total", "datatype": "INT64", "shape": [-1]}
    assert client.get_model_metadata("plus")["versions"] == ["1", "2"]


def test_config(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("words", "1")
    assert config["max_batch_size"] == 4
    assert config["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [1]}]
    assert config["output"][1] == {"name": "size", "data_type": "TYPE_INT32", "dims": []}


def test_statistics(client: triton.InferenceServerClient) -> None:
    def of_several() -> dict[str, Any]:
        found: dict[str, Any] = client.get_inference_statistics("several")["model_stats"][0]
        return found

    before = of_several()
    inputs = [given("a", np.ones((3, 2), "<f4"), "FP32"), given("b", np.ones((3, 3), "<i4"), "INT32")]
    client.infer("several", inputs)
    with pytest.raises(InferenceServerException):
        client.infer("several", inputs[:1])
    after = of_several()
    assert (after["name"], after["version"]) == ("several", "1")
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] > before["execution_count"]
    assert after["last_inference"] > 0
    for part, more in {"success": 1, "fail": 1, "queue": 1, "compute_infer": 1}.items():
        grown = after["inference_stats"][part]["count"] - before["inference_stats"][part]["count"]
        assert (part, grown) == (part, more)
        assert after["inference_stats"][part]["ns"] > before["inference_stats"][part]["ns"]
    assert sum(batch["compute_infer"]["count"] for batch in after["batch_stats"]) == after["execution_count"]
    everything = client.get_inference_statistics()["model_stats"]
    assert {"echo", "several", "words"} <= {one["name"] for one in everything}


def test_repository(client: triton.InferenceServerClient) -> None:
    states = {(line["name"], line["version"]): line for line in client.get_model_repository_index()}
    assert states["echo", "1"]["state"] == states["plus", "2"]["state"] == "READY"
    assert states["broken", "1"]["state"] == "UNAVAILABLE"
    assert "datatype" in states["broken", "1"]["reason"]
    assert "FP99" in states["broken", "1"]["reason"]
    client.unload_model("labelled")
    assert not client.is_model_ready("labelled")
    with pytest.raises(InferenceServerException, match="unloaded"):
        client.get_model_config("labelled")
    client.load_model("labelled")
    assert client.is_model_ready("labelled")
    client.unload_model("labelled", unload_dependents=True)
    client.load_model("labelled")
    with pytest.raises(InferenceServerException, match="FP99"):
        client.load_model("broken")
    with pytest.raises(InferenceServerException, match="not supported"):
        client.load_model("labelled", config=json.dumps({"max_batch_size": 1}))


@pytest.mark.parametrize("sent", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("back", [True, False], ids=["binary out", "JSON out"])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_infer(client: triton.InferenceServerClient, sent: bool, back: bool, rows: int) -> None:
    values = np.random.default_rng(rows).standard_normal((rows, 4), "f4")
    result = client.infer(
        "echo", [given("x", values, "FP32", binary=sent)], outputs=[wanted("y", binary=back)], request_id="a/7"
    )
    assert np.array_equal(result.as_numpy("y"), values)
    answer = result.get_response()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("echo", "1", "a/7")
    assert answer["outputs"][0]["shape"] == [rows, 4]
    assert ("data" in answer["outputs"][0]) != back


def test_no_outputs_named_means_all(client: triton.InferenceServerClient) -> None:
    a, b = np.array([[5, 2], [7, 7.5]], "<f4"), np.array([[1, 2, 3], [4, 5, 6]], "<i4")
    result = client.infer("several", [given("b", b, "INT32"), given("a", a, "FP32", binary=False)])
    assert result.as_numpy("difference").tolist() == [3, -0.5]
    assert result.as_numpy("reversed").tolist() == [[3, 2, 1], [6, 5, 4]]
    assert [tensor["name"] for tensor in result.get_response()["outputs"]] == ["difference", "reversed"]


def test_only_the_outputs_named(client: triton.InferenceServerClient) -> None:
    inputs = [given("a", np.ones((1, 2), "<f4"), "FP32"), given("b", np.array([[1, 2, 3]], "<i4"), "INT32")]
    result = client.infer("several", inputs, outputs=[wanted("reversed")])
    assert result.as_numpy("difference") is None
    assert result.as_numpy("reversed").tolist() == [[3, 2, 1]]
    inputs_json = [wanted("reversed", binary=False), wanted("difference")]
    result = client.infer("several", inputs, outputs=inputs_json)
    assert [tensor["name"] for tensor in result.get_response()["outputs"]] == ["reversed", "difference"]
    assert result.as_numpy("difference").tolist() == [0]


KINDS = {
    "BOOL": [True, False],
    **{f"UINT{bits}": [0, (1 << bits) - 1] for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": [-(1 << bits - 1), (1 << bits - 1) - 1] for bits in (8, 16, 32, 64)},
    "FP16": [0.333, -65504.0],
    "FP32": [0.1, -3.4e38],
    "FP64": [0.1, 1.7e308],
}


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_datatype(client: triton.InferenceServerClient, binary: bool, rows: int) -> None:
    values = {
        kind: np.array([pair] * rows, "bool" if kind == "BOOL" else kind.lower().replace("fp", "float"))
        for kind, pair in KINDS.items()
    }
    # tritonclient writes FP16 as binary only
    inputs = [given(f"in_{k}", v, k, binary=binary or k == "FP16") for k, v in values.items()]
    result = client.infer("kinds", inputs, outputs=[wanted(f"out_{kind}", binary=binary) for kind in values])
    for kind, value in values.items():
        back = result.as_numpy(f"out_{kind}")
        assert (back.dtype, back.tolist()) == (value.dtype, value.tolist())


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_strings(client: triton.InferenceServerClient, binary: bool) -> None:
    texts = np.array([["grüße"], [""], ["a" * 5000]], np.object_)
    result = client.infer(
        "words",
        [given("text", texts, "BYTES", binary=binary)],
        outputs=[wanted("shout", binary=binary), wanted("size")],
    )
    # bytes.upper leaves what is not ASCII alone
    expected = [["GRüßE".encode()], [b""], [b"A" * 5000]]
    got = [[cell if isinstance(cell, bytes) else cell.encode() for cell in row] for row in result.as_numpy("shout")]
    assert got == expected
    assert result.as_numpy("size").tolist() == [7, 0, 5000]


@pytest.mark.parametrize("length", [1, 5, 16])
def test_variable_length(client: triton.InferenceServerClient, length: int) -> None:
    ids = np.arange(2 * length, dtype=np.int64).reshape(2, length)
    mask = np.ones_like(ids)
    mask[:, 0] = 0
    result = client.infer("tokens", [given("ids", ids, "INT64"), given("mask", mask, "INT64")])
    assert np.array_equal(result.as_numpy("doubled"), ids * 2)
    assert result.as_numpy("total").tolist() == ids[:, 1:].sum(axis=1).tolist()


def test_lengths_that_disagree(client: triton.InferenceServerClient) -> None:
    long, short = np.zeros((1, 5), np.int64), np.zeros((1, 4), np.int64)
    with pytest.raises(InferenceServerException, match="tokens") as caught:
        client.infer("tokens", [given("ids", long, "INT64"), given("mask", short, "INT64")])
    assert caught.value.status() == "400"
    too_long = np.zeros((1, 17), np.int64)
    with pytest.raises(InferenceServerException, match="tokens <= 16"):
        client.infer("tokens", [given("ids", too_long, "INT64"), given("mask", too_long, "INT64")])


def test_versions(client: triton.InferenceServerClient) -> None:
    x = [given("x", np.array([[10]], "<f4"), "FP32")]
    found = {version: client.infer("plus", x, model_version=version) for version in ("", "1", "2")}
    assert {version: float(result.as_numpy("y")[0, 0]) for version, result in found.items()} == {
        "": 12,
        "1": 11,
        "2": 12,
    }
    assert found[""].get_response()["model_version"] == "2"


def test_parameters(client: triton.InferenceServerClient) -> None:
    x = [given("x", np.array([[1], [2]], "<f4"), "FP32")]
    assert client.infer("scaled", x).as_numpy("y").tolist() == [[1], [2]]
    result = client.infer("scaled", x, parameters={"factor": 3}, priority=1, timeout=20_000_000)
    assert result.as_numpy("y").tolist() == [[3], [6]]
    with pytest.raises(InferenceServerException, match=r"parameters\.sequence_id"):
        client.infer("scaled", x, sequence_id=5, sequence_start=True)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: triton.InferenceServerClient, algorithm: str) -> None:
    values = np.ones((500, 4), "<f4")
    result = client.infer(
        "echo", [given("x", values, "FP32")],
        request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
    )  # fmt: skip
    assert np.array_equal(result.as_numpy("y"), values)


def test_async_infer(client: triton.InferenceServerClient) -> None:
    values = [np.full((1, 4), n, "<f4") for n in range(20)]
    pending = [client.async_infer("echo", [given("x", value, "FP32")]) for value in values]
    assert all(np.array_equal(one.get_result().as_numpy("y"), v) for one, v in zip(pending, values, strict=True))


def test_bodies_of_the_clients_own_making(client: triton.InferenceServerClient, server: Server) -> None:
    """`generate_request_body` and `parse_response_body`, over somebody else's connection."""
    values = np.arange(8, dtype="<f4").reshape(2, 4)
    body, length = triton.InferenceServerClient.generate_request_body([given("x", values, "FP32")])
    answer = server.post("/v2/models/echo/infer", body, {"Inference-Header-Content-Length": str(length)})
    head = int(answer.headers["inference-header-content-length"])
    assert answer.headers["content-type"] == "application/octet-stream"
    result = triton.InferenceServerClient.parse_response_body(answer.body, header_length=head)
    assert np.array_equal(result.as_numpy("y"), values)


@pytest.mark.parametrize(
    ("model", "values", "kind", "status", "words"),
    [
        ("nobody", np.ones((1, 4), "<f4"), "FP32", "404", "nobody"),
        ("broken", np.ones((1, 4), "<f4"), "FP32", "503", "FP99"),
        ("echo", np.ones((1, 3), "<f4"), "FP32", "400", r"inputs\[0\] \(\w+\)\.shape"),
        ("echo", np.ones((1, 4), "<f8"), "FP64", "400", r"inputs\[0\] \(\w+\)\.datatype"),
        ("marked", np.full((1, 2), -1, "<f4"), "FP32", "500", "a marked row"),
    ],
)
def test_errors(
    client: triton.InferenceServerClient, model: str, values: Any, kind: str, status: str, words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words) as caught:
        client.infer(model, [given("x", values, kind)])
    assert caught.value.status() == status


def test_load_of_an_unknown_model(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("nobody")
    assert caught.value.status() == "404"
