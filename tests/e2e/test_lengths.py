"""Rows of any length, with masks and lengths that the server makes: who shares a batch shows in no answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from .server import Server


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    opened = triton.InferenceServerClient(server.host, concurrency=16, connection_timeout=30.0, network_timeout=30.0)
    try:
        yield opened
    finally:
        opened.close()


def given(name: str, values: Any, datatype: str, *, binary: bool) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


def ids_of(number: int) -> Any:
    return np.arange(2 * (1 + number % 60), dtype=np.int64).reshape(2, -1) + number


def frames_of(number: int) -> Any:
    """From one frame to some 3,000: on both sides of the end of a length bucket."""
    length = 1 + number * 397 % 3001
    return np.random.default_rng(number).standard_normal((1, length, 2), np.float32) - 3  # padding would be the largest


def check_mean(number: int, mean: Any, doubled: Any) -> None:
    ids = ids_of(number)
    assert np.allclose(mean, ids.mean(axis=1))
    assert np.array_equal(doubled, ids * 2)


def check_frames(number: int, loudest: Any, negated: Any) -> None:
    frames = frames_of(number)
    assert np.array_equal(loudest, frames.max(axis=1))
    assert np.array_equal(negated, -frames)


def test_what_the_server_makes_is_not_asked_for(client: triton.InferenceServerClient) -> None:
    averaged, frames = client.get_model_metadata("averaged"), client.get_model_metadata("frames")
    assert averaged["inputs"] == [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}]
    assert frames["inputs"] == [{"name": "frames", "datatype": "FP32", "shape": [-1, -1, 2]}]
    assert frames["outputs"][1]["shape"] == [-1, -1, 2]
    assert [tensor["name"] for tensor in client.get_model_config("averaged")["input"]] == ["ids"]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_tritonclient(client: triton.InferenceServerClient, binary: bool) -> None:
    """Many at once, of all lengths: they share batches."""
    pending = []
    for number in range(120):
        if number % 2:
            tensor = given("ids", ids_of(number), "INT64", binary=binary)
        else:
            tensor = given("frames", frames_of(number), "FP32", binary=binary)
        pending.append(client.async_infer("averaged" if number % 2 else "frames", [tensor]))
    for number, one in enumerate(pending):
        result = one.get_result()
        if number % 2:
            check_mean(number, result.as_numpy("mean"), result.as_numpy("doubled"))
        else:
            check_frames(number, result.as_numpy("loudest"), result.as_numpy("negated"))


def test_raw_request(server: Server) -> None:
    frames = frames_of(8)
    reply = server.post("/v2/models/frames/infer", frames.tobytes(), {"Inference-Header-Content-Length": "0"})
    head = int(reply.headers["inference-header-content-length"])
    assert reply.body[head:] == frames.max(axis=1).tobytes() + (-frames).tobytes()
