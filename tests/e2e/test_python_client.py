"""The Python client against a server: every datatype, text, batches over the limit, refusals; and its documentation."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from background import ended

from starling_client import AsyncClient, Client

from .server import ROOT, Server

SOURCE = ROOT / "clients" / "python" / "src"


@pytest.mark.parametrize("binary", [None, False])
def test_every_datatype(server: Server, binary: bool | None) -> None:
    with Client(server.host, binary=binary) as client:
        kinds = client.metadata("kinds")
        values = np.array([[0, 1]] * 5)  # more rows than the model's largest batch
        given = {one.name: values.astype(bool) if one.datatype == "BOOL" else values for one in kinds.inputs}
        found = client.predict("kinds", given)
        for one in kinds.outputs:
            assert np.array_equal(found[one.name], values), one.name
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
    x = np.arange(40, dtype="f4")[:, None]
    async with AsyncClient(server.host, parallel=8) as client:
        found = await client.infer("narrow", x)
    assert np.array_equal(found.outputs["y"], x)
    assert len(found.request_ids) == 40


def test_the_examples_of_its_own_page(server: Server) -> None:
    """All blocks of it as one program. docs/client.md is run by test_documentation.py."""
    page = (SOURCE.parent / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    # those that stream are run where such models serve, see documented_rules
    streams = re.compile(r"\.stream\(")
    program = "\n".join(text for kind, text in blocks if kind == "python" and not streams.search(text))
    assert "http://localhost:8000" in program
    program = program.replace("http://localhost:8000", f"http://{server.host}")
    done = ended(sys.executable, "-W", "error::SyntaxWarning", "-c", program, env={"PYTHONPATH": str(SOURCE)})
    assert done.stderr == ""
    assert "(5000, 4)" in done.stdout
