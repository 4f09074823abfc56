"""Triton's own clients, unchanged, find all they ask for."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

from .server import Server


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.host, connection_timeout=30.0, network_timeout=30.0) as opened:
        yield opened


def given(name: str, values: Any, datatype: str, *, binary: bool = True) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


def wanted(name: str, *, binary: bool = True) -> triton.InferRequestedOutput:
    return triton.InferRequestedOutput(name, binary_data=binary)


def test_what_there_is(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert not client.is_server_ready()  # `broken` was asked for at start, too
    ready = [("echo", ""), ("plus", "2"), ("plus", "3"), ("broken", ""), ("nobody", "")]
    assert [client.is_model_ready(*one) for one in ready] == [True, True, False, False, False]
    about = client.get_server_metadata()
    assert about["name"] == "starling"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(about["extensions"])
    model = client.get_model_metadata("tokens")
    assert model["inputs"] == [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in ("ids", "mask")]
    assert model["outputs"][1] == {"name": "total", "datatype": "INT64", "shape": [-1]}
    assert client.get_model_metadata("plus")["versions"] == ["1", "2"]
    config = client.get_model_config("words", "1")
    assert config["max_batch_size"] == 4
    assert config["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [1]}]
    assert {"echo", "words"} <= {one["name"] for one in client.get_inference_statistics()["model_stats"]}


def test_repository(client: triton.InferenceServerClient) -> None:
    states = {(line["name"], line["version"]): line for line in client.get_model_repository_index()}
    assert states["echo", "1"]["state"] == states["plus", "2"]["state"] == "READY"
    assert states["broken", "1"]["state"] == "UNAVAILABLE"
    assert "FP99" in states["broken", "1"]["reason"]
    client.unload_model("labelled", unload_dependents=True)
    assert not client.is_model_ready("labelled")
    with pytest.raises(InferenceServerException, match="unloaded"):
        client.get_model_config("labelled")
    client.load_model("labelled")
    assert client.is_model_ready("labelled")
    changed = {"config": json.dumps({"max_batch_size": 1})}
    for model, options, message in (
        ("broken", {}, "FP99"),
        ("labelled", changed, "not supported"),
        ("nobody", {}, "nobody"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            client.load_model(model, **options)


@pytest.mark.parametrize("sent", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("back", [True, False], ids=["binary out", "JSON out"])
def test_infer(client: triton.InferenceServerClient, sent: bool, back: bool) -> None:
    for rows in (1, 2, 100):
        values = np.random.default_rng(rows).standard_normal((rows, 4), "f4")
        inputs = [given("x", values, "FP32", binary=sent)]
        result = client.infer("echo", inputs, outputs=[wanted("y", binary=back)], request_id="a/7")
        assert np.array_equal(result.as_numpy("y"), values)
        answer = result.get_response()
        assert (answer["model_name"], answer["model_version"], answer["id"]) == ("echo", "1", "a/7")
        assert ("data" in answer["outputs"][0]) != back


def test_outputs_that_are_named_and_all_where_none_is(client: triton.InferenceServerClient) -> None:
    a, b = np.array([[5, 2], [7, 7.5]], "<f4"), np.array([[1, 2, 3], [4, 5, 6]], "<i4")
    inputs = [given("b", b, "INT32"), given("a", a, "FP32", binary=False)]
    result = client.infer("several", inputs)
    assert result.as_numpy("difference").tolist() == [3, -0.5]
    assert [tensor["name"] for tensor in result.get_response()["outputs"]] == ["difference", "reversed"]
    result = client.infer("several", inputs, outputs=[wanted("reversed", binary=False), wanted("difference")])
    assert [tensor["name"] for tensor in result.get_response()["outputs"]] == ["reversed", "difference"]
    assert result.as_numpy("reversed").tolist() == [[3, 2, 1], [6, 5, 4]]
    assert client.infer("several", inputs, outputs=[wanted("reversed")]).as_numpy("difference") is None
    with pytest.raises(InferenceServerException, match="inputs: 'b' is missing; expected a, b"):
        client.infer("several", inputs[1:])


KINDS = {
    "BOOL": [True, False],
    **{f"UINT{bits}": [0, (1 << bits) - 1] for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": [-(1 << bits - 1), (1 << bits - 1) - 1] for bits in (8, 16, 32, 64)},
    "FP16": [0.333, -65504.0],
    "FP32": [0.1, -3.4e38],
    "FP64": [0.1, 1.7e308],
}


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_every_datatype(client: triton.InferenceServerClient, binary: bool) -> None:
    values = {kind: np.array([pair] * 3, kind.lower().replace("fp", "float")) for kind, pair in KINDS.items()}
    # tritonclient writes FP16 as binary only
    inputs = [given(f"in_{k}", v, k, binary=binary or k == "FP16") for k, v in values.items()]
    result = client.infer("kinds", inputs, outputs=[wanted(f"out_{kind}", binary=binary) for kind in values])
    for kind, value in values.items():
        back = result.as_numpy(f"out_{kind}")
        assert (back.dtype, back.tolist()) == (value.dtype, value.tolist())
    texts = np.array([["grüße"], [""], ["a" * 5000]], np.object_)
    outputs = [wanted("shout", binary=binary), wanted("size")]
    result = client.infer("words", [given("text", texts, "BYTES", binary=binary)], outputs=outputs)
    got = [cell if isinstance(cell, bytes) else cell.encode() for (cell,) in result.as_numpy("shout")]
    assert got == ["GRüßE".encode(), b"", b"A" * 5000]  # bytes.upper leaves what is not ASCII alone
    assert result.as_numpy("size").tolist() == [7, 0, 5000]


def test_versions_and_parameters(client: triton.InferenceServerClient) -> None:
    x = [given("x", np.array([[10]], "<f4"), "FP32")]
    found = {version: client.infer("plus", x, model_version=version) for version in ("", "1", "2")}
    assert [float(result.as_numpy("y")[0, 0]) for result in found.values()] == [12, 11, 12]
    assert found[""].get_response()["model_version"] == "2"
    result = client.infer("scaled", x, parameters={"factor": 3}, priority=1, timeout=20_000_000)
    assert result.as_numpy("y").tolist() == [[30]]
    with pytest.raises(InferenceServerException, match=r"parameters\.sequence_id"):
        client.infer("scaled", x, sequence_id=5, sequence_start=True)


@pytest.mark.parametrize(
    ("model", "row", "kind", "status", "words"),
    [
        ("nobody", [1] * 4, "FP32", "404", "nobody"),
        ("broken", [1] * 4, "FP32", "503", "FP99"),
        ("echo", [1] * 4, "FP64", "400", r"inputs\[0\] \(\w+\)\.datatype"),
        ("marked", [-1] * 2, "FP32", "500", "a marked row"),
    ],
)
def test_errors(client: triton.InferenceServerClient, model: str, row: Any, kind: str, status: str, words: str) -> None:
    with pytest.raises(InferenceServerException, match=words) as caught:
        client.infer(model, [given("x", np.array([row], kind.replace("FP", "float")), kind)])
    assert caught.value.status() == status


# The client asks for a status without reading or releasing the answer: its connection warns when the garbage collector
# finds it, here or in whatever test runs then.
@pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
async def test_the_asyncio_client(server: Server) -> None:
    async with aio.InferenceServerClient(server.host, conn_limit=100) as client:

        async def call(number: int) -> bool:
            values, binary = np.full((1 + number % 3, 4), number, np.float32), bool(number % 2)
            x = given("x", values, "FP32", binary=binary)
            result = await client.infer("echo", [x], outputs=[wanted("y", binary=binary)])
            return np.array_equal(result.as_numpy("y"), values)

        assert all(await asyncio.gather(*map(call, range(200))))
        assert await client.is_model_ready("echo")
        assert not await client.is_model_ready("broken")
        await client.unload_model("labelled")
        await client.load_model("labelled")
        with pytest.raises(InferenceServerException, match="a marked row") as caught:
            await client.infer("marked", [given("x", np.full((1, 2), -1, np.float32), "FP32")])
        assert caught.value.status() == "500"
    gc.collect()
