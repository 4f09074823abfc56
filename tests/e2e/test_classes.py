"""Service classes over HTTP, on both ways in which a request is taken, and with Triton's own client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from .conftest import Keeper
from .mistakes import TYPED, tensor
from .server import PATIENCE_S, Gate, Server, eventually

BEST = {"X-Class": "best_effort"}  # Triton's client writes into what it is given: it gets copies
REQUESTS = 'starling_requests_total{class="%s",model="%s",outcome="%s",version="1"}'


@pytest.fixture
def server(keeper: Keeper, way: tuple[str, ...]) -> Server:
    return keeper.shared(*way)


def queued(server: Server, klass: str, model: str = "narrow") -> int:
    return int(server.metric(f'starling_queue_length{{class="{klass}",model="{model}",version="1"}}'))


def test_tritons_client_names_the_class(server: Server) -> None:
    client = triton.InferenceServerClient(server.host, connection_timeout=30.0, network_timeout=30.0)
    before = [server.metric(REQUESTS % (klass, "scaled", "ok")) for klass in ("realtime", "best_effort")]
    for binary in (False, True):
        x = triton.InferInput("x", [2, 1], "FP32")
        x.set_data_from_numpy(np.array([[1], [2]], "<f4"), binary_data=binary)
        by_parameter = client.infer("scaled", [x], parameters={"class": "best_effort", "factor": 3})
        by_header = client.infer("scaled", [x], headers=dict(BEST))
        both = client.infer("scaled", [x], headers=dict(BEST), parameters={"class": "realtime"})
        found = [result.as_numpy("y").tolist() for result in (by_parameter, by_header, both)]
        assert found == [[[3], [6]], [[1], [2]], [[1], [2]]]
        with pytest.raises(InferenceServerException, match=r"parameters\.class: expected realtime or best_effort"):
            client.infer("scaled", [x], parameters={"class": "bulk"})
        with pytest.raises(InferenceServerException, match="X-Class: expected realtime or best_effort, got 'bulk'"):
            client.infer("scaled", [x], headers={"X-Class": "bulk"})
    after = [server.metric(REQUESTS % (klass, "scaled", "ok")) for klass in ("realtime", "best_effort")]
    assert [int(new - old) for new, old in zip(after, before, strict=True)] == [2, 4]
    (told,) = client.get_inference_statistics("scaled")["model_stats"]
    assert told["starling"]["classes"]["best_effort"]["success"]["count"] == after[1]
    client.close()


def test_each_class_has_a_queue(server: Server, gate: Gate, threads: ThreadPoolExecutor) -> None:
    """The only worker is held. Three best-effort rows fill their queue; real-time rows come, and go first."""
    path, bodies = "/v2/models/narrow/infer", [tensor(1, 1, [n]) for n in range(7)]
    bulk = [threads.submit(server.post, path, one, {**TYPED, **BEST}) for one in bodies[:3]]
    eventually(lambda: queued(server, "best_effort") == 3)
    try:
        refused = server.post(path, bodies[3], {**TYPED, **BEST})
        assert (refused.status, refused.json()["error"]) == (
            429, "model 'narrow': the best-effort queue of 3 rows is full",
        )  # fmt: skip
        fast = [threads.submit(server.post, path, one, TYPED) for one in bodies[3:6]]
        eventually(lambda: queued(server, "realtime") == 3)
        assert queued(server, "best_effort") == 3
        assert server.metric('starling_best_effort_oldest_seconds{model="narrow",version="1"}') > 0
        named = server.post(path, bodies[6], {**TYPED, "X-Class": "realtime"})
        assert (named.status, named.json()["error"]) == (429, "model 'narrow': the queue of 3 rows is full")
    finally:
        gate.open()
    assert [call.result(PATIENCE_S).status for call in (*fast, *bulk)] == [200] * 6
    assert server.metric('starling_best_effort_oldest_seconds{model="narrow",version="1"}') == 0
