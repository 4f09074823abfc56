"""Triton's asyncio client against the same server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from .server import Server

# The client asks for a status (`is_server_live`, `is_model_ready` and the like) without reading or releasing the
# answer. If the body comes after the head, aiohttp's connection stays with the unread answer in a reference cycle, and
# warns when the garbage collector finds it: here, or in whatever test runs then. It is the client's habit, no leak of
# the server's or of these tests. So it may warn here, and the fixture sees to it that it does not do so later.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")


@pytest.fixture
async def client(server: Server) -> AsyncIterator[triton.InferenceServerClient]:
    opened = triton.InferenceServerClient(server.host, conn_limit=100)
    try:
        yield opened
    finally:
        await opened.close()
        gc.collect()


def given(name: str, values: np.ndarray, datatype: str, *, binary: bool = True) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


async def test_what_there_is(client: triton.InferenceServerClient) -> None:
    assert await client.is_server_live()
    assert await client.is_model_ready("echo")
    assert not await client.is_model_ready("broken")
    assert (await client.get_server_metadata())["name"] == "starling"
    assert (await client.get_model_metadata("echo"))["inputs"][0]["shape"] == [-1, 4]
    assert (await client.get_model_config("echo"))["max_batch_size"] == 32
    assert (await client.get_inference_statistics("echo"))["model_stats"][0]["name"] == "echo"
    assert {"echo", "broken"} <= {line["name"] for line in await client.get_model_repository_index()}


async def test_repository(client: triton.InferenceServerClient) -> None:
    await client.unload_model("labelled")
    assert not await client.is_model_ready("labelled")
    await client.load_model("labelled")
    assert await client.is_model_ready("labelled")


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
async def test_many_at_once(client: triton.InferenceServerClient, binary: bool) -> None:
    async def call(number: int) -> bool:
        values = np.full((1 + number % 3, 4), number, np.float32)
        wanted = [triton.InferRequestedOutput("y", binary_data=binary)]
        result = await client.infer("echo", [given("x", values, "FP32", binary=binary)], outputs=wanted)
        return np.array_equal(result.as_numpy("y"), values)

    assert all(await asyncio.gather(*map(call, range(200))))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compression(client: triton.InferenceServerClient, algorithm: str) -> None:
    values = np.ones((500, 4), np.float32)
    result = await client.infer(
        "echo", [given("x", values, "FP32")],
        request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
    )  # fmt: skip
    assert np.array_equal(result.as_numpy("y"), values)


async def test_errors(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="a marked row") as caught:
        await client.infer("marked", [given("x", np.full((1, 2), -1, np.float32), "FP32")])
    assert caught.value.status() == "500"
    with pytest.raises(InferenceServerException, match="nobody") as caught:
        await client.infer("nobody", [given("x", np.ones((1, 2), np.float32), "FP32")])
    assert caught.value.status() == "404"
