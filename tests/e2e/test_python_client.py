"""The Python client against a server: every datatype, text, batches over the limit, refusals; and its documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from background import eventually

from starling_client import AsyncClient, Client, Refused

from .server import PATIENCE_S, ROOT, Gate, Server

SOURCE = ROOT / "clients" / "python" / "src"


def rows(count: int, width: int = 4) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, width), "f4")


@pytest.mark.parametrize("binary", [None, False])
def test_every_datatype(server: Server, binary: bool | None) -> None:
    with Client(server.host, binary=binary) as client:
        kinds = client.metadata("kinds")
        given = {}
        for tensor in kinds.inputs:
            values = [[False, True]] if tensor.datatype == "BOOL" else [[0, 1]]
            given[tensor.name] = np.array(values * 5)  # more than the model's largest batch
        found = client.predict("kinds", given)
        for tensor in kinds.outputs:
            values = found[tensor.name]
            assert (tensor.name, values.tolist()) == (tensor.name, given[f"in_{tensor.datatype}"].tolist())
        words = client.predict("words", {"text": [["grüße"], [b"abc"]]})
        assert words["shout"].tolist() == [["grüße".encode().upper()], [b"ABC"]]
        assert words["size"].tolist() == [7, 3]
        several = client.predict("several", {"b": [[1, 2, 3]], "a": [[0.5, 1]]}, outputs=["reversed"])
        assert {name: array.tolist() for name, array in several.items()} == {"reversed": [[3, 2, 1]]}
        if binary is None:
            assert client.predict("brain", [[1.0, 0.5]]).dtype == np.float32
        assert client.infer("plus", [[1]], version=1).version == "1"


async def test_a_batch_of_more_rows_than_the_queue_holds(server: Server) -> None:
    """The queue of `narrow` holds three rows, and its batches two: parts are refused at times, and come again."""
    x = rows(40, 1)
    async with AsyncClient(server.host, parallel=8) as client:
        found = await client.infer("narrow", x)
    assert np.array_equal(found.outputs["y"], x)
    assert len(found.request_ids) == 40


def test_a_full_queue_is_waited_for(server: Server, gate: Gate, threads: ThreadPoolExecutor) -> None:
    """The only worker is held, and the queue of `narrow` full: a call comes again until it has room."""
    with Client(server.host) as client:
        client.metadata("narrow")
        waiting = [threads.submit(server.infer, "narrow", [[n]]) for n in range(3)]
        eventually(lambda: server.waiting("narrow") == 3)
        try:
            with pytest.raises(Refused, match="429: model 'narrow': the queue of 3 rows is full") as raised:
                client.predict("narrow", [[7]], deadline_s=0.9)
            assert (raised.value.tries, raised.value.code) == (1, "refused")
            assert raised.value.retry_after_s in (1, 2)
            assert raised.value.request_id
            refused = 'starling_requests_total{class="realtime",model="narrow",outcome="queue_full",version="1"}'
            before = server.metric(refused)
            coming = threads.submit(client.infer, "narrow", [[7]])
            eventually(lambda: server.metric(refused) > before)
        finally:
            gate.open()
        found = coming.result(PATIENCE_S)
        assert (found.outputs["y"].tolist(), found.tries >= 2) == ([[7]], True)
        assert [call.result(PATIENCE_S).status for call in waiting] == [200] * 3


def test_the_examples_of_its_own_page(server: Server) -> None:
    """All blocks of it as one program. docs/client.md is run by test_documentation.py."""
    page = (SOURCE.parent / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    # those that stream are run where such models serve, see documented_rules
    streams = re.compile(r"\.stream\(")
    program = "\n".join(text for kind, text in blocks if kind == "python" and not streams.search(text))
    assert "http://localhost:8000" in program
    program = program.replace("http://localhost:8000", f"http://{server.host}")
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", program]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert "(5000, 4)" in done.stdout
